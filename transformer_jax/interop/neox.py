"""GPT-NeoX and Pythia (parallel branches, partial rotation) and BLOOM (ALiBi) as Decoders.

Black et al. 2022, arXiv:2204.06745; BigScience 2022, arXiv:2211.05100.
"""

from typing import Any

from transformer_jax.interop.architecture import (
    NAMES_OF_TEXT,
    Architecture,
    Settings,
    attention_dropout,
    dropout_fields,
    our_fields,
    rotation_of,
    rotation_settings,
    their_settings,
)
from transformer_jax.interop.layouts import (
    Entry,
    affine,
    embedding,
    interleaved_heads,
    norm,
    output_layer,
)
from transformer_jax.models import Decoder

_BLOOM_LENGTH = 2048  # BLOOM stores none: the length that it was trained on


def _make_neox(settings: Settings) -> Decoder:
    return Decoder.of(
        **our_fields(settings, NAMES_OF_TEXT),
        mlp_dim=settings["intermediate_size"],
        position="rotary",
        position_options=rotation_of(settings, partial=True),
        wiring="parallel" if settings.get("use_parallel_residual", True) else "pre",
        **dropout_fields(settings, "hidden_dropout", "attention_dropout"),
        tie_embeddings=settings.get("tie_word_embeddings", False),
    )


def _describe_neox(model: Decoder) -> dict[str, Any]:
    return {
        "model_type": "gpt_neox",
        **their_settings(model, NAMES_OF_TEXT),
        "intermediate_size": model.mlp_dim or 4 * model.width,
        "use_parallel_residual": model.wiring == "parallel",
        "attention_bias": True,
        "hidden_dropout": model.dropout_rate,
        "attention_dropout": attention_dropout(model),
        "tie_word_embeddings": model.tie_embeddings,
        **rotation_settings(model),
    }


def _make_bloom(settings: Settings) -> Decoder:
    return Decoder.of(
        vocab_size=settings["vocab_size"],
        max_length=settings.get("seq_length", _BLOOM_LENGTH),
        width=settings.get("n_embed") or settings["hidden_size"],
        depth=settings["n_layer"],
        num_heads=settings.get("num_attention_heads") or settings["n_head"],
        position="alibi",
        activation="gelu_tanh",
        norm_options={"epsilon": settings["layer_norm_epsilon"]},
        embedding_norm=True,
        **dropout_fields(settings, "hidden_dropout", "attention_dropout"),
    )


def _describe_bloom(model: Decoder) -> dict[str, Any]:
    return {
        "model_type": "bloom",
        "vocab_size": model.vocab_size,
        "seq_length": model.max_length,
        "hidden_size": model.width,
        "n_layer": model.depth,
        "n_head": model.num_heads,
        "layer_norm_epsilon": model.norm_epsilon,
        "hidden_dropout": model.dropout_rate,
        "attention_dropout": attention_dropout(model),
    }


def _block_entries(our_path: str, their_name: str, attention: str, num_heads: int) -> list[Entry]:
    """Returns a block of either, with query, key and value of a head concatenated."""
    names = tuple(f"{our_path}/attention/{name}" for name in ("query", "key", "value"))
    fused = affine(names, f"{their_name}.{attention}.query_key_value")
    return [
        *(entry._replace(layout=interleaved_heads(num_heads)) for entry in fused),
        *affine(f"{our_path}/attention/out", f"{their_name}.{attention}.dense"),
        *affine(f"{our_path}/feed_forward/up", f"{their_name}.mlp.dense_h_to_4h"),
        *affine(f"{our_path}/feed_forward/down", f"{their_name}.mlp.dense_4h_to_h"),
        *norm(f"{our_path}/attention_norm", f"{their_name}.input_layernorm"),
        *norm(f"{our_path}/feed_forward_norm", f"{their_name}.post_attention_layernorm"),
    ]


def _neox_entries(model: Decoder) -> list[Entry]:
    entries = embedding("token_embedding", "embed_in.weight")
    for layer in range(model.depth):
        prefix = f"layers.{layer}"
        entries += _block_entries(f"block_{layer}", prefix, "attention", model.num_heads)
    return entries + norm("final_norm", "final_layer_norm") + output_layer(model)


def _bloom_entries(model: Decoder) -> list[Entry]:
    entries = embedding("token_embedding", "word_embeddings.weight")
    entries += norm("embedding_norm", "word_embeddings_layernorm")
    for layer in range(model.depth):
        entries += _block_entries(f"block_{layer}", f"h.{layer}", "self_attention", model.num_heads)
    return entries + norm("final_norm", "ln_f") + output_layer(model)


ROWS = {
    "GPTNeoXForCausalLM": Architecture(
        _make_neox,
        _describe_neox,
        _neox_entries,
        Decoder,
        prefix="gpt_neox.",
        heads=("lm_head.",),
        required={"attention_bias": True},
        not_read=(
            *("layers.*.attention.rotary_emb.inv_freq", "layers.*.attention.*bias_cache"),
            *("layers.*.attention.bias", "layers.*.attention.masked_bias"),
        ),
        tied={"lm_head.weight": "embed_in.weight"},
        renames={r"^embed_out\.": "lm_head."},
    ),
    "BloomForCausalLM": Architecture(
        _make_bloom,
        _describe_bloom,
        _bloom_entries,
        Decoder,
        prefix="transformer.",
        heads=("lm_head.",),
        required={"apply_residual_connection_post_layernorm": False, "tie_word_embeddings": True},
        tied={"lm_head.weight": "word_embeddings.weight"},
    ),
}

"""Llama, Mistral and Qwen3 as Decoders: RMS norm, gated layers, rotary positions, grouped heads.

Touvron et al. 2023, arXiv:2302.13971; Jiang et al. 2023, arXiv:2310.06825 (a sliding window); Qwen
team 2025, arXiv:2505.09388 (norms of queries and keys).
"""

import functools
from collections.abc import Mapping
from typing import Any

from transformer_jax.interop.architecture import (
    NAMES_OF_TEXT,
    Architecture,
    Settings,
    our_fields,
    rotation_of,
    rotation_settings,
    their_settings,
)
from transformer_jax.interop.layouts import Entry, embedding, kernel, output_layer, scale
from transformer_jax.models import Decoder
from transformer_jax.models.effect import options_in_effect
from transformer_jax.options import FrozenOptions

_NAMES = NAMES_OF_TEXT | {"norm_epsilon": "rms_norm_eps"}


def make_llama(settings: Settings) -> Decoder:
    """Returns the Decoder of their settings; Gemma's starts from it too."""
    window = settings.get("sliding_window")
    return Decoder.of(
        **our_fields(settings, _NAMES),
        num_kv_heads=settings.get("num_key_value_heads"),
        head_dim=settings.get("head_dim"),
        mlp_dim=settings["intermediate_size"],
        position="rotary",
        position_options=rotation_of(settings),
        mask="full" if window is None else "window",
        mask_options=FrozenOptions({} if window is None else {"size": window}),
        feed_forward="gated",
        norm="rms_norm",
        use_bias=False,
        tie_embeddings=settings.get("tie_word_embeddings", False),
    )


def _make_unwindowed(settings: Settings) -> Decoder:
    return make_llama({**settings, "sliding_window": None})  # which their Llama does not read


def _make_qwen3(settings: Settings) -> Decoder:
    return _make_unwindowed(settings).with_options(query_key_norm="rms_norm")


def describe_llama(model: Decoder) -> dict[str, Any]:
    """Returns their settings for a Decoder."""
    head_dim = model.head_dim or model.width // model.num_heads
    return {
        "model_type": "llama",
        **their_settings(model, _NAMES),
        "num_key_value_heads": model.num_kv_heads or model.num_heads,
        "head_dim": head_dim,
        "intermediate_size": model.mlp_dim or round(8 * model.width / 3),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": model.tie_embeddings,
        **rotation_settings(model),
    }


def _make_mistral(settings: Settings) -> Decoder:
    return make_llama({"sliding_window": 4096, **settings})  # a file that leaves it out means so


def _describe_mistral(model: Decoder) -> dict[str, Any]:
    window = options_in_effect(model.options, "mask")["size"] if model.mask == "window" else None
    return describe_llama(model) | {"model_type": "mistral", "sliding_window": window}


def _describe_qwen3(model: Decoder) -> dict[str, Any]:
    return describe_llama(model) | {"model_type": "qwen3", "use_sliding_window": False}


_NORMS = {"attention_norm": "input_layernorm", "feed_forward_norm": "post_attention_layernorm"}
QUERY_KEY_NORMS = {
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
}


def block_entries(model: Decoder, norms: Mapping[str, str]) -> list[Entry]:
    """Returns all arrays of a model with Llama's kernels.

    Args:
      model: Our model.
      norms: Scales inside a block, our path -> their name.
    """
    entries = embedding("token_embedding", "embed_tokens.weight")
    for layer in range(model.depth):
        our_path, their_name = f"block_{layer}", f"layers.{layer}"
        for name, initial in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
            entries += kernel(
                f"{our_path}/attention/{name}", f"{their_name}.self_attn.{initial}_proj"
            )
        for name in ("gate", "up", "down"):
            entries += kernel(f"{our_path}/feed_forward/{name}", f"{their_name}.mlp.{name}_proj")
        for name, other in norms.items():
            entries += scale(f"{our_path}/{name}", f"{their_name}.{other}")
    return entries + scale("final_norm", "norm") + output_layer(model)


_LLAMA = Architecture(
    _make_unwindowed,
    describe_llama,
    functools.partial(block_entries, norms=_NORMS),
    Decoder,
    prefix="model.",
    heads=("lm_head.",),
    required={"attention_bias": False, "mlp_bias": False},
    not_read=("layers.*.self_attn.rotary_emb.inv_freq",),
    tied={"lm_head.weight": "embed_tokens.weight"},
)

ROWS = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA._replace(make=_make_mistral, describe=_describe_mistral),
    "Qwen3ForCausalLM": _LLAMA._replace(
        make=_make_qwen3,
        describe=_describe_qwen3,
        entries=functools.partial(block_entries, norms=_NORMS | QUERY_KEY_NORMS),
        required={"attention_bias": False, "use_sliding_window": False},
    ),
}

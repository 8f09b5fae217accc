"""GPT-2 as a Decoder: Radford et al. 2019."""

from typing import Any

from transformer_jax.interop.architecture import (
    Architecture,
    Settings,
    attention_dropout,
    dropout_fields,
    our_activation,
    their_activation,
)
from transformer_jax.interop.layouts import SAME, Entry, affine, embedding, norm
from transformer_jax.models import Decoder


def _make_gpt2(settings: Settings) -> Decoder:
    return Decoder(
        vocab_size=settings["vocab_size"],
        max_length=settings["n_positions"],
        width=settings["n_embd"],
        depth=settings["n_layer"],
        num_heads=settings["n_head"],
        mlp_dim=settings.get("n_inner") or 4 * settings["n_embd"],
        activation=our_activation(settings, "activation_function"),
        norm_epsilon=settings["layer_norm_epsilon"],
        **dropout_fields(settings, "resid_pdrop", "attn_pdrop"),
    )


def _describe_gpt2(model: Decoder) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        "vocab_size": model.vocab_size,
        "n_positions": model.max_length,
        "n_embd": model.width,
        "n_layer": model.depth,
        "n_head": model.num_heads,
        "n_inner": model.mlp_dim or 4 * model.width,
        "activation_function": their_activation(model),
        "layer_norm_epsilon": model.norm_epsilon,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop"), model.dropout_rate),
        "attn_pdrop": attention_dropout(model),
    }


def _gpt2_entries(model: Decoder) -> list[Entry]:
    entries = embedding("token_embedding", "wte.weight") + embedding("positions", "wpe.weight")
    for layer in range(model.depth):
        ours, theirs = f"block_{layer}", f"h.{layer}"
        projections = tuple(f"{ours}/attention/{name}" for name in ("query", "key", "value"))
        # GPT-2's Conv1D keeps [in, out], as we do.
        entries += [
            *norm(f"{ours}/attention_norm", f"{theirs}.ln_1"),
            *affine(projections, f"{theirs}.attn.c_attn", SAME),
            *affine(f"{ours}/attention/out", f"{theirs}.attn.c_proj", SAME),
            *norm(f"{ours}/feed_forward_norm", f"{theirs}.ln_2"),
            *affine(f"{ours}/feed_forward/up", f"{theirs}.mlp.c_fc", SAME),
            *affine(f"{ours}/feed_forward/down", f"{theirs}.mlp.c_proj", SAME),
        ]
    return entries + norm("final_norm", "ln_f")


_GPT2 = Architecture(
    _make_gpt2,
    _describe_gpt2,
    _gpt2_entries,
    Decoder,
    prefix="transformer.",
    heads=("lm_head.",),
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    not_read=("h.*.attn.bias", "h.*.attn.masked_bias"),
    tied={"lm_head.weight": "wte.weight"},
)

ROWS = {"GPT2LMHeadModel": _GPT2, "GPT2Model": _GPT2}

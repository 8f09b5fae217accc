"""GPT-2 as a Decoder: Radford et al. 2019."""

from typing import Any

from transformer_jax.interop.architecture import (
    NAMES_OF_TEXT,
    Architecture,
    Settings,
    attention_dropout,
    dropout_fields,
    our_fields,
    their_settings,
)
from transformer_jax.interop.layouts import SAME, Entry, affine, embedding, norm
from transformer_jax.models import Decoder

_NAMES = NAMES_OF_TEXT | {
    "max_length": "n_positions",
    "width": "n_embd",
    "depth": "n_layer",
    "num_heads": "n_head",
    "activation": "activation_function",
    "norm_epsilon": "layer_norm_epsilon",
}


def _make_gpt2(settings: Settings) -> Decoder:
    return Decoder.of(
        **our_fields(settings, _NAMES),
        mlp_dim=settings.get("n_inner") or 4 * settings["n_embd"],
        **dropout_fields(settings, "resid_pdrop", "attn_pdrop"),
    )


def _describe_gpt2(model: Decoder) -> dict[str, Any]:
    return {
        "model_type": "gpt2",
        **their_settings(model, _NAMES),
        "n_inner": model.mlp_dim or 4 * model.width,
        **dict.fromkeys(("resid_pdrop", "embd_pdrop"), model.dropout_rate),
        "attn_pdrop": attention_dropout(model),
    }


def _gpt2_entries(model: Decoder) -> list[Entry]:
    entries = embedding("token_embedding", "wte.weight") + embedding("positions", "wpe.weight")
    for layer in range(model.depth):
        our_path, their_name = f"block_{layer}", f"h.{layer}"
        projections = tuple(f"{our_path}/attention/{name}" for name in ("query", "key", "value"))
        # GPT-2's Conv1D keeps [in, out], as we do.
        entries += [
            *norm(f"{our_path}/attention_norm", f"{their_name}.ln_1"),
            *affine(projections, f"{their_name}.attn.c_attn", SAME),
            *affine(f"{our_path}/attention/out", f"{their_name}.attn.c_proj", SAME),
            *norm(f"{our_path}/feed_forward_norm", f"{their_name}.ln_2"),
            *affine(f"{our_path}/feed_forward/up", f"{their_name}.mlp.c_fc", SAME),
            *affine(f"{our_path}/feed_forward/down", f"{their_name}.mlp.c_proj", SAME),
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

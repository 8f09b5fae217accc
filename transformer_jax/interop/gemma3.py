"""Gemma 3's text model as a Decoder: windows in most layers, full attention in every sixth.

Gemma team 2025, arXiv:2503.19786, section 2.
"""

from typing import Any

from transformer_jax.interop.architecture import Settings, in_effect, rotation_of, rotation_settings
from transformer_jax.interop.layouts import Table
from transformer_jax.interop.llama import LLAMA, QUERY_KEY_NORMS, llama_fields, llama_table
from transformer_jax.models.effect import Described, options_in_effect

_LETTERS = {"sliding_attention": "L", "full_attention": "G"}
_THETA = {"sliding_attention": 10_000.0, "full_attention": 1_000_000.0}
_OLD_THETA = {"sliding_attention": "rope_local_base_freq", "full_attention": "rope_theta"}


def _fields(settings: Settings) -> dict[str, Any]:
    every = settings.get("sliding_window_pattern", 6)
    kinds = settings.get("layer_types") or [
        "full_attention" if (layer + 1) % every == 0 else "sliding_attention"
        for layer in range(settings["num_hidden_layers"])
    ]
    letters = "".join(_LETTERS[kind] for kind in kinds)
    local = {
        "mask": "window",
        "mask_options": {"size": settings["sliding_window"]},
        "position_options": _rotation(settings, "sliding_attention"),
    }
    return {
        **llama_fields({**settings, "rope_parameters": None, "rope_scaling": None}),
        "position_options": _rotation(settings, "full_attention" if "G" in letters else kinds[0]),
        "layers": letters if "L" in letters else "",
        "layer_types": {"L": local} if "L" in letters else {},
        "attention_scale": settings["query_pre_attn_scalar"] ** -0.5,
        "query_key_norm": "zero_centred_rms_norm",
        "norm": "zero_centred_rms_norm",
        "wiring": "sandwich",
        "scale_embeddings": True,
    }


def _rotation(settings: Settings, kind: str) -> dict[str, Any]:
    """Returns the rotation for a kind of layer; old files state the global one as in Llama."""
    rope = dict((settings.get("rope_parameters") or {}).get(kind) or {})
    if kind == "full_attention":
        rope |= settings.get("rope_scaling") or {}
    rope.setdefault("rope_theta", settings.get(_OLD_THETA[kind], _THETA[kind]))
    length = settings["max_position_embeddings"]
    return rotation_of({"rope_parameters": rope, "max_position_embeddings": length})


def _settings(model: Described) -> dict[str, Any]:
    layers = Described(model.model).layers()
    kind_of = {
        letter: "sliding_attention" if layer.mask == "window" else "full_attention"
        for letter, layer in layers
    }
    by_kind = {kind_of[letter]: layer for letter, layer in layers}
    local = by_kind.get("sliding_attention")
    window = {} if local is None else options_in_effect(local.options, "mask")
    ropes = {kind: rotation_settings(by_kind.get(kind, model)) for kind in _LETTERS}
    return {
        "attention_bias": False,
        "tie_word_embeddings": model.tie_embeddings,
        "query_pre_attn_scalar": round(in_effect(model, "attention_scale") ** -2),
        "layer_types": [kind_of[letter] for letter, _ in layers],
        "sliding_window": window.get("size", model.max_length),
        "rope_parameters": {k: rope.get("rope_parameters", {}) for k, rope in ropes.items()},
    }


_NORMS: Table = QUERY_KEY_NORMS | {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_out_norm": "post_feedforward_layernorm",
}


ROWS = {
    "Gemma3ForCausalLM": LLAMA._replace(
        model_type="gemma3_text",
        names={**LLAMA.names, "activation": "hidden_activation"},
        fields=_fields,
        settings=_settings,
        table=lambda model: llama_table(model, _NORMS),
        required={
            "attention_bias": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "use_bidirectional_attention": False,
        },
        not_read=(),
    )
}

"""Gemma 2 and Gemma 3's text model as Decoders: windows in some layers, full attention in others.

Gemma team 2024, arXiv:2408.00118, section 2 (soft caps, a window in every other layer), and 2025,
arXiv:2503.19786, section 2 (full attention in every sixth layer).
"""

from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.architecture import Settings, in_effect, rotation_of, rotation_settings
from transformer_jax.interop.layouts import Table
from transformer_jax.interop.llama import LLAMA, QUERY_KEY_NORMS, llama_fields, llama_table
from transformer_jax.models.effect import Described, options_in_effect

_LETTERS = {"sliding_attention": "L", "full_attention": "G"}
_THETA = {"sliding_attention": 10_000.0, "full_attention": 1_000_000.0}
_OLD_THETA = {"sliding_attention": "rope_local_base_freq", "full_attention": "rope_theta"}


def _kinds(settings: Settings, every: int) -> list[str]:
    """Returns the kind of attention in each layer, which is full in one of `every`."""
    return settings.get("layer_types") or [
        "full_attention" if (layer + 1) % every == 0 else "sliding_attention"
        for layer in range(settings["num_hidden_layers"])
    ]


def _common(settings: Settings) -> dict[str, Any]:
    return {
        "attention_scale": settings["query_pre_attn_scalar"] ** -0.5,
        "norm": "zero_centred_rms_norm",
        "wiring": "sandwich",
        "scale_embeddings": True,
    }


def _gemma2_fields(settings: Settings) -> dict[str, Any]:
    letters = "".join(_LETTERS[kind] for kind in _kinds(settings, 2))
    local = {"mask": "window", "mask_options": {"size": settings["sliding_window"]}}
    return {
        **llama_fields(settings),
        **_common(settings),
        "layers": letters if "L" in letters else "",
        "layer_types": {"L": local} if "L" in letters else {},
        "attention_options": {"soft_cap": settings["attn_logit_softcapping"]},
        "logits_soft_cap": settings["final_logit_softcapping"],
    }


def _gemma2_settings(model: Described) -> dict[str, Any]:
    return {
        **{name: value for name, value in _settings(model).items() if name != "rope_parameters"},
        **rotation_settings(model),
        "attn_logit_softcapping": options_in_effect(model.options, "attention").get("soft_cap"),
        "final_logit_softcapping": model.logits_soft_cap,
    }


def _fields(settings: Settings) -> dict[str, Any]:
    kinds = _kinds(settings, settings.get("sliding_window_pattern", 6))
    letters = "".join(_LETTERS[kind] for kind in kinds)
    local = {
        "mask": "window",
        "mask_options": {"size": settings["sliding_window"]},
        "position_options": _rotation(settings, "sliding_attention"),
    }
    kind = "full_attention" if "G" in letters else kinds[0]
    return {
        **llama_fields(settings, _rotation(settings, kind)),
        "layers": letters if "L" in letters else "",
        "layer_types": {"L": local} if "L" in letters else {},
        **_common(settings),
        "query_key_norm": "zero_centred_rms_norm",
    }


def _rotation(settings: Settings, kind: str) -> dict[str, Any]:
    """Returns the rotation for a kind of layer; old files state the global one as in Llama."""
    rope = dict((settings.get("rope_parameters") or {}).get(kind) or {})
    if kind == "full_attention":
        rope |= settings.get("rope_scaling") or {}
    if "type" in rope and rope["type"] != rope.get("rope_type", "default"):
        raise InvalidInput(f"config.json: rope_scaling: type={rope['type']}: expected rope_type")
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


_NORMS: Table = {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_out_norm": "post_feedforward_layernorm",
}
_ROW = LLAMA._replace(
    names={**LLAMA.names, "activation": "hidden_activation"},
    required={"attention_bias": False, "use_bidirectional_attention": False},
    not_read=(),
)
_NO_CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
ROWS = {
    "Gemma2ForCausalLM": _ROW._replace(
        model_type="gemma2",
        fields=_gemma2_fields,
        settings=_gemma2_settings,
        table=lambda model: llama_table(model, _NORMS),
    ),
    "Gemma3ForCausalLM": _ROW._replace(
        model_type="gemma3_text",
        fields=_fields,
        settings=_settings,
        table=lambda model: llama_table(model, _NORMS | QUERY_KEY_NORMS),
        required={**_ROW.required, **_NO_CAPS},
    ),
}

"""Gemma 3's text model as a Decoder: windows in most layers, full attention in every sixth.

Gemma team 2025, arXiv:2503.19786, section 2.
"""

import functools
from typing import Any

from transformer_jax.interop.architecture import (
    Architecture,
    Settings,
    rotation_of,
    rotation_settings,
    their_activation,
)
from transformer_jax.interop.llama import QUERY_KEY_NORMS, block_entries, describe_llama, make_llama
from transformer_jax.models import Decoder
from transformer_jax.models.effect import Described, options_in_effect
from transformer_jax.options import FrozenOptions

_LETTERS = {"sliding_attention": "L", "full_attention": "G"}
_THETA = {"sliding_attention": 10_000.0, "full_attention": 1_000_000.0}
_NO_ROTATION = {"rope_parameters": None, "rope_scaling": None}  # there are two, see _rotation
_OLD_THETA = {"sliding_attention": "rope_local_base_freq", "full_attention": "rope_theta"}


def _make(settings: Settings) -> Decoder:
    depth, every = settings["num_hidden_layers"], settings.get("sliding_window_pattern", 6)
    kinds = settings.get("layer_types") or [
        "full_attention" if (layer + 1) % every == 0 else "sliding_attention"
        for layer in range(depth)
    ]
    window = {"mask": "window", "mask_options": FrozenOptions(size=settings["sliding_window"])}
    local = {**window, "position_options": _rotation(settings, "sliding_attention")}
    letters = "".join(_LETTERS[kind] for kind in kinds)
    plain = {"sliding_window": None, "hidden_act": settings["hidden_activation"]}
    return make_llama(
        {"tie_word_embeddings": True, **settings, **plain, **_NO_ROTATION}
    ).with_options(
        position_options=_rotation(settings, "full_attention" if "G" in letters else kinds[0]),
        layers=letters if "L" in letters else "",
        layer_types=FrozenOptions({"L": FrozenOptions(local)} if "L" in letters else {}),
        attention_scale=settings["query_pre_attn_scalar"] ** -0.5,
        query_key_norm="zero_centred_rms_norm",
        norm="zero_centred_rms_norm",
        wiring="sandwich",
        scale_embeddings=True,
    )


def _rotation(settings: Settings, kind: str) -> FrozenOptions:
    """Returns the rotation of a kind of layer; old files state the global one as others do."""
    rope = (settings.get("rope_parameters") or {}).get(kind)
    if rope is None:
        is_global = kind == "full_attention"
        rope = (settings.get("rope_scaling") or {}) if is_global else {}
        rope = {**rope, "rope_theta": settings.get(_OLD_THETA[kind], _THETA[kind])}
    return rotation_of({"rope_theta": _THETA[kind], "rope_parameters": rope})


def _describe(model: Decoder) -> dict[str, Any]:
    layers = Described(model.model).layers()
    models = dict(layers)
    kind_of = {
        letter: "sliding_attention" if one.mask == "window" else "full_attention"
        for letter, one in models.items()
    }
    by_kind = {kind: models[letter] for letter, kind in kind_of.items()}
    ropes = {kind: rotation_settings(by_kind.get(kind, model)) for kind in _LETTERS}
    local = by_kind.get("sliding_attention")
    window = {} if local is None else options_in_effect(local.options, "mask")
    described = describe_llama(model)
    scale = model.attention_scale or described["head_dim"] ** -0.5
    for key in ("hidden_act", "mlp_bias", "rope_theta", "rope_parameters"):
        described.pop(key, None)
    return described | {
        "model_type": "gemma3_text",
        "hidden_activation": their_activation(model),
        "query_pre_attn_scalar": round(scale**-2),
        "layer_types": [kind_of[letter] for letter, _ in layers],
        "sliding_window": window.get("size", model.max_length),
        "rope_parameters": {k: rope.get("rope_parameters", {}) for k, rope in ropes.items()},
    }


_NORMS = QUERY_KEY_NORMS | {
    "attention_norm": "input_layernorm",
    "attention_out_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_out_norm": "post_feedforward_layernorm",
}


ROWS = {
    "Gemma3ForCausalLM": Architecture(
        _make,
        _describe,
        functools.partial(block_entries, norms=_NORMS),
        Decoder,
        prefix="model.",
        heads=("lm_head.",),
        required={
            "attention_bias": False,
            "attn_logit_softcapping": None,
            "final_logit_softcapping": None,
            "use_bidirectional_attention": False,
        },
        tied={"lm_head.weight": "embed_tokens.weight"},
    ),
}

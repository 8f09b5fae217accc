"""Llama, Mistral, Phi-3, Qwen2 and 3, SmolLM3 as Decoders: RMS norm, gated, rotary positions.

Touvron et al. 2023, arXiv:2302.13971; Jiang et al. 2023, arXiv:2310.06825 (a sliding window); Abdin
et al. 2024, arXiv:2404.14219; Qwen team 2025, arXiv:2505.09388 (norms of queries and keys); SmolLM3
(Hugging Face 2025) has no positions in every fourth layer (Yang et al. 2025, arXiv:2501.18795).
"""

from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.architecture import (
    NAMES_OF_TEXT,
    Architecture,
    Settings,
    output_layer,
    rotation_of,
    rotation_settings,
)
from transformer_jax.interop.layouts import SAME, TRANSPOSED, Table, within
from transformer_jax.models import Decoder
from transformer_jax.models.effect import Described, options_in_effect

_NAMES = NAMES_OF_TEXT | {
    "num_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "norm_epsilon": "rms_norm_eps",
    "attention_dropout_rate": "attention_dropout",
}


def llama_fields(settings: Settings, rotation: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns the fields of a Decoder that Llama and similar models fix, with their rotation."""
    return {
        "position": "rotary",
        "position_options": rotation_of(settings) if rotation is None else rotation,
        "feed_forward": "gated",
        "norm": "rms_norm",
        "use_bias": False,
        "tie_embeddings": settings.get("tie_word_embeddings", False),
    }


def llama_settings(model: Decoder) -> dict[str, Any]:
    """Returns Llama's settings for a Decoder, besides those in Architecture.names."""
    return {
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": model.tie_embeddings,
        **rotation_settings(model),
    }


def _mistral_fields(settings: Settings) -> dict[str, Any]:
    window = settings["sliding_window"]
    _refuse_layers(settings, "full_attention" if window is None else "sliding_attention")
    masked = {} if window is None else {"mask": "window", "mask_options": {"size": window}}
    return llama_fields(settings) | masked


def _mistral_settings(model: Decoder) -> dict[str, Any]:
    window = options_in_effect(model.options, "mask")["size"] if model.mask == "window" else None
    return llama_settings(model) | {"sliding_window": window}


def _phi3_fields(settings: Settings) -> dict[str, Any]:
    rotation = rotation_of(settings, "partial_rotary_factor")
    return _mistral_fields(settings) | {"position_options": rotation}


def _refuse_layers(settings: Settings, kind: str) -> None:
    if set(types := settings.get("layer_types") or ()) - {kind}:
        raise InvalidInput(f"config.json: layer_types={types}: expected {kind} alone")


def _qwen_fields(settings: Settings) -> dict[str, Any]:
    _refuse_layers(settings, "full_attention")
    return llama_fields(settings)


def _smollm3_fields(settings: Settings) -> dict[str, Any]:
    every, depth = settings.get("no_rope_layer_interval", 4), settings["num_hidden_layers"]
    turned = settings.get("no_rope_layers") or [(n + 1) % every != 0 for n in range(depth)]
    _refuse_layers(settings, "full_attention")
    letters = "".join("R" if turns else "N" for turns in turned)
    if len(letters) != depth:
        raise InvalidInput(f"config.json: no_rope_layers={turned}: expected {depth} layers")
    if "R" not in letters:
        return llama_fields(settings, {}) | {"position": "none"}
    layered = {"layers": letters, "layer_types": {"N": {"position": "none"}}}
    return llama_fields(settings) | (layered if "N" in letters else {})


def _smollm3_settings(model: Described) -> dict[str, Any]:
    turned = [int(layer.position == "rotary") for _, layer in Described(model.model).layers()]
    settings = {"use_sliding_window": False, "no_rope_layers": turned}
    return {**llama_settings(model), **settings, "layer_types": ["full_attention"] * len(turned)}


_NORMS: Table = {
    "attention_norm": "input_layernorm",
    "feed_forward_norm": "post_attention_layernorm",
}
QUERY_KEY_NORMS: Table = {
    "attention/query_norm": "self_attn.q_norm",
    "attention/key_norm": "self_attn.k_norm",
}


_KERNELS: Table = {
    "attention/query": "self_attn.q_proj",
    "attention/key": "self_attn.k_proj",
    "attention/value": "self_attn.v_proj",
    "attention/out": "self_attn.o_proj",
    "feed_forward/gate": "mlp.gate_proj",
    "feed_forward/up": "mlp.up_proj",
    "feed_forward/down": "mlp.down_proj",
}
_PHI3_KERNELS: Table = {
    "attention/query+key+value": "self_attn.qkv_proj",
    "attention/out": "self_attn.o_proj",
    "feed_forward/gate+up": "mlp.gate_up_proj",
    "feed_forward/down": "mlp.down_proj",
}


def llama_table(model: Decoder, norms: Table, kernels: Table = _KERNELS) -> Table:
    """Returns the table of a model with these kernels, Llama's by default, and these norms."""
    return {
        "token_embedding": "embed_tokens",
        **within("block_#", "layers.#", kernels | norms),
        "final_norm": "norm",
        **output_layer(model),
    }


def _qwen2_table(model: Decoder) -> Table:
    """Returns the table of a model in which queries, keys and values alone have biases."""
    table: Table = {}
    for path, theirs in llama_table(model, _NORMS).items():
        module = path.rpartition("/")[2]
        if module.endswith(("embedding", "kernel")):
            table[path] = theirs
            continue
        is_norm = module.endswith("norm")
        layout = SAME if is_norm else TRANSPOSED
        table[f"{path}/{'scale' if is_norm else 'kernel'}"] = (f"{theirs}.weight", layout)
        if module in ("query", "key", "value"):
            table[f"{path}/bias"] = f"{theirs}.bias"
    return table


LLAMA = Architecture(
    Decoder,
    "llama",
    _NAMES,
    llama_fields,
    llama_settings,
    lambda model: llama_table(model, _NORMS),
    prefix="model.",
    heads=("lm_head.",),
    required={"attention_bias": False, "mlp_bias": False},
    not_read=("layers.*.self_attn.rotary_emb.inv_freq",),
    tied={"lm_head.weight": "embed_tokens.weight"},
)

ROWS = {
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA._replace(
        model_type="mistral", fields=_mistral_fields, settings=_mistral_settings
    ),
    "Phi3ForCausalLM": LLAMA._replace(
        model_type="phi3",
        names=_NAMES | {"dropout_rate": "resid_pdrop"},
        fields=_phi3_fields,
        settings=_mistral_settings,
        table=lambda model: llama_table(model, _NORMS, _PHI3_KERNELS),
        required={},
    ),
    "Qwen2ForCausalLM": LLAMA._replace(
        model_type="qwen2",
        fields=lambda settings: {**_qwen_fields(settings), "use_bias": True},
        settings=lambda model: {
            "tie_word_embeddings": model.tie_embeddings,
            "use_sliding_window": False,
            **rotation_settings(model),
        },
        table=_qwen2_table,
        required={"use_sliding_window": False},
        zeros=r"block_\d+/(attention/out|feed_forward/\w+)/bias",
    ),
    "Qwen3ForCausalLM": LLAMA._replace(
        model_type="qwen3",
        fields=lambda settings: {**_qwen_fields(settings), "query_key_norm": "rms_norm"},
        settings=lambda model: {**llama_settings(model), "use_sliding_window": False},
        table=lambda model: llama_table(model, _NORMS | QUERY_KEY_NORMS),
        required={"attention_bias": False, "use_sliding_window": False},
    ),
    "SmolLM3ForCausalLM": LLAMA._replace(
        model_type="smollm3",
        fields=_smollm3_fields,
        settings=_smollm3_settings,
        required={**LLAMA.required, "use_sliding_window": False},
    ),
}

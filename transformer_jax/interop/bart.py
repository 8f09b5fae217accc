"""BART and Marian as EncoderDecoders.

Lewis et al. 2020, arXiv:1910.13461; Junczys-Dowmunt et al. 2018, arXiv:1804.00344.
"""

from typing import Any

import numpy as np

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.architecture import Architecture, Settings
from transformer_jax.interop.layouts import Table, leading_ones, rows_from, within
from transformer_jax.models import EncoderDecoder
from transformer_jax.positions import sinusoidal_positions

_NAMES_OF_BOTH_SIDES = {
    "depth": "encoder_layers",
    "num_heads": "encoder_attention_heads",
    "mlp_dim": "encoder_ffn_dim",
}
_NAMES = _NAMES_OF_BOTH_SIDES | {
    "vocab_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "width": "d_model",
    "activation": "activation_function",
    "dropout_rate": "dropout",
    "attention_dropout_rate": "attention_dropout",
}


def _side(side: str) -> Table:
    block: Table = {
        "attention_norm": "self_attn_layer_norm",
        "feed_forward/up": "fc1",
        "feed_forward/down": "fc2",
        "feed_forward_norm": "final_layer_norm",
    }
    attentions = {"attention": "self_attn"}
    if side == "decoder":
        attentions["cross_attention"] = "encoder_attn"
        block["cross_attention_norm"] = "encoder_attn_layer_norm"
    maps: Table = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    for ours, theirs in attentions.items():
        block |= within(ours, theirs, maps)
    return within(f"{side}/block_#", f"{side}.layers.#", block)


_MARIANS_TABLE: Table = {
    "token_embedding": "shared",
    "logits_bias/bias": ("final_logits_bias", leading_ones(1)),
    **_side("encoder"),
    **_side("decoder"),
}
_TABLE: Table = {
    **_MARIANS_TABLE,
    # Their positions begin with two rows for padding, which no position reads.
    "encoder/positions": ("encoder.embed_positions", rows_from(2)),
    "decoder/positions": ("decoder.embed_positions", rows_from(2)),
    "encoder/embedding_norm": "encoder.layernorm_embedding",
    "decoder/embedding_norm": "decoder.layernorm_embedding",
}


def _fields(settings: Settings) -> dict[str, Any]:
    return {
        "position": "learned",
        "embedding_norm": True,
        "scale_embeddings": bool(settings.get("scale_embedding", False)),
        "output_bias": True,
    }


def _marian_fields(settings: Settings) -> dict[str, Any]:
    other, size = settings.get("decoder_vocab_size"), settings["vocab_size"]
    if other not in (None, size):
        raise InvalidInput(f"config.json: decoder_vocab_size={other}: expected vocab_size {size}")
    return {
        **_fields(settings),
        **{"position": "sinusoidal", "position_options": {"rms": 0.5**0.5, "in_halves": True}},
        "embedding_norm": False,
    }


def _marians_positions(model: Any) -> dict[str, np.ndarray]:
    table = np.asarray(sinusoidal_positions(model.max_length, model.options.width))
    halves = np.concatenate([table[:, ::2], table[:, 1::2]], axis=1)
    return {f"{side}.embed_positions.weight": halves for side in ("encoder", "decoder")}


_BART = Architecture(
    EncoderDecoder,
    "bart",
    _NAMES,
    _fields,
    lambda model: {"is_encoder_decoder": True, "scale_embedding": model.scale_embeddings},
    lambda _: _TABLE,
    prefix="model.",
    heads=("lm_head.", "final_logits_bias"),
    required={"tie_word_embeddings": True},
    tied={
        "lm_head.weight": "shared.weight",
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
    sides={name: name.replace("encoder", "decoder") for name in _NAMES_OF_BOTH_SIDES.values()},
)

ROWS = {
    "BartForConditionalGeneration": _BART,
    "MarianMTModel": _BART._replace(
        model_type="marian",
        fields=_marian_fields,
        settings=lambda model: {
            **_BART.settings(model),
            # Theirs are numbers in a vocabulary of 58,101; the caller knows those of this one.
            **dict.fromkeys(("pad_token_id", "eos_token_id", "forced_eos_token_id")),
        },
        table=lambda _: _MARIANS_TABLE,
        required={"tie_word_embeddings": True, "share_encoder_decoder_embeddings": True},
        constants=_marians_positions,
    ),
}

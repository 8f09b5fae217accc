"""T5 as an EncoderDecoder, and its encoder alone: Raffel et al. 2020, arXiv:1910.10683.

In version 1.0 the output layer is the embedding, and logits are divided by sqrt(width). In version
1.1, also used by Flan-T5, the output layer has its own parameters, and logits are not divided.
"""

from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.architecture import Architecture, Settings, entry_for
from transformer_jax.interop.layouts import TRANSPOSED, Table, within
from transformer_jax.models import Encoder, EncoderDecoder

# their feed_forward_proj -> our feed_forward and activation
_FEED_FORWARDS = {
    "relu": ("mlp", "relu"),
    "gated-gelu": ("gated", "gelu_tanh"),
    "gated-silu": ("gated", "silu"),
}
_NAMES = {
    "vocab_size": "vocab_size",
    "max_length": "n_positions",
    "width": "d_model",
    "depth": "num_layers",
    "num_heads": "num_heads",
    "head_dim": "d_kv",
    "mlp_dim": "d_ff",
    "norm_epsilon": "layer_norm_epsilon",
    "dropout_rate": "dropout_rate",
}


def _fields(settings: Settings) -> dict[str, Any]:
    projection = settings.get("feed_forward_proj", "relu")  # version 1.0's files leave it out
    feed_forward, activation = entry_for(_FEED_FORWARDS, "feed_forward_proj", projection)
    implied = {"gated-gelu": "gelu_new"}.get(projection, projection.removeprefix("gated-"))
    their_activation = settings.get("dense_act_fn", implied)  # transformers uses this one
    if their_activation != implied:
        raise InvalidInput(
            f"config.json: dense_act_fn={their_activation}: expected {implied}, as "
            f"feed_forward_proj={projection} implies"
        )
    return {
        "position": "t5",
        "position_options": {
            "num_buckets": settings["relative_attention_num_buckets"],
            "max_distance": settings.get("relative_attention_max_distance", 128),
        },
        "attention_scale": 1.0,
        "feed_forward": feed_forward,
        "activation": activation,
        "norm": "rms_norm",
        "embedding_norm": False,
        "wiring": "pre",
        "use_bias": False,
    }


def _t5_fields(settings: Settings) -> dict[str, Any]:
    # Files of transformers 5 state that every T5 is tied; scale_decoder_outputs tells the version.
    is_first = settings.get("scale_decoder_outputs", settings.get("tie_word_embeddings", True))
    return {
        **_fields(settings),
        "tie_output": bool(is_first),
        "scale_logits": bool(is_first),
        "scale_embeddings": False,
    }


def _settings(model: Encoder | EncoderDecoder) -> dict[str, Any]:
    chosen = (model.feed_forward, model.activation)
    names = [name for name, feed_forward in _FEED_FORWARDS.items() if feed_forward == chosen]
    if not names:
        pairs = ", ".join(map(str, _FEED_FORWARDS.values()))
        raise InvalidInput(f"feed_forward, activation: expected one of {pairs}, got {chosen}")
    options = {"num_buckets": 32, "max_distance": 128, **model.position_options}
    return {
        "relative_attention_num_buckets": options["num_buckets"],
        "relative_attention_max_distance": options["max_distance"],
        "feed_forward_proj": names[0],
    }


def _side(model: Encoder | EncoderDecoder, side: str, our_prefix: str) -> Table:
    attentions = {"attention": "SelfAttention"}
    if side == "decoder":
        attentions["cross_attention"] = "EncDecAttention"
    block: Table = {}
    for part, (ours, theirs) in enumerate(attentions.items()):
        maps: Table = {"query": "q", "key": "k", "value": "v", "out": "o"}
        block |= within(ours, f"{part}.{theirs}", maps)
        block[f"{ours}_norm"] = f"{part}.layer_norm"
    maps = {"up": "wi", "down": "wo"}
    if model.feed_forward == "gated":
        maps = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
    part = len(attentions)
    block |= within("feed_forward", f"{part}.DenseReluDense", maps)
    block["feed_forward_norm"] = f"{part}.layer_norm"
    return {
        f"{our_prefix}positions": f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias",
        **within(f"{our_prefix}block_#", f"{side}.block.#.layer", block),
        f"{our_prefix}final_norm": f"{side}.final_layer_norm",
    }


_ENCODER = Architecture(
    Encoder,
    "t5",
    _NAMES,
    lambda settings: {**_fields(settings), "num_classes": 0},
    _settings,
    lambda model: {"token_embedding": "shared", **_side(model, "encoder", "")},
    prefix="",
    tied={f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")},
)

ROWS = {
    "T5EncoderModel": _ENCODER,
    "T5ForConditionalGeneration": _ENCODER._replace(
        model=EncoderDecoder,
        fields=_t5_fields,
        settings=lambda model: {
            **_settings(model),
            "is_encoder_decoder": True,
            "tie_word_embeddings": model.tie_output,
        },
        table=lambda model: {
            "token_embedding": "shared",
            **_side(model, "encoder", "encoder/"),
            **_side(model, "decoder", "decoder/"),
            **({} if model.tie_output else {"output/kernel": ("lm_head.weight", TRANSPOSED)}),
        },
        required={"is_encoder_decoder": True},
        # In old files: a table that cross-attention has but never reads.
        not_read=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
        tied={**_ENCODER.tied, "lm_head.weight": "shared.weight"},
        sides={"num_layers": "num_decoder_layers"},
    ),
}

"""T5 as an EncoderDecoder, and its encoder alone: Raffel et al. 2020, arXiv:1910.10683.

In version 1.0 the output layer is the embedding, and logits are divided by sqrt(width). In version
1.1, Flan-T5's, the output layer has parameters of its own and nothing is divided.
"""

from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.architecture import Architecture, Settings, refuse_unlike_sides
from transformer_jax.interop.layouts import Entry, embedding, kernel, scale
from transformer_jax.models import Encoder, EncoderDecoder
from transformer_jax.options import FrozenOptions

# their feed_forward_proj -> our feed_forward and activation
_FEED_FORWARDS = {
    "relu": ("mlp", "relu"),
    "gated-gelu": ("gated", "gelu_tanh"),
    "gated-silu": ("gated", "silu"),
}
_LENGTH = 512  # T5 stores none: the length that it was trained on


def _fields(settings: Settings) -> dict[str, Any]:
    """Settings that both T5 models share."""
    projection = settings.get("feed_forward_proj", "relu")  # 1.0's files do not say it
    if projection not in _FEED_FORWARDS:
        allowed = ", ".join(_FEED_FORWARDS)
        raise InvalidInput(
            f"config.json: feed_forward_proj={projection}: expected one of {allowed}"
        )
    feed_forward, activation = _FEED_FORWARDS[projection]
    implied = {"gated-gelu": "gelu_new"}.get(projection, projection.removeprefix("gated-"))
    their_activation = settings.get("dense_act_fn", implied)  # transformers uses this one
    if their_activation != implied:
        raise InvalidInput(
            f"config.json: dense_act_fn={their_activation}: expected {implied}, as "
            f"feed_forward_proj={projection} has"
        )
    return {
        "vocab_size": settings["vocab_size"],
        "max_length": settings.get("n_positions", _LENGTH),
        "width": settings["d_model"],
        "depth": settings["num_layers"],
        "num_heads": settings["num_heads"],
        "head_dim": settings["d_kv"],
        "mlp_dim": settings["d_ff"],
        "position": "t5",
        "position_options": FrozenOptions(
            {
                "num_buckets": settings["relative_attention_num_buckets"],
                "max_distance": settings.get("relative_attention_max_distance", 128),
            }
        ),
        "attention_scale": 1.0,
        "feed_forward": feed_forward,
        "activation": activation,
        "norm": "rms_norm",
        "norm_options": {"epsilon": settings["layer_norm_epsilon"]},
        "embedding_norm": False,
        "wiring": "pre",
        "use_bias": False,
        "dropout_rate": settings.get("dropout_rate", 0.0),
    }


def _make_encoder(settings: Settings) -> Encoder:
    return Encoder.of(num_classes=0, **_fields(settings))


def _make_t5(settings: Settings) -> EncoderDecoder:
    refuse_unlike_sides(settings, "num_layers", "num_decoder_layers")
    # Files of transformers 5 say of every T5 that it is tied, and here which version it is.
    is_first = settings.get("scale_decoder_outputs", settings.get("tie_word_embeddings", True))
    return EncoderDecoder.of(
        tie_output=bool(is_first),
        scale_logits=bool(is_first),
        scale_embeddings=False,
        **_fields(settings),
    )


def _describe_encoder(model: Encoder | EncoderDecoder) -> dict[str, Any]:
    chosen = (model.feed_forward, model.activation)
    names = [name for name, feed_forward in _FEED_FORWARDS.items() if feed_forward == chosen]
    if not names:
        raise InvalidInput(f"feed_forward: expected one of {_FEED_FORWARDS}, got {chosen}")
    options = {"num_buckets": 32, "max_distance": 128, **model.position_options}
    return {
        "model_type": "t5",
        "vocab_size": model.vocab_size,
        "n_positions": model.max_length,
        "d_model": model.width,
        "num_layers": model.depth,
        "num_heads": model.num_heads,
        "d_kv": model.head_dim or model.width // model.num_heads,
        "d_ff": model.mlp_dim or round(model.width * (8 / 3 if names[0] != "relu" else 4)),
        "relative_attention_num_buckets": options["num_buckets"],
        "relative_attention_max_distance": options["max_distance"],
        "feed_forward_proj": names[0],
        "layer_norm_epsilon": model.norm_epsilon,
        "dropout_rate": model.dropout_rate,
    }


def _describe_t5(model: EncoderDecoder) -> dict[str, Any]:
    return {
        **_describe_encoder(model),
        "num_decoder_layers": model.depth,
        "is_encoder_decoder": True,
        "tie_word_embeddings": model.tie_output,
    }


def _encoder_entries(model: Encoder) -> list[Entry]:
    return embedding("token_embedding", "shared.weight") + _stack_entries(model, "encoder", "")


def _t5_entries(model: EncoderDecoder) -> list[Entry]:
    return [
        *embedding("token_embedding", "shared.weight"),
        *_stack_entries(model, "encoder", "encoder/"),
        *_stack_entries(model, "decoder", "decoder/"),
        *([] if model.tie_output else kernel("output", "lm_head")),
    ]


def _stack_entries(model: Encoder | EncoderDecoder, side: str, inside: str) -> list[Entry]:
    """Returns the arrays of one side, whose parameters here are `inside` a name."""
    attentions = {"attention": "SelfAttention"}
    if side == "decoder":
        attentions["cross_attention"] = "EncDecAttention"
    maps = {"up": "wi", "down": "wo"}
    if model.feed_forward == "gated":
        maps = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
    table = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    entries = embedding(f"{inside}positions", table)
    for layer in range(model.depth):
        our_path, prefix = f"{inside}block_{layer}", f"{side}.block.{layer}.layer"
        for part, (name, their_name) in enumerate(attentions.items()):
            inner = f"{prefix}.{part}.{their_name}"
            for map_name, initial in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
                entries += kernel(f"{our_path}/{name}/{map_name}", f"{inner}.{initial}")
            entries += scale(f"{our_path}/{name}_norm", f"{prefix}.{part}.layer_norm")
        last = f"{prefix}.{len(attentions)}"
        for name, their_name in maps.items():
            entries += kernel(
                f"{our_path}/feed_forward/{name}", f"{last}.DenseReluDense.{their_name}"
            )
        entries += scale(f"{our_path}/feed_forward_norm", f"{last}.layer_norm")
    return entries + scale(f"{inside}final_norm", f"{side}.final_layer_norm")


_TIED = {f"{side}.embed_tokens.weight": "shared.weight" for side in ("encoder", "decoder")}

ROWS = {
    "T5EncoderModel": Architecture(
        _make_encoder, _describe_encoder, _encoder_entries, Encoder, prefix="", tied=_TIED
    ),
    "T5ForConditionalGeneration": Architecture(
        _make_t5,
        _describe_t5,
        _t5_entries,
        EncoderDecoder,
        prefix="",
        required={"is_encoder_decoder": True},
        # Of old files: a table that cross-attention has and never reads.
        not_read=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
        tied={**_TIED, "lm_head.weight": "shared.weight"},
    ),
}

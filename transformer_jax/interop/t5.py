"""T5's encoder as an Encoder: Raffel et al. 2020, arXiv:1910.10683."""

from typing import Any

from flax.core import FrozenDict

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.architecture import Architecture, Settings
from transformer_jax.interop.layouts import Entry, embedding, kernel, scale
from transformer_jax.models import Encoder

# their feed_forward_proj -> our feed_forward and activation
_FEED_FORWARDS = {
    "relu": ("mlp", "relu"),
    "gated-gelu": ("gated", "gelu_tanh"),
    "gated-silu": ("gated", "silu"),
}
_LENGTH = 512  # T5 stores none: the length that it was trained on


def _make_t5(settings: Settings) -> Encoder:
    projection = settings["feed_forward_proj"]
    if projection not in _FEED_FORWARDS:
        known = ", ".join(_FEED_FORWARDS)
        raise InvalidInput(f"config.json: feed_forward_proj={projection}: expected one of {known}")
    feed_forward, activation = _FEED_FORWARDS[projection]
    return Encoder(
        vocab_size=settings["vocab_size"],
        max_length=settings.get("n_positions", _LENGTH),
        num_classes=0,
        width=settings["d_model"],
        depth=settings["num_layers"],
        num_heads=settings["num_heads"],
        head_dim=settings["d_kv"],
        mlp_dim=settings["d_ff"],
        position="t5",
        position_options=FrozenDict(
            {
                "num_buckets": settings["relative_attention_num_buckets"],
                "max_distance": settings.get("relative_attention_max_distance", 128),
            }
        ),
        attention_scale=1.0,
        feed_forward=feed_forward,
        activation=activation,
        norm="rms_norm",
        norm_epsilon=settings["layer_norm_epsilon"],
        embedding_norm=False,
        wiring="pre",
        use_bias=False,
        dropout_rate=settings.get("dropout_rate", 0.0),
    )


def _describe_t5(model: Encoder) -> dict[str, Any]:
    chosen = (model.feed_forward, model.activation)
    theirs = [name for name, ours in _FEED_FORWARDS.items() if ours == chosen]
    if not theirs:
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
        "d_ff": model.mlp_dim or 4 * model.width,
        "relative_attention_num_buckets": options["num_buckets"],
        "relative_attention_max_distance": options["max_distance"],
        "feed_forward_proj": theirs[0],
        "layer_norm_epsilon": model.norm_epsilon,
        "dropout_rate": model.dropout_rate,
    }


def _t5_entries(model: Encoder) -> list[Entry]:
    first = "encoder.block.0.layer.0.SelfAttention"
    entries = embedding("token_embedding", "shared.weight")
    entries += embedding("positions", f"{first}.relative_attention_bias.weight")
    maps = {"up": "wi", "down": "wo"}
    if model.feed_forward == "gated":
        maps = {"gate": "wi_0", "up": "wi_1", "down": "wo"}
    for layer in range(model.depth):
        ours, theirs = f"block_{layer}", f"encoder.block.{layer}.layer"
        for name, initial in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o")):
            entries += kernel(f"{ours}/attention/{name}", f"{theirs}.0.SelfAttention.{initial}")
        for name, their_name in maps.items():
            place = f"{theirs}.1.DenseReluDense.{their_name}"
            entries += kernel(f"{ours}/feed_forward/{name}", place)
        entries += scale(f"{ours}/attention_norm", f"{theirs}.0.layer_norm")
        entries += scale(f"{ours}/feed_forward_norm", f"{theirs}.1.layer_norm")
    return entries + scale("final_norm", "encoder.final_layer_norm")


ROWS = {
    "T5EncoderModel": Architecture(
        _make_t5,
        _describe_t5,
        _t5_entries,
        Encoder,
        prefix="",
        tied={"encoder.embed_tokens.weight": "shared.weight"},
    )
}

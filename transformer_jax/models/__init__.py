"""Complete models, listed in MODELS under their names in configs."""

from typing import Any

from transformer_jax.options import imported

_HERE = "transformer_jax.models"
MODELS = {
    "decoder": f"{_HERE}.decoder:Decoder",
    "encoder": f"{_HERE}.encoder:Encoder",
    "encoder_decoder": f"{_HERE}.encoder_decoder:EncoderDecoder",
    "vision_transformer": f"{_HERE}.vision:VisionTransformer",
    "recurrent_decoder": f"{_HERE}.recurrent:RecurrentDecoder",
    "recurrent_encoder": f"{_HERE}.recurrent:RecurrentEncoder",
}
"""Architectures by name: "module:Class" strings that are imported when chosen."""


def __getattr__(name: str) -> Any:
    """Returns a model class, imported when used: `from transformer_jax.models import Decoder`."""
    for place in MODELS.values():
        if place.endswith(f":{name}"):
            return imported(place)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

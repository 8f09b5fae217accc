"""Whole models: what the parts add up to. MODELS names them for configs."""

from transformer_jax.models.decoder import Decoder
from transformer_jax.models.encoder import Encoder
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.vision import VisionTransformer

MODELS = {
    "decoder": Decoder,
    "encoder": Encoder,
    "encoder_decoder": EncoderDecoder,
    "vision_transformer": VisionTransformer,
    "recurrent_decoder": "transformer_jax.models.recurrent:RecurrentDecoder",
    "recurrent_encoder": "transformer_jax.models.recurrent:RecurrentEncoder",
}
"""Architectures by name: classes, or "module:Class" that is imported when it is chosen."""

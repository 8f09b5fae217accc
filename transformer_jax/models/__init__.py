"""Whole models: what the layers add up to. MODELS names them for configs."""

from transformer_jax.models.decoder import Decoder
from transformer_jax.models.encoder import Encoder
from transformer_jax.models.encoder_decoder import EncoderDecoder
from transformer_jax.models.recurrent import RecurrentDecoder, RecurrentEncoder
from transformer_jax.models.vision import VisionTransformer

MODELS = {
    "decoder": Decoder,
    "encoder": Encoder,
    "encoder_decoder": EncoderDecoder,
    "vision_transformer": VisionTransformer,
    "recurrent_decoder": RecurrentDecoder,
    "recurrent_encoder": RecurrentEncoder,
}

"""Sinusoidal positions in two dimensions, for patches of images."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.options import AboveOne, Positive
from transformer_jax.positions import PositionTerms, Sizes, sinusoids


class Sinusoidal2DPositions(nn.Module):
    """Sinusoids of a patch's row for half of the features, and of its column for the other half.

    As in MAE (He et al. 2022, arXiv:2111.06377) and big_vision. Tokens before the patches, such as
    a class token, have no position in the image; 0 is added to them.

    Attributes:
      rms: Root mean square, before training, of the vectors added to the embeddings.
      max_wavelength: Longest wavelength divided by 2 pi, in patches.
    """

    rms: Positive = 0.02
    max_wavelength: AboveOne = 10_000.0

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> an embedding [..., L, D]."""
        if sizes.grid is None:
            raise ValueError("position: sinusoidal_2d needs the patches of a vision transformer")
        if sizes.width % 4:
            raise ValueError(f"width: sinusoidal_2d needs a multiple of 4, got {sizes.width}")
        rows, columns = sizes.grid
        patches = positions - (sizes.max_length - rows * columns)
        halves = [
            sinusoids(places, sizes.width // 2, self.max_wavelength)
            for places in jnp.divmod(jnp.maximum(patches, 0), columns)
        ]
        table = jnp.concatenate(halves, axis=-1) * (self.rms * math.sqrt(2))
        return PositionTerms(embedding=jnp.where(patches[..., None] < 0, 0, table))

"""A component of my own: an encoding of positions."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.options import Positive
from transformer_jax.positions import PositionTerms, Sizes


class Mine(nn.Module):
    """Subtraction of the distance times a learned slope from the scores of each head.

    Attributes:
      initial: Initial slope; an option of the config.
    """

    initial: Positive = 0.1

    @nn.compact
    def __call__(self, positions, sizes: Sizes):
        """Returns a bias on the scores: [..., L] int -> [..., H, L, L]."""
        init = nn.initializers.constant(self.initial)
        slope = self.param("scale", init, (sizes.num_heads,))
        distance = jnp.abs(positions[..., :, None] - positions[..., None, :])
        return PositionTerms(bias=-slope[:, None, None] * distance[..., None, :, :])

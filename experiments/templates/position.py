"""A component of my own: what tells positions apart."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.layers.position_terms import PositionTerms
from transformer_jax.options import Positive


class Mine(nn.Module):
    """Takes a learned number times the distance off the scores, for each head.

    Attributes:
      num_heads: heads, supplied by the model.
      initial: that number at the start; an option of the config.
    """

    num_heads: int
    initial: Positive = 0.1

    @nn.compact
    def __call__(self, positions):
        """[..., L] int -> a bias [..., H, L, L]."""
        slope = self.param("scale", nn.initializers.constant(self.initial), (self.num_heads,))
        distance = jnp.abs(positions[..., :, None] - positions[..., None, :])
        return PositionTerms(bias=-slope[:, None, None] * distance[..., None, :, :])

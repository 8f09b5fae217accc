"""A component of my own: what tells positions apart."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.options import Positive
from transformer_jax.positions import PositionTerms, Sizes


class Mine(nn.Module):
    """Takes a learned number times the distance off the scores, for each head.

    Attributes:
      initial: That number at the start; an option of the config.
    """

    initial: Positive = 0.1

    @nn.compact
    def __call__(self, positions, sizes: Sizes):
        """[..., L] int -> a bias [..., H, L, L]."""
        init = nn.initializers.constant(self.initial)
        slope = self.param("scale", init, (sizes.num_heads,))
        distance = jnp.abs(positions[..., :, None] - positions[..., None, :])
        return PositionTerms(bias=-slope[:, None, None] * distance[..., None, :, :])

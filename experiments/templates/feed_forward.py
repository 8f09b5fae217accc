"""A component of my own: the layer on each position alone."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.layers.linear import Initializer, Linear
from transformer_jax.options import Positive


class Mine(nn.Module):
    """Two maps with a sine between them.

    Attributes:
      kernel_init: initial values, supplied by the model.
      frequency: of the sine; an option of the config.
    """

    kernel_init: Initializer = nn.initializers.normal(0.02)
    frequency: Positive = 1.0

    @nn.compact
    def __call__(self, inputs):
        """[..., D] -> [..., D]."""
        width = inputs.shape[-1]
        hidden = Linear(4 * width, False, self.kernel_init, name="up")(inputs)
        hidden = jnp.sin(self.frequency * hidden).astype(inputs.dtype)
        return Linear(width, False, self.kernel_init, name="down")(hidden).astype(inputs.dtype)

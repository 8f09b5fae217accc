"""A component of my own: a normalisation."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.options import Positive


class Mine(nn.Module):
    """Division by the mean absolute value: x / mean |x| * scale.

    Attributes:
      use_bias: Whether the model has biases; every norm receives this field.
      floor: Added to the mean; an option of the config.
    """

    use_bias: bool = False
    floor: Positive = 1e-5

    @nn.compact
    def __call__(self, inputs):
        """[..., D] -> [..., D]."""
        scale = self.param("scale", nn.initializers.ones, inputs.shape[-1:])
        wide = inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))
        mean = jnp.abs(wide).mean(-1, keepdims=True) + self.floor
        return (wide / mean * scale).astype(inputs.dtype)

"""A tanh instead of a norm."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.norms import affine, widen
from transformer_jax.options import InitialSize


class DynamicTanh(nn.Module):
    """tanh(alpha x) * scale + bias, alpha one learned number: no statistics at all.

    Zhu et al. 2025, arXiv:2503.10622, equation 2.

    Attributes:
      use_bias: Whether there is a bias.
      initial_alpha: Initial alpha; the paper's 0.5.
    """

    use_bias: bool = True
    initial_alpha: InitialSize = 0.5

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        width = inputs.shape[-1:]
        alpha = self.param("alpha", nn.initializers.constant(self.initial_alpha), (1,))
        scale = self.param("scale", nn.initializers.ones, width)
        bias = self.param("bias", nn.initializers.zeros, width) if self.use_bias else None
        return affine(jnp.tanh(alpha * widen(inputs)), scale, bias, inputs.dtype)

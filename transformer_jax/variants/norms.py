"""Less common norms."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.norms import RMSNorm, affine, rms_norm
from transformer_jax.options import InitialSize
from transformer_jax.shapes import widen


class DynamicTanh(nn.Module):
    """tanh(alpha x) * scale + bias, without statistics; alpha is one learned number.

    Zhu et al. 2025, arXiv:2503.10622, equation 2.

    Attributes:
      use_bias: Whether there is a bias.
      initial_alpha: Initial value of alpha; 0.5 in the paper.
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


class ZeroCentredRMSNorm(RMSNorm):
    """Root-mean-square norm with scale 1 + w; w starts at 0, so weight decay pulls the scale to 1.

    As in Gemma (Gemma team 2024, arXiv:2403.08295, in its published code).
    """

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        scale = self.param("scale", nn.initializers.zeros, inputs.shape[-1:])
        return rms_norm(inputs, 1 + scale, self.epsilon)

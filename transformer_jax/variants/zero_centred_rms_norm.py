"""Gemma's RMS norm, whose scale decays to 1."""

import flax.linen as nn
from jax import Array

from transformer_jax.norms import rms_norm
from transformer_jax.options import Positive


class ZeroCentredRMSNorm(nn.Module):
    """Root-mean-square norm whose scale is 1 and something learned, from 0: decay pulls it to 1.

    Gemma's (Gemma team 2024, arXiv:2403.08295, in its published code).

    Attributes:
      epsilon: Added to the mean square.
      use_bias: Ignored: every norm is made with it, and this one has no bias.
    """

    epsilon: Positive = 1e-5
    use_bias: bool = False

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        scale = self.param("scale", nn.initializers.zeros, inputs.shape[-1:])
        return rms_norm(inputs, 1 + scale, self.epsilon)

"""Normalisation over the features of each position."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.options import InitialSize


def layer_norm(
    inputs: Array, scale: Array | None = None, bias: Array | None = None, epsilon: float = 1e-5
) -> Array:
    """Returns (x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis.

    Ba et al. 2016, arXiv:1607.06450, equation 3. Statistics are taken in float32 or wider, the
    variance from centred values (E[x^2] - E[x]^2 loses digits).

    Args:
      inputs: [..., D].
      scale: [D]; 1 if not given.
      bias: [D]; 0 if not given.
      epsilon: added to the variance; 1e-5 as in GPT-2 and PyTorch.
    Returns:
      [..., D], dtype of the inputs.
    """
    wide = _widen(inputs)
    centred = wide - wide.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return _affine(centred * jax.lax.rsqrt(variance + epsilon), scale, bias, inputs.dtype)


def rms_norm(inputs: Array, scale: Array | None = None, epsilon: float = 1e-5) -> Array:
    """Returns x / sqrt(mean(x^2) + epsilon) * scale over the last axis.

    Zhang and Sennrich 2019, arXiv:1910.07467, equation 4. Statistics in float32 or wider.

    Args:
      inputs: [..., D].
      scale: [D]; 1 if not given.
      epsilon: added to the mean square.
    Returns:
      [..., D], dtype of the inputs.
    """
    wide = _widen(inputs)
    mean_square = jnp.square(wide).mean(-1, keepdims=True)
    return _affine(wide * jax.lax.rsqrt(mean_square + epsilon), scale, None, inputs.dtype)


def _widen(inputs: Array) -> Array:
    return inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))


def _affine(normed: Array, scale: Array | None, bias: Array | None, dtype: jnp.dtype) -> Array:
    """Applies [D] parameters to [..., D] and returns to the dtype that came in."""
    if scale is not None:
        normed = normed * scale
    if bias is not None:
        normed = normed + bias
    return normed.astype(dtype)


class LayerNorm(nn.Module):
    """Layer norm (Ba et al. 2016, arXiv:1607.06450), learned scale from 1 and bias from 0."""

    epsilon: float = 1e-5
    use_bias: bool = True

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        width = inputs.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, width)
        bias = self.param("bias", nn.initializers.zeros, width) if self.use_bias else None
        return layer_norm(inputs, scale, bias, self.epsilon)


class RMSNorm(nn.Module):
    """Root-mean-square norm (Zhang and Sennrich 2019, arXiv:1910.07467), learned scale, from 1."""

    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        scale = self.param("scale", nn.initializers.ones, inputs.shape[-1:])
        return rms_norm(inputs, scale, self.epsilon)


class ZeroCentredRMSNorm(nn.Module):
    """Root-mean-square norm whose scale is 1 and something learned, from 0: decay pulls it to 1.

    Gemma's (Gemma team 2024, arXiv:2403.08295, in its published code).
    """

    epsilon: float = 1e-5

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        scale = self.param("scale", nn.initializers.zeros, inputs.shape[-1:])
        return rms_norm(inputs, 1 + scale, self.epsilon)


class DynamicTanh(nn.Module):
    """tanh(alpha x) * scale + bias, alpha one learned number: no statistics at all.

    Zhu et al. 2025, arXiv:2503.10622, equation 2.

    Attributes:
      use_bias: whether there is a bias.
      initial_alpha: alpha at the start; the paper's 0.5.
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
        return _affine(jnp.tanh(alpha * _widen(inputs)), scale, bias, inputs.dtype)


class NoNorm(nn.Module):
    """Gives what it gets."""

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        return inputs


NORMS = {
    "layer_norm": LayerNorm,
    "rms_norm": RMSNorm,
    "zero_centred_rms_norm": ZeroCentredRMSNorm,
    "dynamic_tanh": DynamicTanh,
    "none": NoNorm,
}

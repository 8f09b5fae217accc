"""Normalisation over the features of each position."""

from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.linear import Checked
from transformer_jax.options import Positive
from transformer_jax.shapes import as_float, recomputed, widen


def layer_norm(
    inputs: Array, scale: Array | None = None, bias: Array | None = None, epsilon: float = 1e-5
) -> Array:
    """Returns (x - mean) / sqrt(variance + epsilon) * scale + bias over the last axis.

    Ba et al. 2016, arXiv:1607.06450, equation 3. Statistics are computed in float32 or wider, and
    the variance from centred values (E[x^2] - E[x]^2 loses digits).

    Args:
      inputs: [..., D].
      scale: [D]; 1 if None.
      bias: [D]; 0 if None.
      epsilon: Added to the variance; 1e-5 as in GPT-2 and PyTorch.
    Returns:
      [..., D], dtype of the inputs; float32 for integers.
    """
    wide, inputs = widen(inputs), as_float(inputs)
    centred = wide - wide.mean(-1, keepdims=True)
    variance = jnp.square(centred).mean(-1, keepdims=True)
    return affine(centred * jax.lax.rsqrt(variance + epsilon), scale, bias, inputs.dtype)


def rms_norm(inputs: Array, scale: Array | None = None, epsilon: float = 1e-5) -> Array:
    """Returns x / sqrt(mean(x^2) + epsilon) * scale over the last axis.

    Zhang and Sennrich 2019, arXiv:1910.07467, equation 4. Sums are in float32 or wider.

    Args:
      inputs: [..., D].
      scale: [D]; 1 if None.
      epsilon: Added to the mean square.
    Returns:
      [..., D], dtype of the inputs; float32 for integers.
    """
    wide, inputs = widen(inputs), as_float(inputs)
    mean_square = jnp.square(wide).mean(-1, keepdims=True)
    return affine(wide * jax.lax.rsqrt(mean_square + epsilon), scale, None, inputs.dtype)


def affine(normed: Array, scale: Array | None, bias: Array | None, dtype: jnp.dtype) -> Array:
    """Applies scale and bias, [D], to values [..., D], and casts the result to `dtype`."""
    for name, array in (("scale", scale), ("bias", bias)):
        if array is not None and jnp.shape(array) not in ((), normed.shape[-1:]):
            raise ValueError(f"{name}: expected {normed.shape[-1:]}, got {jnp.shape(array)}")
    if scale is not None:
        normed = normed * scale
    if bias is not None:
        normed = normed + bias
    return normed.astype(dtype)


class LayerNorm(Checked):
    """Layer norm (Ba et al. 2016, arXiv:1607.06450) with a learned scale and bias.

    The scale starts at 1 and the bias at 0.

    Attributes:
      epsilon: Added to the variance.
      use_bias: Whether there is a bias.
    """

    epsilon: Positive = 1e-5
    use_bias: bool = True

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        width = inputs.shape[-1:]
        scale = self.param("scale", nn.initializers.ones, width)
        bias = self.param("bias", nn.initializers.zeros, width) if self.use_bias else None
        return recomputed(partial(layer_norm, epsilon=self.epsilon), inputs, scale, bias)


class RMSNorm(Checked):
    """Root-mean-square norm (Zhang and Sennrich 2019, arXiv:1910.07467) with a learned scale.

    The scale starts at 1.

    Attributes:
      epsilon: Added to the mean square.
      use_bias: Ignored; every norm takes this argument, but this one has no bias.
    """

    epsilon: Positive = 1e-5
    use_bias: bool = False

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        scale = self.param("scale", nn.initializers.ones, inputs.shape[-1:])
        return recomputed(partial(rms_norm, epsilon=self.epsilon), inputs, scale)


class NoNorm(nn.Module):
    """No norm: returns its input.

    Attributes:
      use_bias: Ignored; every norm takes this argument.
    """

    use_bias: bool = False

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        return inputs


_VARIANTS = "transformer_jax.variants"
NORMS = {
    "layer_norm": LayerNorm,
    "rms_norm": RMSNorm,
    "zero_centred_rms_norm": f"{_VARIANTS}.norms:ZeroCentredRMSNorm",
    "dynamic_tanh": f"{_VARIANTS}.norms:DynamicTanh",
    "none": NoNorm,
}
"""Norms by name: classes, or "module:Class" strings that are imported when chosen.

Each is constructed with use_bias.
"""

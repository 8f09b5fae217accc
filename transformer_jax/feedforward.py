"""Feed-forward layers, applied to each position separately."""

import math
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.linear import Checked, Initializer, Linear
from transformer_jax.options import GivenCount
from transformer_jax.shapes import as_float, recomputed, widen
from transformer_jax.sites import site


def gelu(inputs: Array) -> Array:
    """Returns x * Phi(x) with the standard normal distribution function Phi: BERT's and ViT's GELU.

    Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2.
    """
    # As in PyTorch; jax.nn.gelu uses erfc, which takes twice as long on a CPU.
    wide, inputs = widen(inputs), as_float(inputs)
    return (wide * (0.5 + 0.5 * jax.lax.erf(wide * math.sqrt(0.5)))).astype(inputs.dtype)


def gelu_tanh(inputs: Array) -> Array:
    """Returns 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GELU as approximated in GPT-2."""
    return jax.nn.gelu(inputs, approximate=True)


def relu(inputs: Array) -> Array:
    """Returns max(x, 0), as in Vaswani et al. 2017, equation 2."""
    return jnp.maximum(inputs, 0)


def relu_squared(inputs: Array) -> Array:
    """Returns max(x, 0)^2 (So et al. 2021, arXiv:2109.08668, section 3)."""
    return jnp.square(relu(inputs))


def silu(inputs: Array) -> Array:
    """Returns x * sigmoid(x), also called swish (Ramachandran et al. 2017, arXiv:1710.05941)."""
    return jax.nn.silu(inputs)


ACTIVATIONS = {each.__name__: each for each in (gelu, gelu_tanh, relu, relu_squared, silu)}


class FeedForward(Checked):
    """Two affine maps with an activation between them, the same at every position.

    FFN(x) = activation(x W_1 + b_1) W_2 + b_2. Vaswani et al. 2017, equation 2.

    Attributes:
      mlp_dim: Number of hidden features, F; 4 * width if None.
      activation: Activation between the two maps.
      use_bias: Whether the maps have a bias.
      kernel_init: Initial values of the first kernel.
      out_init: Initial values of the second kernel; kernel_init if None.
      dtype: Computation dtype; promoted from inputs and parameters if None.
    """

    mlp_dim: GivenCount | None = None
    activation: Callable[[Array], Array] = gelu
    use_bias: bool = True
    kernel_init: Initializer = nn.initializers.normal(0.02)
    out_init: Initializer | None = None
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        width = inputs.shape[-1]
        mlp_dim = self.mlp_dim or 4 * width
        hidden = Linear(mlp_dim, self.use_bias, self.kernel_init, self.dtype, name="up")(inputs)
        out_init = self.out_init or self.kernel_init
        down = Linear(width, self.use_bias, out_init, self.dtype, name="down")
        return down(site(self, "hidden", recomputed(self.activation, hidden)))


class GatedFeedForward(FeedForward):
    """Gated feed-forward layer of three maps: SwiGLU with silu, GEGLU with gelu.

    FFN(x) = (activation(x W_gate) * (x W_up)) W_down. Shazeer 2020, arXiv:2002.05202, equation 6.

    Attributes:
      mlp_dim: Number of hidden features, F; 8/3 of the width if None, which gives as many
        parameters as two maps with 4 * width.
      activation: Activation of the gates. The other attributes are those of FeedForward.
    """

    activation: Callable[[Array], Array] = silu

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        width = inputs.shape[-1]
        mlp_dim = self.mlp_dim or round(8 * width / 3)
        read = [
            Linear(mlp_dim, self.use_bias, self.kernel_init, self.dtype, name=name)(inputs)
            for name in ("gate", "up")
        ]
        out_init = self.out_init or self.kernel_init
        down = Linear(width, self.use_bias, out_init, self.dtype, name="down")
        hidden = recomputed(lambda gate, up: self.activation(gate) * up, *read)
        return down(site(self, "hidden", hidden))


def no_feed_forward(**_: object) -> None:
    """No feed-forward layer: blocks are attention alone (Dong et al. 2021, arXiv:2103.03404)."""


FEED_FORWARDS = {
    "mlp": FeedForward,
    "gated": GatedFeedForward,
    "normalised": "transformer_jax.variants.normalised:NormalisedFeedForward",
    "mixture": "transformer_jax.variants.experts:MixtureOfExperts",
    "none": no_feed_forward,
}
"""Feed-forward layers by name: classes, or "module:Class" strings that are imported when chosen.

Each is constructed with mlp_dim, activation, use_bias, kernel_init, out_init and dtype.
"""

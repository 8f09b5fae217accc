"""The layer that acts on each position alone."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.layers.linear import Initializer, Linear


def gelu(inputs: Array) -> Array:
    """Returns x * Phi(x), Phi the normal distribution function: BERT's and ViT's form.

    Hendrycks and Gimpel 2016, arXiv:1606.08415, section 2.
    """
    return jax.nn.gelu(inputs, approximate=False)


def gelu_tanh(inputs: Array) -> Array:
    """Returns 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): GPT-2's approximate GELU."""
    return jax.nn.gelu(inputs, approximate=True)


def relu(inputs: Array) -> Array:
    """Returns max(x, 0), as in Vaswani et al. 2017, equation 2."""
    return jnp.maximum(inputs, 0)


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": relu}


class FeedForward(nn.Module):
    """Two affine maps with an activation between them, the same at every position.

    FFN(x) = activation(x W_1 + b_1) W_2 + b_2. Vaswani et al. 2017, equation 2.

    Attributes:
      mlp_dim: features between the two maps, F; 4 * width if not given.
      activation: the function between the two maps.
      use_bias: whether the maps have a bias.
      kernel_init: initial values of the first kernel.
      out_init: initial values of the second kernel; kernel_init if not given.
      dtype: dtype of the computation; None takes that of inputs and parameters together.
    """

    mlp_dim: int | None = None
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
        return down(self.activation(hidden))

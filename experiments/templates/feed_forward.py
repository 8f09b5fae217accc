"""A component of my own: a feed-forward layer, with a state outside the gradient."""

from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from transformer_jax.linear import Initializer, Linear
from transformer_jax.options import OpenShare


class Mine(nn.Module):
    """Two affine maps; a running mean of each hidden feature is subtracted before the activation.

    A model's collection `state` is updated by training steps alone. A step reads the state of the
    step before, so that no example sees another.

    Attributes:
      mlp_dim: Number of hidden features; every feed-forward layer receives this field and the next.
      activation: Activation between the two maps.
      use_bias: Whether the maps have a bias.
      kernel_init: Initial values of the first kernel.
      out_init: Initial values of the second kernel.
      dtype: Dtype of the maps.
      decay: Decay of the running mean; an option of the config.
    """

    mlp_dim: int | None = None
    activation: Callable = jax.nn.gelu
    use_bias: bool = True
    kernel_init: Initializer = nn.initializers.normal(0.02)
    out_init: Initializer = nn.initializers.normal(0.02)
    dtype: DTypeLike | None = None
    decay: OpenShare = 0.99

    @nn.compact
    def __call__(self, inputs):
        """[..., D] -> [..., D]."""
        width = inputs.shape[-1]
        mlp_dim = self.mlp_dim or 4 * width
        hidden = Linear(mlp_dim, self.use_bias, self.kernel_init, self.dtype, name="up")(inputs)
        mean = self.get_variable("state", "mean", jnp.zeros(mlp_dim))
        if self.is_mutable_collection("state"):
            seen = jax.lax.stop_gradient(hidden).reshape(-1, mlp_dim).astype(jnp.float32).mean(0)
            new = mean if self.is_initializing() else self.decay * mean + (1 - self.decay) * seen
            self.put_variable("state", "mean", new)
        hidden = self.activation(hidden - mean.astype(hidden.dtype))
        return Linear(width, self.use_bias, self.out_init, self.dtype, name="down")(hidden)

"""A component of my own: how an image becomes a vector for each patch."""

from collections.abc import Callable

import flax.linen as nn
import jax
from jax.typing import DTypeLike
from transformer_jax.layers.stems import patches_of

from transformer_jax.layers.linear import Linear


class Mine(nn.Module):
    """Two maps of each patch's pixels, with an activation between them.

    Attributes:
      patch_size: pixels along each side of a patch; this and what follows the model supplies.
      width: model width, D.
      kernel_init: initial values.
      dtype: dtype of the computation.
    """

    patch_size: int
    width: int
    kernel_init: Callable
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, images):
        """[..., height, width, C] -> [..., P, D]."""
        patches = patches_of(images, self.patch_size)
        hidden = Linear(self.width, True, self.kernel_init, self.dtype, name="first")(patches)
        return Linear(self.width, True, self.kernel_init, self.dtype, name="second")(
            jax.nn.gelu(hidden)
        )

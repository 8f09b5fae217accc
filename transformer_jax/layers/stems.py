"""How an image becomes a sequence of vectors, one for each patch."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.layers.linear import Initializer, Linear
from transformer_jax.layers.norms import LayerNorm


def grid_of(images: Array, patch_size: int) -> tuple[int, int]:
    """Returns rows and columns of the patches of images [..., height, width, C].

    Raises:
      ValueError: the patch size does not divide the image.
    """
    height, width = images.shape[-3:-1]
    if height % patch_size or width % patch_size:
        raise ValueError(f"images: {height} x {width} pixels are not whole patches of {patch_size}")
    return height // patch_size, width // patch_size


def patches_of(images: Array, patch_size: int) -> Array:
    """Cuts images into patches, row by row; each patch is flattened as [row, column, channel].

    Args:
      images: [..., height, width, C].
      patch_size: pixels along each side, a divisor of height and width.
    Returns:
      [..., P, patch_size * patch_size * C].
    Raises:
      ValueError: the patch size does not divide the image.
    """
    *leading, _, _, channels = images.shape
    rows, columns = grid_of(images, patch_size)
    grid = images.reshape(*leading, rows, patch_size, columns, patch_size, channels)
    grid = jnp.swapaxes(grid, -4, -3)
    return grid.reshape(*leading, rows * columns, patch_size * patch_size * channels)


class LinearStem(nn.Module):
    """One linear map of each patch's pixels (Dosovitskiy et al. 2021, section 3.1).

    Attributes:
      patch_size: pixels along each side of a patch.
      width: model width, D.
      kernel_init: initial values.
      dtype: dtype of the computation.
    """

    patch_size: int
    width: int
    kernel_init: Initializer
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """[..., height, width, C] -> [..., P, D]."""
        projection = Linear(self.width, True, self.kernel_init, self.dtype)
        nn.share_scope(self, projection)  # kernel and bias are the stem's own
        return projection(patches_of(images, self.patch_size))


class ConvolutionalStem(nn.Module):
    """Convolutions of 3 x 3 pixels that halve the image until a patch is one place, then a map.

    Each is followed by a norm and ReLU, and has twice as many channels as the one before; the last
    has D. Xiao et al. 2021, arXiv:2106.14881, section 4, whose norms are over the batch; ours are
    layer norms over the channels of each place, so that no image depends on others.

    Attributes:
      patch_size: pixels along each side that become one place, a power of 2.
      width: model width, D.
      kernel_init: initial values of the last map; convolutions start as He et al. 2015 have it.
      dtype: dtype of the computation.
    """

    patch_size: int
    width: int
    kernel_init: Initializer
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """[..., height, width, C] -> [..., P, D].

        Raises:
          ValueError: the patch size is no power of 2 above 1, or does not divide the image.
        """
        halvings = self.patch_size.bit_length() - 1
        if halvings < 1 or 2**halvings != self.patch_size:
            raise ValueError(
                f"patch_size: a convolutional stem halves; {self.patch_size} cannot be"
            )
        rows, columns = grid_of(images, self.patch_size)
        hidden = images
        for level in range(halvings):
            convolution = nn.Conv(
                max(1, self.width >> (halvings - 1 - level)),
                (3, 3),
                strides=2,
                padding=1,
                use_bias=False,
                kernel_init=nn.initializers.he_normal(),
                dtype=self.dtype,
                name=f"convolution_{level}",
            )
            hidden = nn.relu(LayerNorm(name=f"norm_{level}")(convolution(hidden)))
        hidden = hidden.reshape(*images.shape[:-3], rows * columns, hidden.shape[-1])
        return Linear(self.width, True, self.kernel_init, self.dtype, name="out")(hidden)


STEMS = {"linear": LinearStem, "convolutional": ConvolutionalStem}

"""Patch embedding: an image as a sequence of vectors, one for each patch."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.linear import Initializer, Linear


def grid_of(shape: tuple[int, ...], patch_size: int) -> tuple[int, int]:
    """Returns the rows and columns of patches of images of shape (..., height, width, C).

    Raises:
      ValueError: The patch size does not divide the image.
    """
    height, width = shape[-3:-1]
    if height % patch_size or width % patch_size:
        raise ValueError(f"images: {height} x {width} pixels are not whole patches of {patch_size}")
    return height // patch_size, width // patch_size


def patches_of(images: Array, patch_size: int) -> Array:
    """Cuts images into patches, row by row; each patch is flattened as [row, column, channel].

    Args:
      images: [..., height, width, C].
      patch_size: Pixels along each side, a divisor of height and width.
    Returns:
      [..., P, patch_size * patch_size * C].
    Raises:
      ValueError: The patch size does not divide the image.
    """
    *leading, _, _, channels = images.shape
    rows, columns = grid_of(images.shape, patch_size)
    grid = images.reshape(*leading, rows, patch_size, columns, patch_size, channels)
    grid = jnp.swapaxes(grid, -4, -3)
    return grid.reshape(*leading, rows * columns, patch_size * patch_size * channels)


class PatchEmbedding(nn.Module):
    """One linear map of each patch's pixels (Dosovitskiy et al. 2021, section 3.1).

    Attributes:
      patch_size: Pixels along each side of a patch.
      width: Model width, D.
      kernel_init: Initial values.
      dtype: Dtype of the computation.
    """

    patch_size: int
    width: int
    kernel_init: Initializer
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(self, images: Array) -> Array:
        """[..., height, width, C] -> [..., P, D]."""
        projection = Linear(self.width, True, self.kernel_init, self.dtype)
        nn.share_scope(self, projection)  # kernel and bias are this module's own
        return projection(patches_of(images, self.patch_size))

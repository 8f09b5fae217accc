"""The vision transformer: an image is a sequence of patches."""

from collections.abc import Callable

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.linear import Linear
from transformer_jax.layers.pooling import POOLINGS, ClassToken, Pooling
from transformer_jax.models.parts import Transformer, row

# name -> width, depth, heads, feed-forward size. Dosovitskiy et al. 2021, table 1 (B, L, H);
# Touvron et al. 2021 (Ti, S).
VARIANTS = {
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
}


def variant_fields(variant: str) -> dict[str, int]:
    """Returns the fields of VisionTransformer that a usual name such as "Ti/4" stands for.

    Raises:
      ValueError: the name is not SIZE/PATCH with a size in VARIANTS.
    """
    size, slash, patch = variant.partition("/")
    if size not in VARIANTS or not slash or not patch.isdigit() or int(patch) < 1:
        raise ValueError(
            f"variant: expected SIZE/PATCH, size one of {', '.join(VARIANTS)}, got {variant!r}"
        )
    width, depth, num_heads, mlp_dim = VARIANTS[size]
    shape = {"width": width, "depth": depth, "num_heads": num_heads, "mlp_dim": mlp_dim}
    return {**shape, "patch_size": int(patch)}


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
    *leading, height, width, channels = images.shape
    if height % patch_size or width % patch_size:
        raise ValueError(f"images: {height} x {width} pixels are not whole patches of {patch_size}")
    rows, columns = height // patch_size, width // patch_size
    grid = images.reshape(*leading, rows, patch_size, columns, patch_size, channels)
    grid = jnp.swapaxes(grid, -4, -3)
    return grid.reshape(*leading, rows * columns, patch_size * patch_size * channels)


class VisionTransformer(Transformer, kw_only=True):
    """Patches through a linear projection, blocks, and a classifier.

    Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1, with its pre-norm blocks. The fields of
    Transformer, and:

    Attributes:
      image_shape: height, width and channels of the images.
      num_classes: classes, C; 0 gives the hidden vectors of all places instead.
      patch_size: pixels along each side of a patch.
      variant: a usual name such as "Ti/4"; it sets width, depth, heads, mlp_dim and patch_size.
      pooling: a name in POOLINGS: a class token, or the mean or the maximum over the patches.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    patch_size: int = 4
    variant: str | None = None
    pooling: str | Callable[[], Pooling] = "class_token"

    def __post_init__(self) -> None:
        """Writes the variant's values into the fields."""
        if self.variant is not None:
            for name, value in variant_fields(self.variant).items():
                object.__setattr__(self, name, value)
        super().__post_init__()

    @nn.compact
    def __call__(self, images: Array, *, train: bool = False) -> Array:
        """Returns the logits of the classes.

        Args:
          images: [..., height, width, channels] float, normalised.
          train: whether dropout is on; then apply needs rngs={'dropout': key}.
        Returns:
          [..., C] float32 or wider; or the hidden vectors [..., P, D], after a class token if any.
        Raises:
          ValueError: the images have another shape than image_shape.
        """
        if images.shape[-3:] != tuple(self.image_shape):
            raise ValueError(f"images: expected [..., {self.image_shape}], got {images.shape}")
        pooling = row(POOLINGS, self.pooling, "pooling")()
        projection = Linear(self.width, True, self.embedding_init, self.dtype, name="patches")
        hidden = projection(patches_of(images, self.patch_size))
        grid = (images.shape[-3] // self.patch_size, images.shape[-2] // self.patch_size)
        if pooling.adds_token:
            hidden = ClassToken(self.embedding_init, name="class_token")(hidden)
        places = hidden.shape[-2]
        hidden = self.run_blocks(
            hidden, jnp.arange(places), False, None, train, max_length=places, grid=grid
        )
        if self.num_classes == 0:
            return hidden
        pooled = pooling(hidden, None)
        pooled = nn.Dropout(self.dropout_rate, deterministic=not train)(pooled)
        head = self.make_output(self.num_classes, use_bias=True, name="head")
        return head(self.for_logits(pooled))

    def example_inputs(self) -> dict[str, Array]:
        """Returns inputs that parameters can be drawn for."""
        return {"images": jnp.zeros((1, *self.image_shape))}

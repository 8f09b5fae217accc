"""The vision transformer: an image as a sequence of patches."""

import dataclasses
import re
from collections.abc import Callable
from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp
from annotated_types import Predicate
from jax import Array

from transformer_jax.linear import Linear
from transformer_jax.models.stack import Stack, Transformer
from transformer_jax.options import Count, Form, Given, GivenNatural, Natural, Variant
from transformer_jax.pooling import ClassToken, Pooling, adds_token, pooling_of
from transformer_jax.sites import site

# name -> width, depth, heads, feed-forward size. Dosovitskiy et al. 2021, table 1 (B, L, H);
# Touvron et al. 2021 (Ti, S).
VARIANTS = {
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "H": (1280, 32, 16, 5120),
}


ModelVariant = Annotated[
    str,
    Predicate(lambda name: re.fullmatch(rf"({'|'.join(VARIANTS)})/[1-9]\d*", name) is not None),
    Form("a name like Ti/4: Ti, S, B, L or H, and the patch size", "Ti/4"),
]


def variant_fields(variant: str) -> dict[str, int]:
    """Returns the fields of VisionTransformer for a standard name such as "Ti/4".

    Raises:
      ValueError: The name is not SIZE/PATCH with a size in VARIANTS.
    """
    size, _, patch = variant.partition("/")
    if size not in VARIANTS or not patch.isdigit() or int(patch) < 1:
        raise ValueError(
            f"variant: expected SIZE/PATCH with SIZE in {', '.join(VARIANTS)}, got {variant!r}"
        )
    names = ("width", "depth", "num_heads", "mlp_dim", "patch_size")
    return dict(zip(names, (*VARIANTS[size], int(patch)), strict=True))


def grid_of(shape: tuple[int, ...], patch_size: int) -> tuple[int, int]:
    """Returns the numbers of rows and columns of patches for shape (..., height, width, C).

    Raises:
      ValueError: The patch size does not divide the height and the width.
    """
    height, width = shape[-3:-1]
    if height % patch_size or width % patch_size:
        raise ValueError(f"images: expected multiples of {patch_size}, got {height} x {width}")
    return height // patch_size, width // patch_size


def patches_of(images: Array, patch_size: int) -> Array:
    """Cuts images into patches, row by row; each patch is flattened as [row, column, channel].

    Args:
      images: [..., height, width, C].
      patch_size: Pixels along each side, a divisor of height and width.
    Returns:
      [..., P, patch_size * patch_size * C].
    Raises:
      ValueError: The patch size does not divide the height and the width.
    """
    *leading, _, _, channels = images.shape
    rows, columns = grid_of(images.shape, patch_size)
    grid = images.reshape(*leading, rows, patch_size, columns, patch_size, channels)
    grid = jnp.swapaxes(grid, -4, -3)
    return grid.reshape(*leading, rows * columns, patch_size * patch_size * channels)


_SIDES = Form("height, width and channels, integers >= 1", "28,28,1")
ImageShape = Annotated[tuple[int, int, int], Predicate(lambda s: min(s) > 0), _SIDES, Given()]


class VisionTransformer(Transformer, kw_only=True):
    """A vision transformer: a linear projection of patches, blocks, and a classifier.

    Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1, with its pre-norm blocks.

    Attributes:
      options: Options of the stack; see Transformer.
      image_shape: Height, width and number of channels of the images.
      num_classes: Number of classes, C; 0 returns the hidden vectors of all positions instead.
      patch_size: Pixels along each side of a patch, a divisor of the image's sides.
      variant: A standard name such as "Ti/4"; sets width, depth, heads, mlp_dim and patch_size.
      pooling: A name in POOLINGS: a class token, attention, or the patches' mean or maximum.
      registers: Number of learned vectors beside the patches, which are dropped in the end (Darcet
        et al. 2024, arXiv:2309.16588).
    """

    image_shape: ImageShape
    num_classes: GivenNatural
    patch_size: Count = 4
    variant: ModelVariant | None = None
    pooling: Annotated[str | Callable[[], Pooling], Variant("pooling:POOLINGS")] = "class_token"
    registers: Natural = 0

    def __post_init__(self) -> None:
        """Copies the values of the variant, if one is given, into the fields."""
        if self.variant is not None:
            sizes = variant_fields(self.variant)
            object.__setattr__(self, "patch_size", sizes.pop("patch_size"))
            object.__setattr__(self, "options", dataclasses.replace(self.options, **sizes))
        super().__post_init__()

    def setup(self) -> None:
        """Creates the stack and the output layers."""
        grid = grid_of(self.image_shape, self.patch_size)
        length = grid[0] * grid[1] + adds_token(self.pooling) + self.registers
        self.stack = Stack(self.options, causal=False, max_length=length, grid=grid)
        nn.share_scope(self, self.stack)  # the model itself holds the blocks' parameters
        if self.num_classes:
            self.head = self.make_output(self.num_classes, use_bias=True)

    @nn.compact
    def __call__(self, images: Array, *, train: bool = False, return_hidden: bool = False) -> Array:
        """Returns the class logits, or hidden vectors.

        Args:
          images: [..., height, width, channels] float, normalised.
          train: Whether dropout is on; `apply` then needs rngs={'dropout': key}.
          return_hidden: Whether to return hidden vectors, the input of `project`, not logits.
        Returns:
          [..., C] float32 or wider, or pooled hidden vectors [..., D]. If num_classes is 0, hidden
          vectors [..., P, D], after that of the class token if there is one.
        Raises:
          ValueError: The shape of the images is not image_shape.
        """
        if images.shape[-3:] != tuple(self.image_shape):
            raise ValueError(f"images: expected [..., {self.image_shape}], got {images.shape}")
        pooling = pooling_of(self.pooling)
        options, init = self.options, self.embedding_init
        embed = Linear(options.width, True, init, options.dtype, name="patches")
        embedded_PD = embed(patches_of(images, self.patch_size))
        if self.registers:
            embedded_PD = ClassToken(init, self.registers, name="registers")(embedded_PD)
        if pooling.adds_token:
            embedded_PD = ClassToken(init, name="class_token")(embedded_PD)
        hidden_PD = self.stack(embedded_PD, train=train)
        if self.registers:
            begin = int(pooling.adds_token)
            parts = (hidden_PD[..., :begin, :], hidden_PD[..., begin + self.registers :, :])
            hidden_PD = jnp.concatenate(parts, axis=-2)
        if self.num_classes == 0:
            return hidden_PD
        dropout = nn.Dropout(options.dropout_rate, deterministic=not train, name="pooled_dropout")
        pooled_D = site(self, "pooled", dropout(pooling(hidden_PD, None)))
        return pooled_D if return_hidden else self.project(pooled_D)

    def project(self, hidden: Array) -> Array:
        """Returns the class logits, [..., D] -> [..., C]; `hidden` if there are no classes."""
        if not self.num_classes:
            return hidden
        return site(self, "logits", self.head(self.scale_for_logits(hidden)))

    def example_inputs(self) -> dict[str, Array]:
        """Returns dummy inputs for initialising the parameters."""
        return {"images": jnp.zeros((1, *self.image_shape))}

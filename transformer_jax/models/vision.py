"""The vision transformer: an image is a sequence of patches."""

import re
from collections.abc import Callable
from typing import Annotated

import flax.linen as nn
import jax.numpy as jnp
from annotated_types import Predicate
from jax import Array

from transformer_jax.layers.patches import PatchEmbedding, grid_of
from transformer_jax.layers.pooling import POOLINGS, ClassToken, Pooling
from transformer_jax.models.families import row
from transformer_jax.models.parts import Transformer
from transformer_jax.options import Count, Form, Variant
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
    Predicate(lambda name: re.fullmatch(r"(Ti|S|B|L|H)/[1-9]\d*", name) is not None),
    Form("a name like Ti/4: Ti, S, B, L or H, and the patch size", "Ti/4"),
]


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


class VisionTransformer(Transformer, kw_only=True):
    """Patches through a linear projection, blocks, and a classifier.

    Dosovitskiy et al. 2021, arXiv:2010.11929, section 3.1, with its pre-norm blocks. The fields of
    Transformer, and:

    Attributes:
      image_shape: height, width and channels of the images.
      num_classes: classes, C; 0 gives the hidden vectors of all places instead.
      patch_size: pixels along each side of a patch, a divisor of the image's sides.
      variant: a usual name such as "Ti/4"; it sets width, depth, heads, mlp_dim and patch_size.
      pooling: a name in POOLINGS: a class token, or the mean or the maximum over the patches.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    patch_size: Count = 4
    variant: ModelVariant | None = None
    pooling: Annotated[str | Callable[[], Pooling], Variant("layers.pooling:POOLINGS")] = (
        "class_token"
    )

    def __post_init__(self) -> None:
        """Writes the variant's values into the fields."""
        if self.variant is not None:
            for name, value in variant_fields(self.variant).items():
                object.__setattr__(self, name, value)
        super().__post_init__()

    def setup(self) -> None:
        """Makes what gives logits."""
        if self.num_classes:
            self.head = self.make_output(self.num_classes, use_bias=True)

    @nn.compact
    def __call__(self, images: Array, *, train: bool = False, return_hidden: bool = False) -> Array:
        """Returns the logits of the classes.

        Args:
          images: [..., height, width, channels] float, normalised.
          train: whether dropout is on; then apply needs rngs={'dropout': key}.
          return_hidden: whether to return what `project` reads in place of the logits.
        Returns:
          [..., C] float32 or wider; or the hidden vectors [..., P, D], after a class token if any.
        Raises:
          ValueError: the images have another shape than image_shape.
        """
        if images.shape[-3:] != tuple(self.image_shape):
            raise ValueError(f"images: expected [..., {self.image_shape}], got {images.shape}")
        pooling = row(POOLINGS, self.pooling, "pooling")()
        embed = PatchEmbedding(
            self.patch_size, self.width, self.embedding_init, self.dtype, name="patches"
        )
        embedded_PD = embed(images)
        if pooling.adds_token:
            embedded_PD = ClassToken(self.embedding_init, name="class_token")(embedded_PD)
        length = embedded_PD.shape[-2]
        hidden_PD = self.run_blocks(
            embedded_PD,
            jnp.arange(length),
            causal=False,
            segments=None,
            train=train,
            max_length=length,
            grid=grid_of(images, self.patch_size),
        )
        if self.num_classes == 0:
            return hidden_PD
        pooled_D = pooling(hidden_PD, None)
        pooled_D = nn.Dropout(self.dropout_rate, deterministic=not train)(pooled_D)
        pooled_D = site(self, "pooled", pooled_D)
        return pooled_D if return_hidden else self.project(pooled_D)

    def project(self, hidden: Array) -> Array:
        """Returns the logits of the classes, [..., D] -> [..., C]; without any, `hidden` itself."""
        if not self.num_classes:
            return hidden
        return site(self, "logits", self.head(self.scale_for_logits(hidden)))

    def example_inputs(self) -> dict[str, Array]:
        """Returns inputs that parameters can be drawn for."""
        return {"images": jnp.zeros((1, *self.image_shape))}

"""Position terms, the output of position encodings, and the rotation that attention applies."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


class Rotation(NamedTuple):
    """Cosine and sine of each position's angles, both [..., L, R/2] float32, R <= K features."""

    cos: Array
    sin: Array


# Added to scores: an array [..., H, L, M], or what makes it of queries [..., H, L, K], keys
# [..., H, M, K] and the mask as an array. Such a function is a pytree (jax.tree_util.Partial), so
# that transformations can pass it on, and takes `first`, the place of the first query.
Bias = Array | Callable[..., Array]


class PositionTerms(NamedTuple):
    """Output of a position encoding.

    Attributes:
      embedding: [..., L, D], added to the token embeddings.
      rotation: Applied to queries and keys of self-attention.
      bias: Added to the scores of self-attention.
    """

    embedding: Array | None = None
    rotation: Rotation | None = None
    bias: Bias | None = None


NO_TERMS = PositionTerms()


class Sizes(NamedTuple):
    """Sizes of the model that a position encoding or a mixer may use.

    Attributes:
      width: Model width, D.
      num_heads: Attention heads, H.
      head_dim: Features of one head, K.
      scale: Factor of the attention scores.
      max_length: Largest number of positions of an input.
      causal: Whether no position may look ahead.
      grid: Rows and columns of patches, if the input is an image.
    """

    width: int
    num_heads: int = 1
    head_dim: int = 1
    scale: float = 1.0
    max_length: int = 1
    causal: bool = True
    grid: tuple[int, int] | None = None


def rotate(inputs: Array, rotation: Rotation) -> Array:
    """Rotates each pair of features (k, k + R/2) of the first R by its position's angle.

    Su et al. 2021, arXiv:2104.09864, equation 34, with the halves paired as in Llama and
    GPT-NeoX; scores then depend only on the distance of two positions.

    Args:
      inputs: [..., H, L, K], queries or keys.
      rotation: Angles of [..., L, R/2]; features from R on stay unchanged.

    Returns:
      [..., H, L, K], dtype of the inputs.
    """
    cos, sin = (part[..., None, :, :] for part in rotation)
    half = cos.shape[-1]
    first, second, rest = jnp.split(inputs, (half, 2 * half), axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin, rest]
    return jnp.concatenate(rotated, axis=-1).astype(inputs.dtype)


def add_positions(hidden: Array, terms: PositionTerms) -> Array:
    """Adds the position embedding, if there is one: [..., L, D] -> [..., L, D]."""
    return hidden if terms.embedding is None else hidden + terms.embedding.astype(hidden.dtype)


def bias_for(bias: Bias | None, query: Array, key: Array, mask: Array | None) -> Array | None:
    """Returns a bias as an array [..., H, L, M] for these queries and keys."""
    made: Any = bias(query, key, mask) if callable(bias) else bias
    return made


def of_queries(terms: PositionTerms, first: Array | int, count: int) -> PositionTerms:
    """Returns the terms of `count` positions from `first` on."""

    def rows(table: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(table, first, count, axis=-2)

    bias = terms.bias
    if callable(bias):
        bias = jax.tree_util.Partial(bias, first=first)
    elif bias is not None:
        bias = rows(bias)
    return PositionTerms(
        None if terms.embedding is None else rows(terms.embedding),
        None if terms.rotation is None else Rotation(*map(rows, terms.rotation)),
        bias,
    )

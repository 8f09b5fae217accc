"""What a position encoding hands to a model, and the rotation that attention applies."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Rotation(NamedTuple):
    """Cosine and sine of each position's angles, both [..., L, R/2] float32, R <= K features."""

    cos: Array
    sin: Array


class PositionTerms(NamedTuple):
    """What an encoding hands to the model.

    Attributes:
      embedding: [..., L, D], added to the token embeddings.
      rotation: applied to queries and keys in every attention.
      bias: [..., H, L, L], added to the scores of every attention; or what makes it when scores are
        there, (query [..., H, L, K], key [..., H, M, K], mask as an array) -> [..., H, L, M]: a
        pytree (jax.tree_util.Partial), so that it can be handed through transformations, that takes
        `first`, the place of the first query, for queries that stand behind a cache.
      values: what is added to the weighted sum of values, of weights [..., H, L, M] -> [..., H, L,
        V]; a pytree that takes `first`, as the bias.
    """

    embedding: Array | None = None
    rotation: Rotation | None = None
    bias: Array | Callable[..., Array] | None = None
    values: Callable[..., Array] | None = None


NO_TERMS = PositionTerms()


def rotate(inputs: Array, rotation: Rotation) -> Array:
    """Rotates each pair of features (k, k + R/2) of the first R by its position's angle.

    Su et al. 2021, arXiv:2104.09864, equation 34, with the halves paired as in Llama and
    GPT-NeoX; scores then depend on the distance between two positions alone.

    Args:
      inputs: [..., H, L, K], queries or keys.
      rotation: angles of [..., L, R/2]; features from R on stay as they are.
    Returns:
      [..., H, L, K], dtype of the inputs.
    """
    cos, sin = (part[..., None, :, :] for part in rotation)
    half = cos.shape[-1]
    first, second, rest = jnp.split(inputs, (half, 2 * half), axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin, rest]
    return jnp.concatenate(rotated, axis=-1).astype(inputs.dtype)


def add_positions(hidden: Array, terms: PositionTerms) -> Array:
    """Adds [..., L, D] what an encoding gives for the embeddings, if it gives anything."""
    return hidden if terms.embedding is None else hidden + terms.embedding.astype(hidden.dtype)

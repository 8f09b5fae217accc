"""From the vectors of all places to one vector of the whole."""

from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.linear import Initializer


def first_place(hidden: Array, is_token: Array | None = None) -> Array:
    """Returns the vector of the class token, which stands first (Devlin et al. 2019, section 3).

    Args:
      hidden: [..., L, D].
      is_token: [..., L] bool; not needed.
    Returns:
      [..., D].
    """
    return hidden[..., 0, :]


def mean_of_places(hidden: Array, is_token: Array | None = None) -> Array:
    """Returns the mean over all places that are no padding (Reimers and Gurevych 2019, section 3).

    Args:
      hidden: [..., L, D].
      is_token: [..., L] bool, False where there is padding; all are tokens if not given.
    Returns:
      [..., D]; 0 where all is padding. Sums in float32 or wider.
    """
    wide = hidden.astype(jnp.promote_types(hidden.dtype, jnp.float32))
    if is_token is None:
        return wide.mean(-2).astype(hidden.dtype)
    kept = jnp.where(is_token[..., None], wide, 0).sum(-2)
    count = is_token.sum(-1, keepdims=True)
    return (kept / jnp.maximum(count, 1)).astype(hidden.dtype)


class Pooling(NamedTuple):
    """How one vector is taken, and what it needs.

    Attributes:
      pool: hidden [..., L, D] and is_token [..., L] or None -> [..., D].
      adds_token: whether a class token has to stand first.
    """

    pool: Callable[[Array, Array | None], Array]
    adds_token: bool


POOLINGS = {
    "class_token": Pooling(first_place, adds_token=True),
    "mean": Pooling(mean_of_places, adds_token=False),
}


class ClassToken(nn.Module):
    """A learned vector in front of a sequence (Dosovitskiy et al. 2021, arXiv:2010.11929, eq. 1).

    Attributes:
      embedding_init: its initial values.
    """

    embedding_init: Initializer = nn.initializers.normal(0.02)

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., L, D] -> [..., L + 1, D]."""
        vector = self.param("embedding", self.embedding_init, (1, inputs.shape[-1]))
        repeated = jnp.broadcast_to(vector, (*inputs.shape[:-2], 1, inputs.shape[-1]))
        return jnp.concatenate([repeated.astype(inputs.dtype), inputs], axis=-2)

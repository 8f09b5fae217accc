"""A bias of the scores that depends on the distance of key and query."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.position_terms import PositionTerms


@dataclasses.dataclass(frozen=True)
class BiasOfDistances:
    """A bias computed with the scores, so that attention without scores makes nothing L x L.

    Attributes:
      function: (table, distance of the key from the query [..., 1, L, M], query, *options) -> bias
        [..., H, L, M].
      options: Further arguments, which are not arrays.
    """

    function: Callable[..., Array]
    options: tuple[Any, ...] = ()

    def __call__(
        self,
        table: Array,
        positions: Array,
        query: Array,
        key: Array,
        mask: Array | None,
        first: int | Array = 0,
    ) -> Array:
        """Returns the bias [..., H, L, M] of queries [..., H, L, K], from position `first` on."""
        position_L = jax.lax.dynamic_slice_in_dim(positions, first, query.shape[-2], axis=-1)
        distances_LM = positions[..., None, :] - position_L[..., :, None]
        return self.function(table, distances_LM[..., None, :, :], query, *self.options)

    def terms(self, table: Array, positions: Array) -> PositionTerms:
        """Function that attention calls."""
        return PositionTerms(bias=jax.tree_util.Partial(self, table, positions))


def with_vectors(query_LK: Array, table_RK: Array) -> Array:
    """[..., L, K] and [R, K] -> [..., L, R], float32 or wider."""
    wide = jnp.promote_types(query_LK.dtype, jnp.float32)
    table_RK = table_RK.astype(query_LK.dtype)
    return jnp.einsum("...LK,RK->...LR", query_LK, table_RK, preferred_element_type=wide)

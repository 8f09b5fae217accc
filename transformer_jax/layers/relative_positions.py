"""Position encodings that say how far a key lies from a query: numbers that are added to scores."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.position_terms import PositionTerms
from transformer_jax.options import Count, InitialSize, Switch


@dataclasses.dataclass(frozen=True)
class _BiasOfDistances:
    """A bias that is made when scores are, so that a core without scores makes nothing of L x L.

    Attributes:
      function: (table, how far a key lies ahead of a query [..., 1, L, M], query, *options) -> bias
        [..., H, L, M].
      options: further arguments, no arrays.
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
        position_L = jax.lax.dynamic_slice_in_dim(positions, first, query.shape[-2], axis=-1)
        distances_LM = positions[..., None, :] - position_L[..., :, None]
        return self.function(table, distances_LM[..., None, :, :], query, *self.options)

    def terms(self, table: Array, positions: Array) -> PositionTerms:
        """What attention calls."""
        return PositionTerms(bias=jax.tree_util.Partial(self, table, positions))


def alibi_slopes(num_heads: int) -> Array:
    """Returns the slope of each head: 2^(-8 h / H), h = 1 .. H, for a power of two.

    Press et al. 2022, arXiv:2108.12409, section 3. Other numbers of heads take those of the power
    of two below, and then every other one of the power above, as in the authors' code.

    Args:
      num_heads: heads, H.
    Returns:
      [H] float32.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-4 * head / power) for head in range(1, 2 * power, 2)]
    return jnp.asarray((slopes + between)[:num_heads], jnp.float32)


class ALiBiPositions(nn.Module):
    """Takes from each score the distance between query and key, times a slope of the head.

    bias[h, i, j] = -slope_h |i - j|. Press et al. 2022, arXiv:2108.12409, section 3.

    Attributes:
      num_heads: heads, H.
    """

    num_heads: int

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> a bias [..., H, L, L]."""
        return _BiasOfDistances(_alibi_bias).terms(alibi_slopes(self.num_heads), positions)


def _alibi_bias(slopes: Array, distances: Array, query: Array) -> Array:
    return -slopes[:, None, None] * jnp.abs(distances)


def relative_buckets(
    distances: Array, bidirectional: bool, num_buckets: int, max_distance: int
) -> Array:
    """Returns the bucket of each distance: one each for short ones, logarithmic for long ones.

    Raffel et al. 2020, arXiv:1910.10683, section 2.1, as in the authors' code. Half of the buckets
    (of each direction) hold one distance, the rest reach max_distance; all beyond share the last.

    Args:
      distances: [...] int, key minus query position.
      bidirectional: whether keys ahead have buckets of their own; if not, they share that of 0.
      num_buckets: buckets in all.
      max_distance: where the last bucket begins.
    Returns:
      [...] int32 in [0, num_buckets).
    """
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets * (distances > 0)
    behind = jnp.abs(distances) if bidirectional else jnp.maximum(-distances, 0)
    exact = num_buckets // 2
    ratio = jnp.log(jnp.maximum(behind, 1) / exact) / math.log(max_distance / exact)
    far = exact + (ratio * (num_buckets - exact)).astype(jnp.int32)
    return first + jnp.where(behind < exact, behind, jnp.minimum(far, num_buckets - 1))


class T5Positions(nn.Module):
    """Adds a learned number of the head for each bucket of distances (Raffel et al. 2020, 2.1).

    All blocks share the table, as in T5. A distance beyond the longest of training falls into a
    bucket that training has seen.

    Attributes:
      num_heads: heads, H.
      bidirectional: whether keys ahead can be seen.
      num_buckets: rows of the table.
      max_distance: where the last bucket begins, in positions.
      std: standard deviation of the initial table.
    """

    num_heads: int
    bidirectional: bool
    num_buckets: Count = 32
    max_distance: Count = 128
    std: InitialSize = 0.02

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> a bias [..., H, L, L].

        Raises:
          ValueError: too few buckets for the distances.
        """
        exact = self.num_buckets // (4 if self.bidirectional else 2)
        if not 1 <= exact < self.max_distance:
            raise ValueError(
                f"num_buckets: expected at least 4 and fewer than max_distance "
                f"{self.max_distance} needs, got {self.num_buckets}"
            )
        shape = (self.num_buckets, self.num_heads)
        table = self.param("embedding", nn.initializers.normal(self.std), shape)
        options = (self.bidirectional, self.max_distance)
        return _BiasOfDistances(_t5_bias, options).terms(table, positions)


def _t5_bias(
    table: Array, distances: Array, query: Array, bidirectional: bool, max_distance: int
) -> Array:
    buckets = relative_buckets(distances[..., 0, :, :], bidirectional, len(table), max_distance)
    return jnp.moveaxis(table[buckets], -1, -3)


class ShawPositions(nn.Module):
    """Adds to each key a learned vector of its distance from the query (Shaw et al. 2018).

    score_ij = q_i . (k_j + a_clip(j - i)) / sqrt(d). arXiv:1803.02155, equations 2 and 4; with
    `values` also z_i = sum over j of w_ij (v_j + b_clip(j - i)), equation 3, which changed nothing
    there (table 3). Distances beyond the longest share its vector.

    Attributes:
      head_dim: features of one head, K.
      scale: of the scores, in place of 1 / sqrt(K).
      max_distance: longest distance with a vector of its own, in positions.
      std: standard deviation of the initial vectors.
      value_dim: value features of one head, V; head_dim if not given.
      values: whether values get vectors too.
    """

    head_dim: int
    scale: float | None = None
    max_distance: Count = 16
    std: InitialSize = 0.02
    value_dim: int | None = None
    values: Switch = False

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> a bias that depends on the queries, and what weights add to values."""
        draw, rows = nn.initializers.normal(self.std), 2 * self.max_distance + 1
        table = self.param("embedding", draw, (rows, self.head_dim))
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        terms = _BiasOfDistances(_shaw_bias).terms(table * scale, positions)
        if not self.values:
            return terms
        of_values = self.param("values", draw, (rows, self.value_dim or self.head_dim))
        return terms._replace(values=jax.tree_util.Partial(_shaw_values, of_values, positions))


def _shaw_bias(table: Array, distances: Array, query: Array) -> Array:
    """Agreement of each query with each vector, [..., H, L, 2k+1], then read out by distance."""
    longest = len(table) // 2
    rows_LM = jnp.clip(distances, -longest, longest) + longest
    agreement_LR = _with_vectors(query, table)
    shape = (*agreement_LR.shape[:-1], rows_LM.shape[-1])
    return jnp.take_along_axis(agreement_LR, jnp.broadcast_to(rows_LM, shape), axis=-1)


def _with_vectors(query_LK: Array, table_RK: Array) -> Array:
    """[..., L, K] and [R, K] -> [..., L, R], at least as wide as float32, as scores are."""
    wide = jnp.promote_types(query_LK.dtype, jnp.float32)
    table_RK = table_RK.astype(query_LK.dtype)
    return jnp.einsum("...LK,RK->...LR", query_LK, table_RK, preferred_element_type=wide)


def _shaw_values(table: Array, positions: Array, weights: Array, first: int | Array = 0) -> Array:
    """Each weight goes to the vector of its distance: [..., H, L, M] -> [..., H, L, V]."""
    position_L = jax.lax.dynamic_slice_in_dim(positions, first, weights.shape[-2], axis=-1)
    distances_LM = positions[..., None, :] - position_L[..., :, None]
    longest = len(table) // 2
    rows_LM = jnp.clip(distances_LM, -longest, longest)[..., None, :, :] + longest
    by_vector = [jnp.where(rows_LM == row, weights, 0).sum(-1) for row in range(len(table))]
    return jnp.stack(by_vector, -1) @ table.astype(weights.dtype)


class ContextualPositions(nn.Module):
    """Counts only the keys that a query opens its gate to: CoPE (Golovneva et al. 2024).

    g_ij = sigmoid(score_ij), p_ij = sum of g_ik over k = j .. i, and q_i . e[p_ij] is added to the
    score, e interpolated between whole positions. arXiv:2405.18719, equations 3 to 6. Counts beyond
    the last position stay there, as the paper defines.

    Attributes:
      head_dim: features of one head, K.
      bidirectional: refused; counting from a key up to the query needs a causal model.
      scale: of the scores, in place of 1 / sqrt(K).
      max_count: largest position that is told apart; the paper has 64 and fewer.
      std: standard deviation of the initial vectors.
    """

    head_dim: int
    bidirectional: bool
    scale: float | None = None
    max_count: Count = 64
    std: InitialSize = 0.02

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> a bias that depends on queries and keys.

        Raises:
          ValueError: the model is bidirectional.
        """
        if self.bidirectional:
            raise ValueError("position: contextual positions count up to the query, causally")
        shape = (self.max_count + 1, self.head_dim)
        table = self.param("embedding", nn.initializers.normal(self.std), shape)
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        return PositionTerms(bias=jax.tree_util.Partial(_contextual_bias, table, scale))


def _contextual_bias(
    table: Array,
    scale: float,
    query: Array,
    key: Array,
    mask: Array | None,
    first: int | Array = 0,
) -> Array:
    """The mask tells where the queries stand, so `first` does not have to."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    gates_LM = jax.nn.sigmoid(
        jnp.einsum("...LK,...MK->...LM", query * scale, key, preferred_element_type=wide)
    )
    if mask is not None:
        gates_LM = jnp.where(mask, gates_LM, 0)
    counted_LM = jnp.flip(jnp.cumsum(jnp.flip(gates_LM, -1), axis=-1), -1)
    places_LM = jnp.minimum(counted_LM, table.shape[0] - 1)
    below_LM = jnp.floor(places_LM)
    agreement_LR = _with_vectors(query, table)

    def read_out(at: Array) -> Array:
        return jnp.take_along_axis(agreement_LR, at.astype(jnp.int32), axis=-1)

    above_LM = jnp.minimum(below_LM + 1, table.shape[0] - 1)
    part_LM = places_LM - below_LM
    return (1 - part_LM) * read_out(below_LM) + part_LM * read_out(above_LM)

"""Position encodings that add a bias to the scores."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.linear import Checked
from transformer_jax.options import Count, InitialSize
from transformer_jax.positions import PositionTerms, Sizes
from transformer_jax.shapes import as_int32


@dataclasses.dataclass(frozen=True)
class BiasOfDistances:
    """A bias computed only together with the scores, so that no array is larger than theirs.

    Attributes:
      function: (table, distances of keys [..., 1, L, M], query, *options) -> bias [..., H, L, M].
      options: Further arguments of `function`, which are not arrays.
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
        """Returns the bias [..., H, L, M] for queries [..., H, L, K], from position `first` on."""
        positions = as_int32(positions)
        position_L = jax.lax.dynamic_slice_in_dim(positions, first, query.shape[-2], axis=-1)
        distances_LM = positions[..., None, :] - position_L[..., :, None]
        return self.function(table, distances_LM[..., None, :, :], query, *self.options)

    def terms(self, table: Array, positions: Array) -> PositionTerms:
        """Returns position terms with this bias, for a table [...] and positions [..., L] int."""
        return PositionTerms(bias=jax.tree_util.Partial(self, table, positions))


def with_vectors(query_LK: Array, table_RK: Array) -> Array:
    """Multiplies queries by vectors: [..., L, K] and [R, K] -> [..., L, R], float32 or wider."""
    wide = jnp.promote_types(query_LK.dtype, jnp.float32)
    table_RK = table_RK.astype(query_LK.dtype)
    return jnp.einsum("...LK,RK->...LR", query_LK, table_RK, preferred_element_type=wide)


def alibi_slopes(num_heads: int) -> Array:
    """Returns the slope of each head: 2^(-8 h / H), h = 1 .. H, if H is a power of two.

    Press et al. 2022, arXiv:2108.12409, section 3. For other H, they are the slopes of the next
    lower power of two, then every second slope of the next higher one, as in the authors' code.

    Args:
      num_heads: Number of heads, H.
    Returns:
      [H] float32.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-4 * head / power) for head in range(1, 2 * power, 2)]
    return jnp.asarray((slopes + between)[:num_heads], jnp.float32)


class ALiBiPositions(Checked):
    """A penalty on each score: the distance between query and key, times the head's slope.

    bias[h, i, j] = -slope_h |i - j|. Press et al. 2022, arXiv:2108.12409, section 3.
    """

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> a bias [..., H, L, L]."""
        return BiasOfDistances(_alibi_bias).terms(alibi_slopes(sizes.num_heads), positions)


def _alibi_bias(slopes: Array, distances: Array, query: Array) -> Array:
    return -slopes[:, None, None] * jnp.abs(distances)


def relative_buckets(
    distances: Array, bidirectional: bool, num_buckets: int, max_distance: int
) -> Array:
    """Returns the bucket of each distance: one per short distance, logarithmic for long ones.

    Raffel et al. 2020, arXiv:1910.10683, section 2.1, as in the authors' code. Half of the buckets
    (in each direction) hold one distance each; the others cover the distances up to max_distance,
    and all beyond it share the last bucket.

    Args:
      distances: [...] int, key minus query position.
      bidirectional: Whether later keys have half of the buckets; if not, they have distance 0.
      num_buckets: Total number of buckets.
      max_distance: Distance at and beyond which all distances share the last bucket.
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


class T5Positions(Checked):
    """A learned bias for each head and bucket of distances (Raffel et al. 2020, section 2.1).

    All blocks share the table, as in T5. Distances from max_distance on share the last bucket; if
    training reaches it, longer inputs need no untrained number.

    Attributes:
      num_buckets: Number of buckets.
      max_distance: Distance, in positions, at and beyond which keys share the last bucket.
      std: Standard deviation of the initial table.
    """

    num_buckets: Count = 32
    max_distance: Count = 128
    std: InitialSize = 0.02

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> a bias [..., H, L, L].

        Raises:
          ValueError: There are too few buckets, or too many for max_distance.
        """
        share = 2 if sizes.causal else 4  # 1 / share of the buckets hold one distance each
        if not 1 <= self.num_buckets // share < self.max_distance:
            raise ValueError(
                f"num_buckets: expected {share} to {share * self.max_distance - 1} for "
                f"max_distance {self.max_distance}, got {self.num_buckets}"
            )
        shape = (self.num_buckets, sizes.num_heads)
        table = self.param("embedding", nn.initializers.normal(self.std), shape)
        options = (not sizes.causal, self.max_distance)
        return BiasOfDistances(_t5_bias, options).terms(table, positions)


def _t5_bias(
    table: Array, distances: Array, query: Array, bidirectional: bool, max_distance: int
) -> Array:
    buckets = relative_buckets(distances[..., 0, :, :], bidirectional, len(table), max_distance)
    return jnp.moveaxis(table[buckets], -1, -3)


class ShawPositions(Checked):
    """A learned vector, added to each key, for its distance from the query (Shaw et al. 2018).

    score_ij = q_i . (k_j + a_clip(j - i)) / sqrt(d). arXiv:1803.02155, equations 2 and 4. Distances
    beyond max_distance, in each direction, share its vector. The vectors for values (equation 3)
    are left out, since they changed nothing in the paper (table 3).

    Attributes:
      max_distance: Longest distance with its own vector, in positions.
      std: Standard deviation of the initial vectors.
    """

    max_distance: Count = 16
    std: InitialSize = 0.02

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> a bias that depends on the queries."""
        shape = (2 * self.max_distance + 1, sizes.head_dim)
        table = self.param("embedding", nn.initializers.normal(self.std), shape)
        return BiasOfDistances(_shaw_bias).terms(table * sizes.scale, positions)


def _shaw_bias(table: Array, distances: Array, query: Array) -> Array:
    """Returns the bias, selected by distance from the products of all queries and vectors."""
    longest = len(table) // 2
    rows_LM = jnp.clip(distances, -longest, longest) + longest
    agreement_LR = with_vectors(query, table)
    shape = (*agreement_LR.shape[:-1], rows_LM.shape[-1])
    return jnp.take_along_axis(agreement_LR, jnp.broadcast_to(rows_LM, shape), axis=-1)


class ContextualPositions(Checked):
    """Positions that count only keys for which the query's gate is open (Golovneva et al. 2024).

    g_ij = sigmoid(score_ij), p_ij = sum of g_ik over k = j .. i, and q_i . e[p_ij] is added to the
    score, with e interpolated between integer positions. arXiv:2405.18719, equations 3 to 6. Counts
    beyond max_count use the last position, as in the paper.

    Attributes:
      max_count: Largest distinct position; at most 64 in the paper.
      std: Standard deviation of the initial vectors.
    """

    max_count: Count = 64
    std: InitialSize = 0.02

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> a bias that depends on queries and keys.

        Raises:
          ValueError: The model is bidirectional.
        """
        if not sizes.causal:
            raise ValueError("position: contextual positions need a causal model")
        shape = (self.max_count + 1, sizes.head_dim)
        table = self.param("embedding", nn.initializers.normal(self.std), shape)
        return PositionTerms(bias=jax.tree_util.Partial(_contextual_bias, table, sizes.scale))


def _contextual_bias(
    table: Array, scale: float, query: Array, key: Array, mask: Array | None, first: int | Array = 0
) -> Array:
    """Returns the bias [..., H, L, M]; `first` is unused, since the mask is that of the queries."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    gates_LM = jax.nn.sigmoid(
        jnp.einsum("...LK,...MK->...LM", query * scale, key, preferred_element_type=wide)
    )
    if mask is not None:
        gates_LM = jnp.where(mask, gates_LM, 0)
    counted_LM = jnp.flip(jnp.cumsum(jnp.flip(gates_LM, -1), axis=-1), -1)
    places_LM = jnp.minimum(counted_LM, table.shape[0] - 1)
    below_LM = jnp.floor(places_LM)
    agreement_LR = with_vectors(query, table)

    def read_out(at: Array) -> Array:
        return jnp.take_along_axis(agreement_LR, at.astype(jnp.int32), axis=-1)

    above_LM = jnp.minimum(below_LM + 1, table.shape[0] - 1)
    part_LM = places_LM - below_LM
    return (1 - part_LM) * read_out(below_LM) + part_LM * read_out(above_LM)

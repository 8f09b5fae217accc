"""T5's position bias: one learned number per head and bucket of distances."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.options import Count, InitialSize
from transformer_jax.position_terms import PositionTerms, Sizes
from transformer_jax.variants.distances import BiasOfDistances


def relative_buckets(
    distances: Array, bidirectional: bool, num_buckets: int, max_distance: int
) -> Array:
    """Returns the bucket of each distance: separate for short ones, logarithmic for long ones.

    Raffel et al. 2020, arXiv:1910.10683, section 2.1, as in the authors' code. Half of the buckets
    (of each direction) hold one distance, the rest reach max_distance; all beyond share the last.

    Args:
      distances: [...] int, key minus query position.
      num_buckets: Total number of buckets.
      max_distance: Beginning of the last bucket.
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
    """Adds a learned number per head and bucket of distances (Raffel et al. 2020, 2.1).

    All blocks share the table, as in T5. A distance longer than in training falls into a bucket
    that was trained.

    Attributes:
      num_buckets: Number of buckets.
      max_distance: Beginning of the last bucket, in positions.
      std: Standard deviation of the initial table.
    """

    num_buckets: Count = 32
    max_distance: Count = 128
    std: InitialSize = 0.02

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> a bias [..., H, L, L].

        Raises:
          ValueError: Too few buckets for the distances.
        """
        exact = self.num_buckets // (4 if not sizes.causal else 2)
        if not 1 <= exact < self.max_distance:
            raise ValueError(
                f"num_buckets: expected at least 4 and fewer than max_distance "
                f"{self.max_distance} needs, got {self.num_buckets}"
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

"""Relative positions as learned vectors that are added to the keys."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.options import Count, InitialSize
from transformer_jax.position_terms import PositionTerms, Sizes
from transformer_jax.variants.distances import BiasOfDistances, with_vectors


class ShawPositions(nn.Module):
    """Adds to each key a learned vector of its distance from the query (Shaw et al. 2018).

    score_ij = q_i . (k_j + a_clip(j - i)) / sqrt(d). arXiv:1803.02155, equations 2 and 4. Distances
    beyond the longest share its vector. The vectors of values (equation 3) are left out: they
    changed nothing there (table 3).

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
    """Multiplies each query with each vector, [..., H, L, 2k+1], then selects by distance."""
    longest = len(table) // 2
    rows_LM = jnp.clip(distances, -longest, longest) + longest
    agreement_LR = with_vectors(query, table)
    shape = (*agreement_LR.shape[:-1], rows_LM.shape[-1])
    return jnp.take_along_axis(agreement_LR, jnp.broadcast_to(rows_LM, shape), axis=-1)

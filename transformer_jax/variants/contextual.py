"""Contextual positions (CoPE): a query counts only the keys for which its gate is open."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.options import Count, InitialSize
from transformer_jax.position_terms import PositionTerms, Sizes
from transformer_jax.variants.distances import with_vectors


class ContextualPositions(nn.Module):
    """Positions that count only keys for which the query's gate is open (Golovneva et al. 2024).

    g_ij = sigmoid(score_ij), p_ij = sum of g_ik over k = j .. i, and q_i . e[p_ij] is added to the
    score, e interpolated between integer positions. arXiv:2405.18719, equations 3 to 6. Beyond it
    counts use the last position, as the paper defines.

    Attributes:
      max_count: Largest distinct position; the paper has 64 and fewer.
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
            raise ValueError("position: contextual positions count up to the query, causally")
        shape = (self.max_count + 1, sizes.head_dim)
        table = self.param("embedding", nn.initializers.normal(self.std), shape)
        return PositionTerms(bias=jax.tree_util.Partial(_contextual_bias, table, sizes.scale))


def _contextual_bias(
    table: Array,
    scale: float,
    query: Array,
    key: Array,
    mask: Array | None,
    first: int | Array = 0,
) -> Array:
    """Returns the bias; the mask has the positions of the queries, so `first` is not needed."""
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

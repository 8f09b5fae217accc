"""ALiBi: scores fall with the distance between query and key."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.position_terms import PositionTerms, Sizes
from transformer_jax.variants.distances import BiasOfDistances


def alibi_slopes(num_heads: int) -> Array:
    """Returns the slope of each head: 2^(-8 h / H), h = 1 .. H, for a power of two.

    Press et al. 2022, arXiv:2108.12409, section 3. Other numbers of heads take those of the next
    lower power of two, then every other one of the next higher, as in the authors' code.

    Args:
      num_heads: Heads, H.
    Returns:
      [H] float32.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-4 * head / power) for head in range(1, 2 * power, 2)]
    return jnp.asarray((slopes + between)[:num_heads], jnp.float32)


class ALiBiPositions(nn.Module):
    """Subtracts from each score the distance of query and key, times a slope of the head.

    bias[h, i, j] = -slope_h |i - j|. Press et al. 2022, arXiv:2108.12409, section 3.
    """

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> a bias [..., H, L, L]."""
        return BiasOfDistances(_alibi_bias).terms(alibi_slopes(sizes.num_heads), positions)


def _alibi_bias(slopes: Array, distances: Array, query: Array) -> Array:
    return -slopes[:, None, None] * jnp.abs(distances)

"""Routing tokens to their experts: sorted into blocks of one expert each, and back.

No token is dropped: an expert gets as many blocks as its tokens fill
(Gale et al. 2022, arXiv:2211.15841, section 4, with whole blocks instead of a sparse kernel). It
uses plain gathers and batched products, so it runs under jit, vmap and grad; ragged_dot of
jax 0.10 has no gradient under vmap, and computes all experts on a CPU.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array


class Routes(NamedTuple):
    """Positions of N tokens with k choices each, in blocks of b rows.

    Attributes:
      place: [N, k] int, row of each token's choice among all rows of all blocks.
      token: [blocks * b] int, token of each row; N for an empty row.
      expert: [blocks] int, expert of each block.
    """

    place: Array
    token: Array
    expert: Array

    def to_blocks(self, rows: Array) -> Array:
        """[N, D] -> [blocks, b, D], 0 in empty rows."""
        wide = jnp.concatenate([rows, jnp.zeros_like(rows[:1])])
        return wide[self.token].reshape(len(self.expert), -1, rows.shape[-1])

    def pairs_to_blocks(self, pairs: Array) -> Array:
        """[N, k, F] -> [blocks, b, F], 0 in empty rows."""
        flat = jnp.zeros((len(self.token), pairs.shape[-1]), pairs.dtype)
        filled = flat.at[self.place.reshape(-1)].set(pairs.reshape(-1, pairs.shape[-1]))
        return filled.reshape(len(self.expert), -1, pairs.shape[-1])

    def to_pairs(self, blocks: Array) -> Array:
        """[blocks, b, F] -> [N, k, F]."""
        return blocks.reshape(-1, blocks.shape[-1])[self.place]


def routes_of(chosen: Array, num_experts: int, block: int) -> Routes:
    """Returns the positions of tokens by their experts.

    Args:
      chosen: Chosen experts, [N, k] int.
      num_experts: Experts, E.
      block: Number of rows in a block, b.
    """
    pairs, k = chosen.size, chosen.shape[-1]
    of_pair = chosen.reshape(-1)
    one_hot = of_pair[:, None] == jnp.arange(num_experts)
    rank = (jnp.cumsum(one_hot, axis=0) - 1)[jnp.arange(pairs), of_pair]  # among its expert's
    blocks = -(-one_hot.sum(0) // block)
    ends = jnp.cumsum(blocks)
    slot = (ends - blocks)[of_pair] * block + rank
    # Each expert leaves at most one block unfilled.
    count = -(-pairs // block) + min(num_experts, pairs)
    token = jnp.full(count * block, len(chosen), jnp.int32)
    token = token.at[slot].set(jnp.arange(pairs, dtype=jnp.int32) // k)
    expert = jnp.searchsorted(ends, jnp.arange(count), side="right")
    return Routes(slot.reshape(chosen.shape), token, jnp.minimum(expert, num_experts - 1))

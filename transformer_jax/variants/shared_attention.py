"""Attention whose keys and values are those of an earlier block."""

from typing import Literal

import flax.linen as nn
import jax
from jax import Array

from transformer_jax.attention import AttentionCall, MultiHeadAttention
from transformer_jax.cache import CacheSlot
from transformer_jax.positions import PositionTerms
from transformer_jax.sites import site


class SharedAttention(MultiHeadAttention):
    """Multi-head attention that hands its keys and values on, or reads those of an earlier block.

    Blocks that read them have neither key and value projections nor a cache. Brandon et al. 2024,
    arXiv:2405.12981, section 2.2; with `layers` such as "GSSS", or "LLLGSSSS" as in Sun et al.
    2024, arXiv:2405.05254, where the second half of the blocks reads one set of keys and values.

    Attributes:
      keys: Keys and values of the block: its own, which later blocks can read, or those of the
        latest earlier block that has its own.
    """

    keys: Literal["own", "earlier"] = "own"

    @nn.nowrap
    def keys_values(
        self, memory: Array, terms: PositionTerms, slot: CacheSlot | None, call: AttentionCall
    ) -> tuple[Array, Array, Array]:
        """[..., M, D] -> all keys and values, [..., G, M, K and V], and the new values."""
        if call.context is None:  # cross-attention
            return super().keys_values(memory, terms, slot, call)
        carry = call.context.carry
        if call.slot is not None and slot is None:
            raise ValueError("attention: a block that shares keys and values cannot keep a state")
        if self.keys == "earlier" and self.values is not None:
            raise ValueError("values: this block reads another's values; expected none")
        if self.keys == "own":
            key_GMK, value_GMV, new_GLV = super().keys_values(memory, terms, slot, call)
            carry.hand_on("keys and values", (key_GMK, value_GMV))
            return key_GMK, value_GMV, new_GLV
        if "keys and values" not in carry.outputs:
            raise ValueError(
                "mixer_options.keys=earlier: no earlier block has keys and values of its own "
                "(mixer=shared_attention, mixer_options.keys=own)"
            )
        key_GMK, value_GMV = carry.latest("keys and values")
        new_GLV = value_GMV
        if slot is not None:
            new_GLV = jax.lax.dynamic_slice_in_dim(value_GMV, slot.first, slot.count, axis=-2)
        return site(self, "key", key_GMK), site(self, "value", value_GMV), new_GLV

"""Softmax attention that computes weights only in and near each query's window."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import (
    AttentionCall,
    SoftmaxAttention,
    attention_weights,
    weighted_sum,
)
from transformer_jax.masks import Mask, Places
from transformer_jax.shapes import in_blocks


class LocalAttention(SoftmaxAttention):
    """Softmax attention in blocks as long as the mask's window, with the keys of adjacent blocks.

    Time and memory then grow with length x window (Beltagy et al. 2020, arXiv:2004.05150, section
    3.1; the blocks of Ainslie et al. 2020, arXiv:2004.08483, appendix A). With other masks, with
    sinks, with a cache or with a bias, it computes softmax attention over all keys, without
    savings. Results are equal up to rounding. Positions must count the tokens of each document one
    by one; otherwise the result is NaN.

    Attributes:
      soft_cap: Bends scores to soft_cap * tanh(score / soft_cap); None disables it.
    """

    hides_weights: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = False

    def __call__(self, query: Array, key: Array, value: Array, call: AttentionCall) -> Array:
        """[..., H, L, K], [..., H, M, K] and [..., H, M, V] -> [..., H, L, V]."""
        mask = call.mask
        is_square = call.bias is None and query.shape[-2] == key.shape[-2]
        window = _window_of(mask) if is_square else None
        if window is None or 2 * window >= query.shape[-2]:
            return weighted_sum(call.adjust(self.weights(query, key, call)), value)
        assert isinstance(mask, Mask)
        after = 0 if "causal" in mask.names else 1
        query_NCK, key_NCK = (in_blocks(array, window, -2) for array in (query, key))
        queries, keys = jax.tree.map(lambda x: in_blocks(x, window, -1), (mask.query, mask.key))
        is_token_NC = in_blocks(jnp.ones(query.shape[-2], bool), window, -1)
        near = jax.tree.map(lambda part: _near(part, after, -1), keys)
        allowed_NCM = (
            Mask(queries, near, mask.rule).dense() & _near(is_token_NC, after, -1)[:, None, :]
        )
        allowed_NCM = allowed_NCM[..., None, :, :, :]  # an axis of heads before the blocks
        keys_NMK, cap = _near(key_NCK, after, -2), self.soft_cap
        weights_NCM = attention_weights(
            query_NCK, keys_NMK, allowed_NCM, scale=call.scale, soft_cap=cap
        )
        values_NMV = _near(in_blocks(value, window, -2), after, -2)
        mixed_NCV = weighted_sum(call.adjust(weights_NCM), values_NMV)
        mixed_LV = mixed_NCV.reshape(*value.shape[:-2], -1, value.shape[-1])
        mixed_LV = mixed_LV[..., : query.shape[-2], :]
        counts = count_by_one(mask.query)[..., None, None, None]
        return jnp.where(counts, mixed_LV, jnp.nan)


def _window_of(mask: Array | Mask | None) -> int | None:
    """Returns the size of a window that contains all visible keys, or None if there is none."""
    if not isinstance(mask, Mask):
        return None
    tags = dict(mask.tags)
    if not tags.keys() <= {"causal", "window", "segment"} or tags.get("window", {}).get("sinks", 1):
        return None
    return tags["window"]["size"]


def _near(array: Array, after: int, axis: int) -> Array:
    """Joins each block in [..., blocks, size, ...] with the one before and the `after` next."""
    blocks = array.ndim + axis - 1
    count = array.shape[blocks]
    ahead = [(0, 0)] * array.ndim
    ahead[blocks] = (1, after)
    wide = jnp.pad(array, ahead)
    take = lambda first: jnp.take(wide, jnp.arange(first, first + count), axis=blocks)  # noqa: E731
    return jnp.concatenate([take(first) for first in range(2 + after)], axis=axis)


def count_by_one(places: Places) -> Array:
    """Returns whether positions increase by one within each segment, [..., L] -> [...] bool.

    Returns False if a different segment interrupts a segment, since its parts may be far apart.
    """
    one = jnp.diff(places.position, axis=-1) == 1
    if places.segment is not None:
        before = jax.lax.cummax(places.segment, axis=places.segment.ndim - 1)[..., :-1]
        one &= jnp.diff(places.segment, axis=-1) == 0
        one |= (places.segment[..., 1:] > before) | (places.segment[..., 1:] == 0)
    return one.all(-1)

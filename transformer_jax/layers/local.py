"""Softmax attention that computes the neighbourhood of a window and nothing else."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.core import Core, serve_groups, weighted_sum, weights_by
from transformer_jax.layers.weights import attention_weights
from transformer_jax.masks import Mask, Places
from transformer_jax.options import Positive
from transformer_jax.shapes import in_blocks


class LocalAttention(Core):
    """Softmax attention in blocks as long as the mask's window, each with its neighbours' keys.

    Time and memory then grow with length x window (Beltagy et al. 2020, arXiv:2004.05150, section
    3.1; the blocks of Ainslie et al. 2020, arXiv:2004.08483, appendix A). Under other masks, with
    sinks, behind a cache and with a bias it is softmax attention of all keys: equal numbers, up to
    rounding, and nothing saved. Positions have to count the tokens of each document one by one;
    where they do not, it gives NaN.

    Attributes:
      scale: in place of 1 / sqrt(d_k).
      soft_cap: bends scores to soft_cap * tanh(score / soft_cap).
    """

    scale: float | None = None
    soft_cap: Positive | None = None

    def __call__(
        self, query: Array, key: Array, value: Array, *, mask: Any, bias: Any, dropout: Any, **_
    ) -> tuple[Array, Any]:
        """See Core; there are no gates, and no state is kept."""
        value = serve_groups(value, query.shape[-3])
        window = _window_of(mask) if bias is None and query.shape[-2] == key.shape[-2] else None
        if window is None or 2 * window >= query.shape[-2]:
            weights = weights_by(self.weights, query, key, mask, bias)
            return weighted_sum(weights if dropout is None else dropout(weights), value), None
        assert isinstance(mask, Mask)
        key = serve_groups(key, query.shape[-3])
        after = 0 if "causal" in mask.names else 1
        query_NCK, key_NCK = (in_blocks(array, window, -2) for array in (query, key))
        ours, theirs = jax.tree.map(
            lambda part: in_blocks(part, window, -1), (mask.query, mask.key)
        )
        is_token_NC = in_blocks(jnp.ones(query.shape[-2], bool), window, -1)
        near = jax.tree.map(lambda part: _near(part, after, -1), theirs)
        allowed_NCM = (
            Mask(ours, near, mask.rule).dense() & _near(is_token_NC, after, -1)[:, None, :]
        )
        allowed_NCM = allowed_NCM[..., None, :, :, :]  # an axis of heads before the blocks
        weights_NCM = self.weights(
            query_NCK, _near(key_NCK, after, -2), mask=allowed_NCM, bias=None
        )
        weights_NCM = weights_NCM if dropout is None else dropout(weights_NCM)
        mixed_NCV = weighted_sum(weights_NCM, _near(in_blocks(value, window, -2), after, -2))
        mixed_LV = mixed_NCV.reshape(*value.shape[:-2], -1, value.shape[-1])
        mixed_LV = mixed_LV[..., : query.shape[-2], :]
        counts = count_by_one(mask.query)[..., None, None, None]
        return jnp.where(counts, mixed_LV, jnp.nan), None

    def weights(self, query: Array, key: Array, *, mask: Array | None, bias: Array | None) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> weights [..., H, L, M]."""
        return attention_weights(query, key, mask, bias, scale=self.scale, soft_cap=self.soft_cap)


def _window_of(mask: Array | Mask | None) -> int | None:
    """The size of a window in which all that is seen lies; None where there is none."""
    if not isinstance(mask, Mask):
        return None
    tags = dict(mask.tags)
    if not tags.keys() <= {"causal", "window", "segment"} or tags.get("window", {}).get("sinks", 1):
        return None
    return tags["window"]["size"]


def _near(array: Array, after: int, axis: int) -> Array:
    """[..., blocks, size, ...] -> each block behind the one before it, and before the next."""
    blocks = array.ndim + axis - 1
    count = array.shape[blocks]
    ahead = [(0, 0)] * array.ndim
    ahead[blocks] = (1, after)
    wide = jnp.pad(array, ahead)
    take = lambda first: jnp.take(wide, jnp.arange(first, first + count), axis=blocks)  # noqa: E731
    return jnp.concatenate([take(first) for first in range(2 + after)], axis=axis)


def count_by_one(places: Places) -> Array:
    """Returns whether places are one behind the other in each segment, [..., L] -> [...] bool.

    A segment that comes back is none: what it saw before may be far from it.
    """
    one = jnp.diff(places.position, axis=-1) == 1
    if places.segment is not None:
        before = jax.lax.cummax(places.segment, axis=places.segment.ndim - 1)[..., :-1]
        one &= jnp.diff(places.segment, axis=-1) == 0
        one |= (places.segment[..., 1:] > before) | (places.segment[..., 1:] == 0)
    return one.all(-1)

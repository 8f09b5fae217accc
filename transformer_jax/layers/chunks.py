"""Attention for some queries at a time, so that the weights of all are never there at once.

The mathematics is that of the row: a query's weights are made whole, over all its keys, so nothing
is approximated. Rabe and Staats 2021, arXiv:2112.05682, go further and cut the keys as well.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.core import Bias, serve_groups, weighted_sum, weights_by
from transformer_jax.masks import Mask

_BANDS = 4  # stretches of queries, each of which looks at no key behind it where it may see none


def mix_in_chunks(
    weigh: Callable[..., Array],
    query: Array,
    key: Array,
    value: Array,
    *,
    size: int,
    mask: Array | Mask | None = None,
    bias: Bias | None = None,
    values: Callable[..., Array] | None = None,
    drop: Callable[[Array, Array | int], Array] | None = None,
) -> Array:
    """Returns what attention mixes, `size` queries at a time.

    Up to four chunks keep their weights for the backward pass; more make them again, so that the
    memory of a step is that of one chunk.

    Args:
      weigh: a row that gives weights, (place of the first query, query, key, *, mask, bias) ->
        [..., H, L, M], each query's on its own.
      query: [..., H, L, K].
      key: [..., G, M, K].
      value: [..., G, M, V].
      size: queries in a chunk.
      mask: as in Core.
      bias: as in Core; one that is called takes `first`, the place of a chunk's first query.
      values: as in PositionTerms.
      drop: from weights and the place of their first query to those that are kept.
    Returns:
      [..., H, L, V], in the dtype of the values.
    """
    length = query.shape[-2]
    can_cut = isinstance(mask, Mask) and "causal" in mask.names and not callable(bias)
    can_cut = can_cut and values is None and key.shape[-2] == length

    def chunk(first: Array | int, count: int, end: int) -> Array:
        """Of the queries from `first` on, over the keys before `end`."""
        rows = lambda array: _rows(array, first, count)  # noqa: E731
        mask_CM = _part_of(mask, first, count, end)
        bias_CM = bias
        if callable(bias):
            bias_CM = jax.tree_util.Partial(bias, first=first)
        elif bias is not None:
            bias_CM = rows(bias)[..., :end]
        weights_HCM = weights_by(
            functools.partial(weigh, first), rows(query), key[..., :end, :], mask_CM, bias_CM
        )
        kept_HCM = weights_HCM if drop is None else drop(weights_HCM, first)
        mixed_HCV = weighted_sum(kept_HCM, serve_groups(value[..., :end, :], query.shape[-3]))
        if values is not None:
            mixed_HCV += values(kept_HCM, first=first).astype(mixed_HCV.dtype)
        return mixed_HCV

    def loop(firsts: Sequence[int], end: int) -> Array:
        """Several chunks of one size, which look at the same keys."""
        run = again(lambda first: chunk(first, size, end))
        if len(firsts) == 1:
            return run(firsts[0])
        _, parts_HNCV = jax.lax.scan(lambda _, first: (None, run(first)), None, jnp.asarray(firsts))
        parts_HNCV = jnp.moveaxis(parts_HNCV, 0, -3)  # [..., H, chunks, size, V]
        return parts_HNCV.reshape(*parts_HNCV.shape[:-3], len(firsts) * size, parts_HNCV.shape[-1])

    def again(run: Callable) -> Callable:
        """Of several chunks each is made again for the backward pass."""
        return jax.checkpoint(run) if length > _BANDS * size else run

    whole = range(0, length - length % size, size)
    cuts = [len(whole) * band // _BANDS for band in range(_BANDS + 1)]
    bands = [whole[low:high] for low, high in itertools.pairwise(cuts) if low < high]
    if not can_cut and len(whole) > _BANDS:
        bands = [whole]
    ends = [band[-1] + size if can_cut else key.shape[-2] for band in bands]
    parts = [loop(band, end) for band, end in zip(bands, ends, strict=True)]
    if length % size:
        last = again(lambda first: chunk(first, length % size, key.shape[-2]))
        parts.append(last(length - length % size))
    return jnp.concatenate(parts, axis=-2)


def _rows(array: Array, first: Any, count: int) -> Array:
    """[..., L, F] -> [..., count, F] from a place on; one row for all stays."""
    if array.shape[-2] == 1:
        return array
    return jax.lax.dynamic_slice_in_dim(array, first, count, axis=-2)


def _part_of(mask: Any, first: Any, count: int, end: int) -> Any:
    """The mask of some queries, over the keys before `end`."""
    if mask is None:
        return None
    if not isinstance(mask, Mask):
        return _rows(mask, first, count)[..., :end]
    part = mask.of_queries(first, count)
    if end == part.key.index.shape[-1]:
        return part
    return dataclasses.replace(part, key=jax.tree.map(lambda places: places[..., :end], part.key))

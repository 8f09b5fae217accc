"""Softmax attention in chunks of queries, so that memory never holds the weights of all of them.

A query's weights are computed over all its keys, so nothing is approximated.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import AttentionCall, SoftmaxAttention, weighted_sum
from transformer_jax.masks import Mask
from transformer_jax.options import Count

_BANDS = 4  # groups of queries; under a causal mask, each leaves out the keys after it


class ChunkedAttention(SoftmaxAttention):
    """Softmax attention that computes its weights for some queries at a time, to save memory.

    As in Rabe and Staats 2021, arXiv:2112.05682, section 2, except that keys are not divided. Up to
    four chunks keep their weights for the backward pass; more recompute them, so that a step needs
    the memory of one chunk. With a cache it computes plain softmax attention. Results are equal up
    to rounding. Each chunk draws its own dropout.

    Attributes:
      size: Number of queries in a chunk.
      soft_cap: Bends scores to soft_cap * tanh(score / soft_cap); None disables it.
    """

    size: Count = 128
    hides_weights: ClassVar[bool] = True
    takes_groups: ClassVar[bool] = False

    @nn.compact
    def __call__(self, query: Array, key: Array, value: Array, call: AttentionCall) -> Array:
        """[..., H, L, K], [..., H, M, K] and [..., H, M, V] -> [..., H, L, V]."""
        softmax = SoftmaxAttention(self.soft_cap, parent=None)
        if call.slot is not None or query.shape[-2] <= self.size:
            return softmax(query, key, value, call)
        rng = self.make_rng("dropout") if call.dropout_rate else None
        dropout = nn.Dropout(call.dropout_rate, deterministic=False, parent=None)

        def mix(first: Array | int, query: Array, key: Array, value: Array, **terms: Any) -> Array:
            weights = softmax.weights(query, key, call._replace(**terms))
            if rng is not None:
                own = {"dropout": jax.random.fold_in(rng, first)}
                weights = jnp.asarray(dropout.apply({}, weights, rngs=own))
            return weighted_sum(weights, value)

        return attend_in_chunks(mix, query, key, value, self.size, call.mask, call.bias)


def attend_in_chunks(
    attend: Callable[..., Array],
    query: Array,
    key: Array,
    value: Array,
    size: int,
    mask: Array | Mask | None = None,
    bias: Any = None,
) -> Array:
    """Returns the output of attention, computed for `size` queries at a time.

    Args:
      attend: Function (index of the first query, query, key, value, mask=..., bias=...) ->
        [..., H, L, V], in which queries are independent of each other.
      query: [..., H, L, K].
      key: [..., H, M, K].
      value: [..., H, M, V].
      size: Number of queries in a chunk.
      mask: As in MultiHeadAttention.
      bias: As in PositionTerms.
    """
    length = query.shape[-2]
    can_cut = isinstance(mask, Mask) and "causal" in mask.names and not callable(bias)
    can_cut = can_cut and key.shape[-2] == length

    def chunk(first: Array | int, count: int, end: int) -> Array:
        """Returns the outputs of the queries from `first` on, over the keys before `end`."""
        part = bias
        if callable(bias):
            part = jax.tree_util.Partial(bias, first=first)
        elif bias is not None:
            part = _rows(bias, first, count)[..., :end]
        terms = {"mask": _part_of(mask, first, count, end), "bias": part}
        keys, values = key[..., :end, :], value[..., :end, :]
        return attend(first, _rows(query, first, count), keys, values, **terms)

    def loop(firsts: Sequence[int], end: int) -> Array:
        """Returns the outputs of several chunks of the same size, over the same keys."""
        run = again(lambda first: chunk(first, size, end))
        if len(firsts) == 1:
            return run(firsts[0])
        _, parts_HNCV = jax.lax.scan(lambda _, first: (None, run(first)), None, jnp.asarray(firsts))
        parts_HNCV = jnp.moveaxis(parts_HNCV, 0, -3)  # [..., H, chunks, size, V]
        return parts_HNCV.reshape(*parts_HNCV.shape[:-3], len(firsts) * size, parts_HNCV.shape[-1])

    def again(run: Callable) -> Callable:
        """Returns `run`, recomputed in the backward pass if there are more than four chunks."""
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
    """Selects rows from `first` on: [..., L, F] -> [..., count, F]; if L is 1, the row is kept."""
    if array.shape[-2] == 1:
        return array
    return jax.lax.dynamic_slice_in_dim(array, first, count, axis=-2)


def _part_of(mask: Any, first: Any, count: int, end: int) -> Any:
    """Returns the mask for some queries, over the keys before `end`."""
    if mask is None:
        return None
    if not isinstance(mask, Mask):
        return _rows(mask, first, count)[..., :end]
    part = mask.of_queries(first, count)
    if end == part.key.index.shape[-1]:
        return part
    return dataclasses.replace(part, key=jax.tree.map(lambda places: places[..., :end], part.key))

"""Attention masks as bool arrays, True = may attend, joined by `&`.

A mask is [..., L, M]: row = query position, column = key position. There is no mask class: what is
allowed by two rules is `a & b`, and a mask can be printed, compared and tested as the 0/1 grid
that it is.
"""

import jax.numpy as jnp
from jax import Array

from transformer_jax.options import Count, Natural


def causal_mask(length: int, key_length: int | None = None) -> Array:
    """Returns the mask that hides the future: query i sees keys j <= i.

    With more keys than queries the *last* query lines up with the last key, which is what decoding
    behind a cache needs (jax.nn's `is_causal` lines up the first ones).

    Args:
      length: number of queries, L.
      key_length: number of keys, M; L if not given.
    Returns:
      [L, M] bool.
    """
    ahead = _offsets(length, key_length)
    return ahead <= 0


def window_mask(length: int, window: int, key_length: int | None = None) -> Array:
    """Returns the mask of a sliding window: query i sees keys with |i - j| < window.

    `causal_mask(n) & window_mask(n, w)` lets each query see itself and the w - 1 positions before
    (Beltagy et al. 2020, arXiv:2004.05150, section 3.1; Mistral's convention).

    Args:
      length: number of queries, L.
      window: positions, at least 1.
      key_length: number of keys, M; L if not given.
    Returns:
      [L, M] bool.
    Raises:
      ValueError: window < 1.
    """
    if window < 1:
        raise ValueError(f"window: expected at least 1 position, got {window}")
    return jnp.abs(_offsets(length, key_length)) < window


def prefix_mask(length: int, prefix_length: int | Array) -> Array:
    """Returns the prefix-LM mask: the prefix is seen by everybody, the rest is causal.

    Raffel et al. 2020, arXiv:1910.10683, figure 4 (right).

    Args:
      length: number of positions, L.
      prefix_length: number of leading positions that see each other; an int, or [...] int.
    Returns:
      [..., L, L] bool.
    """
    in_prefix = jnp.arange(length) < jnp.asarray(prefix_length)[..., None, None]
    return causal_mask(length) | in_prefix


def padding_mask(is_token: Array) -> Array:
    """Returns the mask that hides padded keys from every query.

    Args:
      is_token: [..., M] bool, False where the memory is padding.
    Returns:
      [..., 1, M] bool; broadcasts over queries.
    Raises:
      ValueError: is_token is not bool.
    """
    if is_token.dtype != jnp.bool_:
        raise ValueError(f"is_token: expected bool, True = token, got {is_token.dtype}")
    return is_token[..., None, :]


def segment_mask(segments: Array, key_segments: Array | None = None) -> Array:
    """Returns the mask that keeps packed documents apart: equal segment numbers see each other.

    Segment 0 is padding and is seen by nobody, so a padded query has a fully masked row.

    Args:
      segments: [..., L] int, the queries' document numbers from 1.
      key_segments: [..., M] int, the keys'; the queries' own if not given.
    Returns:
      [..., L, M] bool.
    Raises:
      ValueError: the numbers are not integers.
    """
    key_segments = segments if key_segments is None else key_segments
    for name, array in (("segments", segments), ("key_segments", key_segments)):
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"{name}: expected integers, 0 = padding, got {array.dtype}")
    same = segments[..., :, None] == key_segments[..., None, :]
    return same & (key_segments != 0)[..., None, :]


def _offsets(length: int, key_length: int | None) -> Array:
    """[L, M] int: how many positions key j lies ahead of query i, last aligned with last."""
    key_length = length if key_length is None else key_length
    queries = jnp.arange(length) + (key_length - length)
    return jnp.arange(key_length)[None, :] - queries[:, None]


# ---------------------------------------------------------------- rows: what self-attention may see


def full(positions: Array, past_only: Array | None) -> Array | None:
    """Everything, or in a causal model everything that came before (Vaswani et al. 2017, 3.2.3).

    Args:
      positions: [..., L] int.
      past_only: [L, L] bool in a causal model; None in one that looks both ways.
    Returns:
      [..., L, L] bool, or None where nothing is hidden.
    """
    return past_only


def causal(positions: Array, past_only: Array | None) -> Array | None:
    """Only what came before, also in an encoder, whose places otherwise see both sides.

    To ask what seeing both sides is worth (Devlin et al. 2019, section 5.1, "LTR & No NSP"); a
    decoder sees no more than this in any case.

    Args:
      positions: [..., L] int.
      past_only: [L, L] bool in a causal model; None in one that looks both ways.
    Returns:
      [L, L] bool.
    """
    return causal_mask(positions.shape[-1]) if past_only is None else past_only


def window(
    positions: Array, past_only: Array | None, size: Count = 32, sinks: Natural = 0
) -> Array | None:
    """Positions less than `size` away, and the first few (Beltagy et al. 2020, arXiv:2004.05150).

    A causal query sees itself and the size - 1 positions before, as in Mistral. The first `sinks`
    positions stay visible, as attention sinks (Xiao et al. 2023, arXiv:2309.17453, section 3.2).

    Args:
      positions: [..., L] int.
      past_only: [L, L] bool in a causal model; None in one that looks both ways.
      size: positions, with the query's own.
      sinks: first positions that everybody sees.
    Returns:
      [..., L, L] bool.
    """
    distance = jnp.abs(positions[..., None, :] - positions[..., :, None])
    near = (distance < size) | (positions < sinks)[..., None, :]
    return near if past_only is None else near & past_only


def prefix(positions: Array, past_only: Array | None, length: Count = 16) -> Array | None:
    """The first positions see each other, the rest is causal (Raffel et al. 2020, figure 4).

    Args:
      positions: [..., L] int.
      past_only: [L, L] bool.
      length: positions of the prefix.
    Returns:
      [..., L, L] bool.
    Raises:
      ValueError: the model is not causal, so there is nothing that a prefix would add.
    """
    if past_only is None:
        raise ValueError("mask: a prefix is for causal models; this one sees everything")
    return past_only | (positions < length)[..., None, :]


def unmasked(positions: Array, past_only: Array | None) -> Array | None:
    """Everything, even in a causal model, which then reads the token that it has to predict.

    To show what the causal mask is for (Vaswani et al. 2017, section 3.2.3): the loss of such a
    decoder is no prediction.

    Args:
      positions: [..., L] int.
      past_only: [L, L] bool in a causal model, not heeded.
    Returns:
      None: nothing is hidden.
    """
    return None


MASKS = {
    "full": full,
    "causal": causal,
    "window": window,
    "prefix": prefix,
    "unmasked": unmasked,
}

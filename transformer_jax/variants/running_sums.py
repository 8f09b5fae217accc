"""Running sums over the past, computed chunk by chunk in linear time."""

import math

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.masks import Mask
from transformer_jax.shapes import in_blocks

_FASTEST, _SLOWEST = 0.1, 0.001  # range of the initial step sizes


def running_sums(
    query: Array,
    key: Array,
    value: Array,
    state: Array,
    *,
    chunk: int,
    log_decay: Array | None = None,
    starts: Array | None = None,
) -> tuple[Array, Array]:
    """Returns q_t^T S_t for each token, and the last S, where S_t = a_t S_(t-1) + k_t v_t^T.

    Inside a chunk all pairs are computed; a state [K, V] summarises all earlier chunks. This is the
    block decomposition of Dao and Gu 2024, arXiv:2405.21060, section 6. Without decay, the result
    is the numerator of causal linear attention.

    Args:
      query: [..., L, K].
      key: [..., L, K].
      value: [..., L, V].
      state: [..., K, V], S before the first token.
      chunk: Number of tokens processed in one pass.
      log_decay: [..., L], log a_t <= 0; 0 if None.
      starts: [..., L] bool, True where a document begins, with S = 0 before it; None if nowhere.
    Returns:
      [..., L, V], and S after the last token.
    """
    length = query.shape[-2]
    chunk = min(chunk, length)
    leading = jnp.broadcast_shapes(query.shape[:-2], value.shape[:-2])
    if not length:  # generation without a prompt begins with no tokens
        return jnp.zeros((*leading, 0, value.shape[-1]), value.dtype), state
    decay = jnp.zeros(length, query.dtype) if log_decay is None else log_decay
    begins = jnp.zeros(length, bool) if starts is None else starts
    rows = [jnp.broadcast_to(array, (*leading, length))[..., None] for array in (decay, begins)]

    def read(state: Array, tokens: tuple[Array, ...]) -> tuple[Array, Array]:
        query_CK, key_CK, value_CV, decay_C1, begins_C1 = tokens
        document_C1 = jnp.cumsum(begins_C1, axis=-2)
        since_C1 = jnp.cumsum(decay_C1, axis=-2)  # log of the share left of the initial state
        # Decay from a key to a later query; a difference of `since` would lose it to rounding.
        of_query_CC = jnp.broadcast_to(decay_C1, (*decay_C1.shape[:-1], decay_C1.shape[-2]))
        between_CC = jnp.cumsum(jnp.tril(of_query_CC, -1), axis=-2)
        seen_CC = jnp.tril(document_C1 == jnp.swapaxes(document_C1, -1, -2))
        left_CC = jnp.where(seen_CC, jnp.exp(jnp.where(seen_CC, between_CC, 0)), 0)
        agreement_CC = jnp.einsum("...LK,...MK->...LM", query_CK, key_CK) * left_CC
        earlier_CV = jnp.einsum("...LK,...KV->...LV", query_CK, state)
        earlier_CV = earlier_CV * jnp.where(document_C1 == 0, jnp.exp(since_C1), 0)
        kept_CK = key_CK * jnp.swapaxes(left_CC[..., -1:, :], -1, -2)
        last, end = document_C1[..., -1:, :], since_C1[..., -1:, :]
        state = state * jnp.where(last == 0, jnp.exp(end), 0)
        state = state + jnp.einsum("...MK,...MV->...KV", kept_CK, value_CV)
        return state, jnp.einsum("...LM,...MV->...LV", agreement_CC, value_CV) + earlier_CV

    tokens = (query, key, value, *rows)
    if length == chunk:
        state, mixed = read(state, tokens)
        return mixed, state
    chunks = tuple(jnp.moveaxis(in_blocks(array, chunk, -2), -3, 0) for array in tokens)
    state, mixed = jax.lax.scan(read, state, chunks)
    mixed = jnp.moveaxis(mixed, 0, -3)
    return mixed.reshape(*mixed.shape[:-3], -1, mixed.shape[-1])[..., :length, :], state


def segments_of_a_causal_mask(mask: Array | Mask | None, who: str) -> Array | None:
    """Returns the segments [..., L] of a causal mask, or None if it has none.

    Raises:
      ValueError: The mask is not causal, or hides more than the future and other documents.
    """
    if isinstance(mask, Mask) and {"causal"} <= mask.names <= {"causal", "segment"}:
        return mask.query.segment
    got = mask.rule if isinstance(mask, Mask) else "none" if mask is None else "an array"
    raise ValueError(
        f"mask: {who} reads from left to right and has no memory input; expected a causal mask, "
        f"alone or with segments, as a rule (transformer_jax.Mask), got {got}"
    )


def document_starts(segment: Array) -> Array:
    """Marks the first token of every document except the first: [..., L] int -> [..., L] bool."""
    return segment != jnp.concatenate([segment[..., :1], segment[..., :-1]], axis=-1)


def logs_of_counts(key: Array, shape: tuple[int]) -> Array:
    """Returns initial values log 1, log 2, ..., with which heads forget at different rates."""
    return jnp.log(jnp.arange(1, shape[0] + 1, dtype=jnp.float32))


def time_steps(key: Array, shape: tuple[int]) -> Array:
    """Returns initial inputs of softplus, for log-uniform step sizes from 0.001 to 0.1."""
    logs = jax.random.uniform(key, shape, jnp.float32, math.log(_SLOWEST), math.log(_FASTEST))
    return jnp.log(jnp.expm1(jnp.exp(logs)))

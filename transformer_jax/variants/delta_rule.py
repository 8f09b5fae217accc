"""The delta rule with decay, computed chunk by chunk."""

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.linalg import solve_triangular

from transformer_jax.shapes import in_blocks


def delta_rule(
    query: Array,
    key: Array,
    value: Array,
    log_decay: Array,
    write: Array,
    state: Array,
    *,
    chunk: int,
    starts: Array | None = None,
) -> tuple[Array, Array]:
    """Returns S_t^T q_t for each token, and the last state S.

    S_t = (I - b_t k_t k_t^T) diag(a_t) S_(t-1) + b_t k_t v_t^T, i.e. S_t = diag(a_t) S_(t-1) + k_t
    u_t^T with u_t = b_t (v_t - S_(t-1)^T diag(a_t) k_t). Inside a chunk, all u are the solution of
    a triangular system (Yang et al. 2024, arXiv:2406.06484, section 3.2; with decay 2025,
    arXiv:2412.06464, section 3.3; with a decay of each feature 2025, arXiv:2510.26692, section 3).

    Args:
      query: [..., L, K] float32 or wider, as all arrays.
      key: [..., L, K].
      value: [..., L, V].
      log_decay: [..., L, K], log a_t <= 0 for each feature of the keys; or [..., L, 1].
      write: [..., L], b_t.
      state: [..., K, V], S before the first token.
      chunk: Number of tokens processed in one pass.
      starts: [..., L] bool, True where a document begins, with S = 0 before it; None if nowhere.
    Returns:
      [..., L, V], and S after the last token.
    """
    length = query.shape[-2]
    chunk = min(chunk, length)
    leading = jnp.broadcast_shapes(query.shape[:-2], value.shape[:-2])
    if not length:  # generation without a prompt begins with no tokens
        return jnp.zeros((*leading, 0, value.shape[-1]), value.dtype), state
    begins = jnp.zeros(length, bool) if starts is None else starts
    rows = [jnp.broadcast_to(array, (*leading, length))[..., None] for array in (write, begins)]

    def read(state: Array, tokens: tuple[Array, ...]) -> tuple[Array, Array]:
        query_CK, key_CK, value_CV, decay_CK, write_C1, begins_C1 = tokens
        document_C1 = jnp.cumsum(begins_C1, axis=-2)
        seen_CC = jnp.tril(document_C1 == jnp.swapaxes(document_C1, -1, -2))
        # What is left of the state before the chunk, and of key j at query i.
        since_CK = jnp.where(document_C1 == 0, jnp.exp(jnp.cumsum(decay_CK, axis=-2)), 0)
        agree_CC, answer_CC, last_CK = _decayed(query_CK, key_CK, decay_CK, seen_CC)
        # (I + T) U = b (V - (K a) S), with T strictly lower triangular.
        system_CC = jnp.tril(write_C1 * agree_CC, -1) + jnp.eye(chunk, dtype=query.dtype)
        known_CV = write_C1 * (value_CV - (key_CK * since_CK) @ state)
        new_CV = solve_triangular(system_CC, known_CV, lower=True, unit_diagonal=True)
        mixed_CV = (query_CK * since_CK) @ state + answer_CC @ new_CV
        state = jnp.swapaxes(since_CK[..., -1:, :], -1, -2) * state
        return state + jnp.swapaxes(key_CK * last_CK, -1, -2) @ new_CV, mixed_CV

    tokens = (query, key, value, log_decay, *rows)
    if length == chunk:
        state, mixed = read(state, tokens)
        return mixed, state
    chunks = tuple(jnp.moveaxis(in_blocks(array, chunk, -2), -3, 0) for array in tokens)
    state, mixed = jax.lax.scan(read, state, chunks)
    mixed = jnp.moveaxis(mixed, 0, -3)
    return mixed.reshape(*mixed.shape[:-3], -1, mixed.shape[-1])[..., :length, :], state


def _decayed(query: Array, key: Array, log_decay: Array, seen: Array) -> tuple[Array, ...]:
    """Returns products of keys with keys, and of queries with keys, times the decay in between.

    Args:
      query: [..., C, K].
      key: [..., C, K].
      log_decay: [..., C, K], or [..., C, 1].
      seen: [..., C, C] bool, lower triangular.
    Returns:
      Products [..., C, C] twice; and the decay of each key until the last token, [..., C, K or 1].
    """
    # The exponents are sums over the tokens between: differences of running sums would lose digits.
    if log_decay.shape[-1] == 1:
        of_query_CC = jnp.broadcast_to(log_decay, seen.shape)
        between_CC = jnp.cumsum(jnp.tril(of_query_CC, -1), axis=-2)
        left_CC = jnp.where(seen, jnp.exp(jnp.where(seen, between_CC, 0)), 0)
        products = (array @ jnp.swapaxes(key, -1, -2) * left_CC for array in (key, query))
        return *products, jnp.swapaxes(left_CC[..., -1:, :], -1, -2)
    is_later = jnp.tril(jnp.ones_like(seen), -1)[..., None]
    between_CCK = jnp.cumsum(jnp.where(is_later, log_decay[..., :, None, :], 0), axis=-3)
    left_CCK = jnp.where(seen[..., None], jnp.exp(between_CCK), 0)
    axes = "...LK,...MK,...LMK->...LM"
    products = (jnp.einsum(axes, array, key, left_CCK) for array in (key, query))
    return *products, left_CCK[..., -1, :, :]


def of_length_one(array: Array) -> Array:
    """Scales vectors to length 1: [..., K] -> [..., K]; 0 stays 0."""
    return array * jax.lax.rsqrt((array**2).sum(-1, keepdims=True) + 1e-6)

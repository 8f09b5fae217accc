"""Caches of keys, values and recurrent states, for token-by-token generation.

The keys and values of every layer, and the states of recurrent layers, are variables in the
collection `cache`. A caller that makes this collection mutable (`apply(..., mutable=["cache"])`)
receives it with the logits and passes it in with the next tokens; otherwise nothing is cached. So
the model stays a pure function, with the cache as an input and an output.

Keys and values of cross-attention are not cached: they are recomputed in each call.
"""

import math
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array


class CacheSlot(NamedTuple):
    """Write positions of new tokens in a cache.

    Attributes:
      first: Number of tokens already in the cache, int.
      count: Number of new tokens, T.
      capacity: Largest number of tokens that the cache can hold, M.
    """

    first: Array
    count: int
    capacity: int


def uses_cache(module: nn.Module) -> bool:
    """Returns whether the module's current call reads and writes a cache."""
    return module.is_mutable_collection("cache") and not module.is_initializing()


def advance_cache(module: nn.Module, count: int, capacity: int) -> CacheSlot | None:
    """Counts new tokens and returns their slot, or None if no cache is in use.

    Args:
      module: Module that keeps the count.
      count: Number of new tokens.
      capacity: Capacity of a new cache; an existing cache keeps its own.
    """
    if not uses_cache(module):
        return None
    arrays = jax.tree.leaves_with_path(module.variables.get("cache", {}))
    capacity = next((rows.shape[1] for path, rows in arrays if _is_by_place(path)), capacity)
    held = module.variable("cache", "length", lambda: jnp.int32(0))
    slot = CacheSlot(held.value, count, capacity)
    held.value = held.value + count
    return slot


def with_capacity(cache: Any, capacity: int) -> Any:
    """Returns a cache resized to `capacity` tokens.

    A small capacity saves time, since each new token reads all rows, even empty ones.

    Args:
      cache: The collection `cache`, with at most `capacity` tokens.
      capacity: Largest number of tokens that the resized cache can hold.
    """

    def resized(path: tuple, rows: Array) -> Array:
        if not _is_by_place(path):
            return rows
        more = max(0, capacity - rows.shape[1])
        return jnp.pad(rows[:, :capacity], ((0, 0), (0, more), (0, 0)))

    return jax.tree.map_with_path(resized, cache)


def _is_by_place(path: tuple) -> bool:
    """Returns whether the cache array at a path has one row per token, unlike states and counts."""
    return getattr(path[-1], "key", None) in ("keys", "values")  # states can be tuples


def append_to_cache(module: nn.Module, name: str, new: Array, slot: CacheSlot | None) -> Array:
    """Writes new rows after those in the cache, and returns all rows.

    Args:
      module: Module that keeps the rows.
      name: Name of the cached array, e.g. keys or values.
      new: New rows, [..., T, F].
      slot: Write positions, or None if nothing is cached.
    Returns:
      All rows [..., M, F], zeros where nothing was written; `new` if nothing is cached.
    """
    if slot is None:
        return new
    # Leading axes are merged: with several, XLA on CPU copies the whole cache for each token, and
    # the token after 1,023 others took 0.99 ms instead of 0.39 (shakespeare.py, 2 CPU cores).
    *leading, count, features = new.shape
    rows = math.prod(leading)
    shape = (rows, slot.capacity, features)
    variable: Any = module.variable("cache", name, jnp.zeros, shape, new.dtype)
    flat = new.reshape(rows, count, features)
    variable.value = jax.lax.dynamic_update_slice_in_dim(variable.value, flat, slot.first, axis=1)
    return variable.value.reshape(*leading, slot.capacity, features)


def kept_state(module: nn.Module, layer: int, reads_on: bool, otherwise: Any = None) -> Any:
    """Returns the state of a recurrent layer after the last token read.

    Args:
      module: Module that keeps the state.
      layer: Index of the state among those of the module.
      reads_on: Whether this call uses a cache; if not, any stored state is ignored.
      otherwise: State before the first token, returned if there is no stored state.
    """
    return module.get_variable("cache", f"state_{layer}", otherwise) if reads_on else otherwise


def keep_state(module: nn.Module, layer: int, reads_on: bool, state: Any) -> None:
    """Stores a layer's state for the next call, if `reads_on`; arguments as in kept_state."""
    if reads_on:
        module.put_variable("cache", f"state_{layer}", state)


def nan_on_overflow(hidden: Array, slot: CacheSlot | None) -> Array:
    """Returns `hidden`, or NaN everywhere if more tokens were read than the cache can hold.

    Silently, XLA writes rows beyond the end over the last ones (jax.lax.dynamic_update_slice).
    """
    if slot is None:
        return hidden
    fits = slot.first + slot.count <= slot.capacity
    return jnp.where(fits, hidden, jnp.nan)

"""Caches of keys, values and recurrent states, for generating token by token.

The keys and values of every layer, and the states of recurrent ones, are variables of the
collection `cache`. Whoever asks for that collection (`apply(..., mutable=["cache"])`) gets it with
the logits and gives it back with the next tokens; whoever does not, computes without it. A cache
is an input and an output of a pure function, as parameters are.

What cross-attention takes from the memory is not kept: it is computed with each call.
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
      first: tokens that it holds already, int.
      count: new ones, T.
      capacity: most tokens that it can hold, M.
    """

    first: Array
    count: int
    capacity: int


def uses_cache(module: nn.Module) -> bool:
    """Returns whether this call reads and writes a cache."""
    return module.is_mutable_collection("cache") and not module.is_initializing()


def advance_cache(module: nn.Module, count: int, capacity: int) -> CacheSlot | None:
    """Counts new tokens; None where no cache is in use.

    Args:
      module: that keeps the count.
      count: new tokens.
      capacity: most tokens of a cache that begins here; one that is there says itself.
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
    """Returns a cache that holds so many tokens at most, of what a call returned.

    Each new token reads all places of it, empty ones too.

    Args:
      cache: the collection; has to hold no more than that.
      capacity: most tokens.
    """

    def resized(path: tuple, rows: Array) -> Array:
        if not _is_by_place(path):
            return rows
        more = max(0, capacity - rows.shape[1])
        return jnp.pad(rows[:, :capacity], ((0, 0), (0, more), (0, 0)))

    return jax.tree.map_with_path(resized, cache)


def _is_by_place(path: tuple) -> bool:
    """Returns whether a cache array has a row per token; states and the count have not."""
    return getattr(path[-1], "key", None) in ("keys", "values")  # states may be tuples


def append_to_cache(module: nn.Module, name: str, new: Array, slot: CacheSlot | None) -> Array:
    """Writes new rows behind those that are kept.

    Args:
      module: that keeps them.
      name: of what is kept, keys or values.
      new: [..., T, F].
      slot: where they stand; None keeps nothing.
    Returns:
      All rows [..., M, F], zeros where nothing has been written; `new` if nothing is kept.
    """
    if slot is None:
        return new
    # One leading axis: with more of them XLA on CPU copies all that is kept for each token, and the
    # token after 1,023 others took 0.99 ms in place of 0.39 (shakespeare.py, 2 CPU cores).
    *leading, count, features = new.shape
    rows = math.prod(leading)
    shape = (rows, slot.capacity, features)
    variable: Any = module.variable("cache", name, jnp.zeros, shape, new.dtype)
    flat = new.reshape(rows, count, features)
    variable.value = jax.lax.dynamic_update_slice_in_dim(variable.value, flat, slot.first, axis=1)
    return variable.value.reshape(*leading, slot.capacity, features)


def kept_state(module: nn.Module, layer: int, reads_on: bool, otherwise: Any = None) -> Any:
    """Returns the state of a recurrent layer after the last token that was read.

    Args:
      module: that keeps it.
      layer: number of the state.
      reads_on: whether this call reads behind a cache, as a slot says; if not, nothing is kept, and
        what an earlier call left in the collection is not looked at.
      otherwise: what there is before the first token.
    """
    return module.get_variable("cache", f"state_{layer}", otherwise) if reads_on else otherwise


def keep_state(module: nn.Module, layer: int, reads_on: bool, state: Any) -> None:
    """Keeps the state of a recurrent layer for the next call; see kept_state."""
    if reads_on:
        module.put_variable("cache", f"state_{layer}", state)


def nan_on_overflow(hidden: Array, slot: CacheSlot | None) -> Array:
    """Makes everything NaN once more has been read than a cache can hold.

    XLA writes what lies beyond the end onto the last rows, so that results would be wrong without a
    sign (jax.lax.dynamic_update_slice).
    """
    if slot is None:
        return hidden
    fits = slot.first + slot.count <= slot.capacity
    return jnp.where(fits, hidden, jnp.nan)

"""Placement of values on devices by the sharding that is active while a program is traced.

Without a sharding, on one device, functions that divide values return them unchanged.
"""

import contextlib
import fnmatch
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import NamedSharding, PartitionSpec

if TYPE_CHECKING:
    from transformer_jax.sharding import Cuts, Sharding

RULES = {"default": "transformer_jax.sharding:default_rules"}
"""Rules for the division of arrays over a mesh, by name."""

_ACTIVE: "ContextVar[Sharding | None]" = ContextVar("sharding", default=None)


@contextlib.contextmanager
def sharded(sharding: "Sharding | None") -> Generator[None]:
    """Divides the values of programs traced in the context by a sharding, or not if None."""
    token = _ACTIVE.set(sharding)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def cut_at_site(name: str, value: Array) -> Array:
    """Returns the value at a site, divided using the active sharding if there is one."""
    active = _ACTIVE.get()
    if active is None:
        return value
    for pattern, cuts in active.rules.sites:
        if fnmatch.fnmatchcase(name, pattern):
            return active.cut(value, cuts)
    return value


def cut_examples(batch: Any, axis: int) -> Any:
    """Returns arrays whose `axis` of examples is divided over devices, if a sharding is active."""
    active = _ACTIVE.get()
    if active is None:
        return batch
    return jax.tree.map(lambda leaf: active.cut(leaf, (*[None] * axis, "batch", ...)), batch)


def keep_placed(state: Any) -> Any:
    """Returns a state whose arrays stay on their devices, if a sharding is active."""
    active = _ACTIVE.get()
    if active is None:
        return state
    return jax.lax.with_sharding_constraint(state, active.of_state(state))


def keep_everywhere(tree: Any) -> Any:
    """Returns a tree whose arrays are whole on every device, if a sharding is active."""
    active = _ACTIVE.get()
    if active is None:
        return tree
    return jax.lax.with_sharding_constraint(tree, active.everywhere)


def over_devices(function: Callable, *cuts: "Cuts") -> Callable:
    """Returns a function that runs `function` on each device's part, if XLA cannot divide it.

    Args:
      function: Function of arrays whose result on a part equals that part of the whole result.
      *cuts: Cuts of each argument, then of the result; indivisible dimensions stay whole.
    """
    if (active := _ACTIVE.get()) is None:
        return function
    mesh, spec = active.mesh, active.spec

    def run(*arrays: Array) -> Array:
        specs = tuple(spec(cut, array.shape) for cut, array in zip(cuts, arrays, strict=False))
        result = spec(cuts[-1], arrays[0].shape)
        options: Any = {"in_specs": specs, "out_specs": result, "check_vma": False}
        return jax.shard_map(function, mesh=mesh, **options)(*arrays)

    return run


def by_device(function: Callable, *rows: Any) -> Any:
    """Returns the function's results for rows, with each device's rows computed separately.

    Arrays that the function closes over, e.g. parameters, are copied for each part of the batch, so
    that the parts of a gradient are summed once, after any loop in the function, not inside it.

    Args:
      function: Function from arrays of rows to a tree of arrays of rows; rows are independent.
      *rows: Arrays [B, ...].
    """
    active = _ACTIVE.get()
    parts = 1 if active is None else active.num_parts
    if active is None or parts == 1 or len(rows[0]) % parts:
        return function(*rows)
    count = len(rows[0]) // parts

    def of_parts(array: Array) -> Array:
        spec = PartitionSpec(("data", "fsdp"), *[PartitionSpec.UNCONSTRAINED] * (array.ndim - 1))
        return jax.lax.with_sharding_constraint(array, NamedSharding(active.mesh, spec))

    def part(array: Array) -> Array:
        return of_parts(array.reshape(parts, count, *array.shape[1:]))

    def copied(array: Array) -> Array:
        return of_parts(jnp.broadcast_to(array, (parts, *array.shape)))

    with sharded(None):
        pure, closed = jax.closure_convert(function, *(array[:count] for array in rows))
        results = jax.vmap(pure)(*map(part, rows), *map(copied, closed))
    return jax.tree.map(lambda array: array.reshape(-1, *array.shape[2:]), results)


def cuts_sequence() -> bool:
    """Returns whether sequences are divided over devices in the current trace."""
    active = _ACTIVE.get()
    return active is not None and active.mesh.shape["sequence"] > 1


def cuts_heads_apart(num_heads: int, num_kv_heads: int) -> bool:
    """Returns whether devices divide the query heads but not the key heads in the current trace."""
    active = _ACTIVE.get()
    size = 1 if active is None else active.mesh.shape["tensor"]
    return num_heads % size == 0 and num_kv_heads % size != 0


def with_places(shapes: Any, places: Any) -> Any:
    """Returns a tree of shapes with their shardings, of which `places` has one for each shape."""

    def placed(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    return jax.tree.map(placed, shapes, places)


def put(tree: Any, places: Any) -> Any:
    """Returns a tree of arrays on devices; each process provides its own parts.

    Args:
      tree: NumPy or JAX arrays; an array that a process holds whole must be equal in all processes.
      places: A sharding for each array.
    """

    def placed(array: Any, sharding: NamedSharding) -> Array:
        is_there = isinstance(array, Array)
        if is_there and (jax.process_count() == 1 or not array.is_fully_addressable):
            return jax.device_put(array, sharding)
        array = np.asarray(array)
        return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])

    return jax.tree.map(placed, tree, places)


def put_own(array: np.ndarray, whole: jax.ShapeDtypeStruct) -> Array:
    """Returns an array over the devices of all processes, each of which provides its own part.

    Args:
      array: The rows of this process (Sharding.rows_of_process), whole in all other dimensions.
      whole: Shape and sharding of the whole array.
    """
    return jax.make_array_from_process_local_data(whole.sharding, array, whole.shape)

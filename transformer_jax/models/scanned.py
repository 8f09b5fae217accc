"""Blocks one by one, or layers as one loop, in which what differs in numbers alone is one program.

Each block is traced as it stands, under its own name, so dropout and all else draw what they draw
in a loop of Python's. Parameters that are not stacked yet (see stacking) are where the loop begins.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.blocks import Block
from transformer_jax.layers.remat import Policy
from transformer_jax.models.block import make_block
from transformer_jax.models.stacking import name_of_stack, stack_blocks
from transformer_jax.programs import differing, has_own_derivative, trace_open, with_numbers


def run_block(
    block: Block, hidden: Array, memory: Array | None, policy: Policy | None, **around: Any
) -> Array:
    """Sends a stream through one block, of which the backward pass keeps what the policy says."""
    run = lambda block, hidden, memory: block(hidden, memory, **around)  # noqa: E731
    run = run if policy is None else nn.remat(run, policy=policy)
    return run(block, hidden, memory)


def scan_blocks(
    model: Any,
    models: Mapping[str, Any],
    seen: Mapping[str, Mapping[str, Any]],
    hidden: Array,
    policy: Policy | None,
    **around: Any,
) -> tuple[Array, int]:
    """Sends a stream through the repeated units of a stack as one loop.

    Args:
      model: a Transformer, the module that is called.
      models: by type of layer, the Transformer whose blocks are all of it.
      seen: by type of layer, what its attention is told.
      hidden: the stream, [..., L, D].
      policy: what is kept of a block for the backward pass; None keeps all.
      **around: further arguments of every block.
    Returns:
      The stream, and how many blocks it has been through.
    Raises:
      ValueError: the blocks are no loop; the text says why.
    """
    layers, unit = model.layer_list(), max(1, len(model.layers))
    whole = model.depth - model.depth % unit
    tied = any(layer.owner != number or layer.reads for number, layer in enumerate(layers))
    if tied:
        raise ValueError(
            "scan_layers: expected False where blocks share parameters or read earlier streams"
        )
    if whole < 2 * unit:
        return hidden, 0

    names = [name_of_stack(index, whole, unit) for index in range(unit)]
    params = model.variables["params"]
    if names[0] not in params:
        alone = {f"block_{number}": params[f"block_{number}"] for number in range(whole)}
        params = stack_blocks(alone, unit)

    def run_unit(first: int, own: Sequence[Any], hidden: Array) -> tuple[Array, Any]:
        losses = []
        for number, block_params in enumerate(own, first):
            letter, params = layers[number].type, {"params": {f"block_{number}": block_params}}
            alone = _Alone(functools.partial(make_block, models[letter], number), parent=None)
            arguments = {**around, **seen[letter], "rngs": model.scope.rngs, "mutable": ["losses"]}
            run = functools.partial(alone.apply, params, **arguments)
            # A loop's parts are computed in their order, so nothing has to keep them apart.
            run = run if policy is None else jax.checkpoint(run, policy=policy, prevent_cse=False)
            hidden, sown = run(hidden)
            losses += jax.tree.leaves(sown)
        return hidden, losses

    steps = [functools.partial(run_unit, first) for first in range(0, whole, unit)]
    hidden, losses = run_alike(steps, [params[name] for name in names], hidden)
    for loss in losses:
        model.sow("losses", "scanned", loss.sum(0))
    return hidden, whole


class _Alone(nn.Module):
    """A block outside its model, under the name that it has there: sites and keys are the same."""

    make: Callable[[], Block]

    @nn.compact
    def __call__(self, hidden: Array, **around: Any) -> Array:
        return self.make()(hidden, **around)


def run_alike(
    steps: Sequence[Callable[[Any, Array], tuple[Array, Any]]], own: Any, hidden: Array
) -> tuple[Array, Any]:
    """Sends a stream through several functions that compute the same, as one loop.

    Args:
      steps: from arrays of its own and a stream to the next, and what else it gives; they may read
        arrays around them.
      own: a tree of what is each function's own, stacked [N, ...].
      hidden: the first stream.
    Returns:
      The last stream, and the rest that each function gives, stacked [N, ...].
    Raises:
      ValueError: the functions do not compute the same; the text says which.
    """
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), own)
    traces, read = zip(*(trace_open(step, shapes, hidden) for step in steps), strict=True)
    if any(has_own_derivative(traced.program) for traced in traces):
        raise ValueError(
            "scan_layers: a part of the stack has a rule of its own for its derivative, which may "
            "differ by block; expected False"
        )
    for number, (traced, arrays) in enumerate(zip(traces, read, strict=True)):
        alike = traced.structure == traces[0].structure and len(arrays) == len(read[0])
        if not alike:
            raise ValueError(
                f"scan_layers: parts 0 and {number} of the stack do not compute the same; expected "
                "False"
            )
    places = differing(traces)
    numbers = [jnp.stack([jnp.asarray(t.numbers[index]) for t in traces]) for index in places]
    columns = list(zip(*read, strict=True))
    is_shared = [all(array is column[0] for array in column) for column in columns]
    stacked = [jnp.stack(column) for column, one in zip(columns, is_shared, strict=True) if not one]
    run = with_numbers(traces[0], places)

    def body(hidden: Array, elements: tuple) -> tuple[Array, Any]:
        numbers, others, own = elements
        others = iter(others)
        arrays = [
            column[0] if one else next(others)
            for column, one in zip(columns, is_shared, strict=True)
        ]
        return run(numbers, arrays, own, hidden)

    return jax.lax.scan(body, hidden, (numbers, stacked, own))

"""Layers as one loop: blocks whose programs differ in numbers alone are compiled once.

Each block is traced as it stands, under its own name, so dropout and all else draw what they draw
in a loop of Python's. Parameters stay `block_i`; they are stacked where the loop begins.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.programs import differing, trace_open, with_numbers


def run_alike(
    steps: Sequence[Callable[[Array], tuple[Array, Any]]],
    hidden: Array,
    wrap: Callable[[Callable], Callable],
) -> tuple[Array, Any]:
    """Sends a stream through several functions that compute the same, as one loop.

    Args:
      steps: from a stream to the next, and what else it gives; they may read arrays around them.
      hidden: the first stream.
      wrap: put around the loop's body, `jax.checkpoint` say.
    Returns:
      The last stream, and the rest that each function gives, stacked [N, ...].
    Raises:
      ValueError: the functions do not compute the same; the text says which.
    """
    traces, read = zip(*(trace_open(step, hidden) for step in steps), strict=True)
    for number, (traced, arrays) in enumerate(zip(traces, read, strict=True)):
        alike = traced.structure == traces[0].structure and len(arrays) == len(read[0])
        if not alike:
            raise ValueError(f"parts 0 and {number} of the stack do not compute the same")
    places = differing(traces)
    numbers = [jnp.stack([jnp.asarray(t.numbers[place]) for t in traces]) for place in places]
    columns = list(zip(*read, strict=True))
    is_shared = [all(array is column[0] for array in column) for column in columns]
    stacked = [jnp.stack(column) for column, one in zip(columns, is_shared, strict=True) if not one]
    run = with_numbers(traces[0], places)

    def body(hidden: Array, elements: tuple) -> tuple[Array, Any]:
        numbers, own = elements
        own = iter(own)
        arrays = [
            column[0] if one else next(own) for column, one in zip(columns, is_shared, strict=True)
        ]
        return run(numbers, arrays, hidden)

    return jax.lax.scan(wrap(body), hidden, (numbers, stacked))

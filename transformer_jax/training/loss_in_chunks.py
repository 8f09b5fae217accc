"""A loss whose gradient is computed together with it, chunk by chunk of the logits."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.placement import by_device
from transformer_jax.shapes import widen


def sums_in_chunks(
    score: Callable[[Array, Array, Array], Any],
    project: Callable[[Array], Array],
    hidden: Array,
    targets: Array,
    weights: Array,
    places: int,
) -> tuple[Array, Any]:
    """Returns the total loss and the Sums of each example, without an array of all logits.

    The logits of a chunk of positions are made, scored and dropped before those of the next. If
    the total is differentiated, its gradient is computed in the same pass, so the logits are made
    once. Only the total has a derivative.

    Args:
      score: Function from logits [B, ..., V], targets and weights to Sums; see sums_of.
      project: Function from hidden vectors to their logits, [..., D] -> [..., V].
      hidden: [B, L, D].
      targets, weights: [B, L].
      places: Number of positions of a text in a chunk.
    """
    chunks = -(-targets.shape[1] // places)

    def cut(array: Array) -> Array:
        """[B, L, ...] -> [chunks, B, places, ...]; a chunk has every chunks-th position.

        So each device has a part of every chunk if the positions are divided over devices.
        """
        padding = [(0, 0), (0, chunks * places - array.shape[1]), *[(0, 0)] * (array.ndim - 2)]
        array = jnp.pad(array, padding)
        return jnp.moveaxis(array.reshape(len(array), places, chunks, *array.shape[2:]), 2, 0)

    def join(array: Array) -> Array:
        """[chunks, B, places, ...] -> [B, L, ...]: the reverse of `cut`."""
        array = jnp.moveaxis(array, 0, 2)
        return array.reshape(len(array), -1, *array.shape[3:])[:, : targets.shape[1]]

    def of_rows(hidden: Array, targets: Array, weights: Array) -> tuple[Array, Any]:
        logits_of, params = jax.closure_convert(project, hidden[:, :places])

        def of_chunk(params: list, hidden: Array, weights: Array, targets: Array) -> tuple:
            sums = score(logits_of(hidden, *params), targets, weights)
            return sums.loss.sum(), sums

        first = (array[:, :places] for array in (hidden, weights, targets))
        shapes = jax.eval_shape(of_chunk, params, *first)[1]

        def no_sums() -> Any:  # made where it is used: custom_vjp should close over no arrays
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        @jax.custom_vjp
        def total_of(params: list, hidden: Array, weights: Array, targets: Array) -> tuple:
            def add(sums: Any, chunk: tuple) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, sums, of_chunk(params, *chunk)[1]), None

            sums, _ = jax.lax.scan(add, no_sums(), tuple(map(cut, (hidden, weights, targets))))
            return sums.loss.sum(), sums

        def with_gradient(params: list, hidden: Array, weights: Array, targets: Array) -> tuple:
            def add(carry: tuple, chunk: tuple) -> tuple[tuple, tuple]:
                *of_texts, targets = chunk
                of_targets = functools.partial(of_chunk, targets=targets)
                loss, pull_back, sums = jax.vjp(of_targets, params, *of_texts, has_aux=True)
                of_params, *of_chunks = pull_back(jnp.ones_like(loss))
                return jax.tree.map(jnp.add, carry, (sums, of_params)), tuple(of_chunks)

            wide = jax.tree.map(lambda leaf: jnp.zeros_like(widen(leaf)), params)
            rows = tuple(map(cut, (hidden, weights, targets)))
            (sums, of_params), of_chunks = jax.lax.scan(add, (no_sums(), wide), rows)
            of_params = jax.tree.map(lambda leaf, of: leaf.astype(of.dtype), of_params, params)
            return (sums.loss.sum(), sums), (of_params, *map(join, of_chunks))

        def scaled(gradient: tuple, cotangents: tuple[Array, Any]) -> tuple:
            scale = lambda leaf: (leaf * cotangents[0]).astype(leaf.dtype)  # noqa: E731
            return (*jax.tree.map(scale, gradient), None)

        total_of.defvjp(with_gradient, scaled)
        loss, sums = total_of(params, hidden, weights, targets)
        return loss[None], sums

    loss, sums = by_device(of_rows, hidden, targets, weights)
    return loss.sum(), sums

"""Options whose numbers change from update to update: training.scheduled."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from transformer_jax.curves import MASK, Curve, curves_of, is_of_mask, is_of_optimizer, makes_stages
from transformer_jax.data.tasks.batch import Batch
from transformer_jax.resolve import split_type
from transformer_jax.training.step import StepRecord, TrainState


def value_at(curve: Curve, step: Array) -> Array:
    """Returns the value for the update after `step` earlier ones, on straight lines."""
    return jnp.interp(step.astype(jnp.float32), jnp.array(curve.updates), jnp.array(curve.values))


def make_scheduled_step(
    texts: tuple[str, ...],
    model: Any,
    objective: Any,
    make_step: Callable[[Any, Any, dict[str, Any]], Callable],
    first: int,
) -> Callable[[TrainState, Batch], tuple[TrainState, StepRecord]]:
    """Returns a training step in which some options follow curves.

    Args:
      texts: The option training.scheduled.
      model, objective: Those of the config.
      make_step: Function from (model, objective, numbers of the optimizer by key) to a step.
      first: The first update of a stage, in which all masks stay the same.
    """
    curves = curves_of(texts)
    model = _with_masks(model, [curve for curve in curves if is_of_mask(curve.key)], first)
    curves = [curve for curve in curves if not makes_stages(curve.key)]

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepRecord]:
        now = {curve.key: value_at(curve, state.step) for curve in curves}
        of_objective = {
            key.removeprefix("objective."): value
            for key, value in now.items()
            if key.startswith("objective.")
        }
        of_optimizer = {key: value for key, value in now.items() if is_of_optimizer(key)}
        changed = dataclasses.replace(objective, **of_objective) if of_objective else objective
        return make_step(model, changed, of_optimizer)(state, batch)

    return train_step


def _with_masks(model: Any, curves: list[Curve], update: int) -> Any:
    """Returns a model whose masks have the options that curves give them at an update."""
    if not curves:
        return model
    options, types = dict(model.options.mask_options), dict(model.options.layer_types)
    for curve in curves:
        (plain, letter), value = split_type(curve.key), int(curve.step_at(update))
        if letter is None:
            options[plain.removeprefix(MASK)] = value
        else:
            own = dict(types[letter].get("mask_options", {}))
            own[plain.removeprefix(MASK)] = value
            types[letter] = {**types[letter], "mask_options": own}
    return model.with_options(mask_options=options, layer_types=types)

"""Options whose numbers change from update to update: training.scheduled."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.curves import (
    BATCH_SIZE,
    LENGTH,
    MASK,
    Curve,
    curves_of,
    is_of_mask,
    is_of_optimizer,
)
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
) -> Callable[[TrainState, Batch], tuple[TrainState, StepRecord]]:
    """Returns a training step in which some options follow curves.

    Integers, which decide which positions a mask shows, select one of several compiled steps.

    Args:
      texts: The option training.scheduled.
      model, objective: Those of the config.
      make_step: Function from (model, objective, numbers of the optimizer by key) to a step.
    """
    curves = [c for c in curves_of(texts) if c.key not in (BATCH_SIZE, LENGTH)]  # see stages.py
    of_masks = [curve for curve in curves if is_of_mask(curve.key)]
    others = [curve for curve in curves if curve not in of_masks]
    changes = sorted({0, *(update for curve in of_masks for update in curve.updates)})

    def model_from(update: int) -> Any:
        options, types = dict(model.options.mask_options), dict(model.options.layer_types)
        for curve in of_masks:
            (plain, letter), value = split_type(curve.key), int(curve.step_at(update))
            if letter is None:
                options[plain.removeprefix(MASK)] = value
            else:
                own = dict(types[letter].get("mask_options", {}))
                own[plain.removeprefix(MASK)] = value
                types[letter] = {**types[letter], "mask_options": own}
        return model.with_options(mask_options=options, layer_types=types)

    models = [model_from(update) for update in changes] if of_masks else [model]

    def train_step(state: TrainState, batch: Batch) -> tuple[TrainState, StepRecord]:
        now = {curve.key: value_at(curve, state.step) for curve in others}
        of_objective = {
            key.removeprefix("objective."): value
            for key, value in now.items()
            if key.startswith("objective.")
        }
        of_optimizer = {key: value for key, value in now.items() if is_of_optimizer(key)}
        changed = dataclasses.replace(objective, **of_objective) if of_objective else objective
        steps = [make_step(each, changed, of_optimizer) for each in models]
        if len(steps) == 1:
            return steps[0](state, batch)
        stage = (state.step >= jnp.array(changes)).sum() - 1
        return jax.lax.switch(stage, steps, state, batch)

    return train_step

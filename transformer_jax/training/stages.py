"""Batches that grow in training: stages of different batch sizes and lengths."""

import bisect
import dataclasses
import math
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.curves import BATCH_SIZE, LENGTH, Stage, stages_of
from transformer_jax.data.tasks import Batch, Task
from transformer_jax.errors import InvalidInput


def in_stages(task: Any, config: ConfigDict) -> Any:
    """Returns a task whose training batches have the shapes that training.scheduled gives them.

    Raises:
      InvalidInput: The task has no batches of examples, or no windows of text, to resize.
    """
    usual = config.training.batch_size, config.data.length
    stages = stages_of(config.training.scheduled, *usual)
    if stages == (Stage(0, *usual),):
        return task
    fields = {f.name for f in dataclasses.fields(task)} if dataclasses.is_dataclass(task) else ()
    is_resized = any(stage.length != usual[1] for stage in stages)
    is_of_windows = task.counted == "tokens" and "length" in fields
    if "batch_size" not in fields or (is_resized and not is_of_windows):
        key = LENGTH if "batch_size" in fields else BATCH_SIZE
        raise InvalidInput(
            f"training.scheduled: the task {type(task).__name__} cannot change {key}; expected a "
            "dataclass with the field batch_size, and for data.length a task of windows of text"
        )
    unit, tokens, parts = math.gcd(*(stage.batch_size for stage in stages)), 0, []
    for stage, end in zip(stages, (*(stage.start for stage in stages[1:]), 0), strict=True):
        sizes = {"batch_size": unit} | ({"length": stage.length} if is_resized else {})
        first = -(-tokens // (unit * stage.length))
        units = stage.batch_size // unit
        parts.append(Part(stage.start, units, first, dataclasses.replace(task, **sizes)))
        tokens += (end - stage.start) * stage.batch_size * stage.length
    return Staged(task, tuple(parts))


@dataclasses.dataclass(frozen=True)
class Part:
    """A stage that begins at update `start`, with `units` of a task in a batch, from `first` on."""

    start: int
    units: int
    first: int
    task: Task


@dataclasses.dataclass(frozen=True)
class Staged:
    """A task whose batches change their shape; everything else is the task's own.

    A batch consists of units, batches of the greatest common divisor of all batch sizes. Units are
    counted over all stages without a gap, so with one length each example occurs once per epoch. A
    stage of another length has other windows, and begins at the unit of this length that follows
    as many tokens as were read before.
    """

    task: Any
    parts: tuple[Part, ...]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def batch(self, seed: int, step: int) -> Batch:
        """Returns a step's training batch, which depends on `seed` and `step` alone."""
        part = self.parts[bisect.bisect(self.parts, step, key=lambda part: part.start) - 1]
        first = part.first + (step - part.start) * part.units
        units = [part.task.batch(seed, number) for number in range(first, first + part.units)]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *units)

"""Batches that grow in training: stages of different batch sizes and lengths."""

import bisect
import dataclasses
import functools
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
    is_of_windows = task.counted == "tokens" and "length" in fields
    if "batch_size" not in fields or (len({s.length for s in stages}) > 1 and not is_of_windows):
        key = LENGTH if "batch_size" in fields else BATCH_SIZE
        raise InvalidInput(
            f"training.scheduled: the task {type(task).__name__} cannot change {key}; expected a "
            "dataclass with the field batch_size, and for data.length a task of windows of text"
        )
    return Staged(task, stages)


@dataclasses.dataclass(frozen=True)
class Staged:
    """A task whose batches change their shape; everything else is the task's own.

    A batch consists of units, batches of the greatest common divisor of all batch sizes. Units are
    counted over all stages without a gap, so each example still occurs once per epoch. A stage of
    another length begins at the next unit of this length after the tokens that were read before.
    """

    task: Any
    stages: tuple[Stage, ...]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    @property
    def starts(self) -> tuple[int, ...]:
        """The first update of each stage."""
        return tuple(stage.start for stage in self.stages)

    @functools.cached_property
    def _unit(self) -> int:
        return math.gcd(*(stage.batch_size for stage in self.stages))

    @functools.cached_property
    def _units(self) -> list[tuple[Task, int]]:
        """For each stage, the task of its units, and the number of its first unit."""
        units, tokens = [], 0
        for stage, end in zip(self.stages, (*self.starts[1:], 0), strict=True):
            sizes = {"batch_size": self._unit}
            sizes |= {"length": stage.length} if len({s.length for s in self.stages}) > 1 else {}
            first = -(-tokens // (self._unit * stage.length))
            units.append((dataclasses.replace(self.task, **sizes), first))
            tokens += (end - stage.start) * stage.batch_size * stage.length
        return units

    def batch(self, seed: int, step: int) -> Batch:
        """Returns a step's training batch, which depends on `seed` and `step` alone."""
        index = bisect.bisect(self.starts, step) - 1
        stage, (task, first) = self.stages[index], self._units[index]
        count = stage.batch_size // self._unit
        first += (step - stage.start) * count
        units = [task.batch(seed, number) for number in range(first, first + count)]
        return jax.tree.map(lambda *leaves: np.concatenate(leaves), *units)

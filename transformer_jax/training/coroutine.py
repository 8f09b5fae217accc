"""What a run wants to have computed, and who computes it: one program for it alone, or for many.

A run is a generator: it decides what comes next, keeps its files, and asks whenever steps have to
be taken (ask and tell). So a run alone and the members of a study are the same code.
"""

import time
from collections.abc import Callable, Generator
from typing import NamedTuple

import jax
import numpy as np

from transformer_jax.data.tasks import Batch
from transformer_jax.training.prepared import Prepared
from transformer_jax.training.step import StepRecord, TrainState


class StepRequest(NamedTuple):
    """What a run wants to have computed: `advance(*arguments)` of what it was prepared with.

    Attributes:
      prepared: data, model and optimizer.
      arguments: seed, state, stacked batches [C, B, ...], how many of them to take.
    """

    prepared: Prepared
    arguments: tuple[np.uint32, TrainState, Batch, np.int32]


class StepResult(NamedTuple):
    """What was computed.

    Attributes:
      state: after the steps.
      records: of each step [C], in the host's memory.
      seconds: that it took, compilation left out.
    """

    state: TrainState
    records: StepRecord
    seconds: float


# A run as a generator: it asks, is told, and returns its last row of metrics.
RunCoroutine = Generator[StepRequest, StepResult, dict[str, float]]


def run_alone(coroutine: RunCoroutine) -> dict[str, float]:
    """Goes through a run with a program of its own."""
    answer = None
    while True:
        try:
            call = next(coroutine) if answer is None else coroutine.send(answer)
        except StopIteration as end:
            return end.value
        try:
            answer = answered(call.prepared.program, call.arguments)
        except BaseException as error:
            coroutine.throw(error)  # so that its directory says what happened


def answered(program: Callable, arguments: tuple) -> StepResult:
    """Runs a compiled program to its end."""
    started = time.monotonic()
    state, records = program(*arguments)
    records = jax.tree.map(np.asarray, records)
    return StepResult(state, records, time.monotonic() - started)

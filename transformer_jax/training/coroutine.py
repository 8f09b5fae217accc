"""What a run wants to have computed, and who computes it: one program for it alone, or for many.

A run is a generator: it decides what comes next, keeps its files, and asks whenever steps have to
be taken (ask and tell). So a run alone and the members of a study are the same code.
"""

import contextlib
import time
from collections.abc import Callable, Generator
from pathlib import Path
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


def run_alone(
    coroutine: RunCoroutine,
    trace_to: Path | None = None,
    between: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """Goes through a run with a program of its own.

    Args:
      coroutine: the run.
      trace_to: a folder for a trace of jax's profiler; it is of the second call of the program, the
        first has costs of its own. Its scopes are the modules' paths.
      between: is called behind each call of the program.
    """
    answer, number = None, 0
    while True:
        try:
            call = next(coroutine) if answer is None else coroutine.send(answer)
        except StopIteration as end:
            return end.value
        try:
            number += 1
            is_traced = trace_to is not None and number == 2
            with jax.profiler.trace(trace_to) if is_traced else contextlib.nullcontext():
                arguments = call.prepared.on_devices(call.arguments)
                answer = answered(call.prepared.program, arguments)
            between()
        except BaseException as error:
            coroutine.throw(error)  # so that its directory says what happened


def answered(program: Callable, arguments: tuple) -> StepResult:
    """Runs a compiled program to its end."""
    started = time.monotonic()
    state, records = program(*arguments)
    records = jax.tree.map(np.asarray, records)
    return StepResult(state, records, time.monotonic() - started)

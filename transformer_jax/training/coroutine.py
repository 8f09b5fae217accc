"""What a run wants to have computed, and who computes it: one program for it alone, or for many.

A run is a generator. It decides what comes next, keeps its files, and gives a call whenever steps
have to be taken; whoever drives it answers. So a run and the members of a study are the same code.
"""

import time
from collections.abc import Callable, Generator
from typing import NamedTuple

import jax
import numpy as np

from transformer_jax.data.tasks import Batch
from transformer_jax.runs.progress import Progress
from transformer_jax.training.prepared import Prepared
from transformer_jax.training.step import StepRecord, TrainState


class Call(NamedTuple):
    """What a run wants to have computed: `advance(*arguments)` of what it was prepared with.

    Attributes:
      prepared: data, model and optimizer.
      arguments: seed, state, stacked batches [C, B, ...], how many of them to take.
      progress: where to tell that a program is compiled for it.
    """

    prepared: Prepared
    arguments: tuple[np.uint32, TrainState, Batch, np.int32]
    progress: Progress


class Answer(NamedTuple):
    """What was computed.

    Attributes:
      state: after the steps.
      records: of each step [C], in the host's memory.
      seconds: that it took, compilation left out.
    """

    state: TrainState
    records: StepRecord
    seconds: float


# A run as a generator: it gives calls, gets their answers, and returns its last row of metrics.
Story = Generator[Call, Answer, dict[str, float]]


def drive(story: Story) -> dict[str, float]:
    """Goes through a run with a program of its own, compiled at its first call."""
    program, answer = None, None
    while True:
        try:
            call = next(story) if answer is None else story.send(answer)
        except StopIteration as end:
            return end.value
        try:
            if program is None:
                program = compiled(call)
            answer = answered(program, call.arguments)
        except BaseException as error:
            story.throw(error)  # so that its directory says what happened


def compiled(call: Call) -> Callable:
    """Compiles what a run needs, for arrays as in this call."""
    with call.progress.busy("compiling the training step"):
        program = jax.jit(call.prepared.advance, donate_argnums=1)
        return program.lower(*call.arguments).compile()


def answered(program: Callable, arguments: tuple) -> Answer:
    """Runs a compiled program to its end."""
    started = time.monotonic()
    state, records = program(*arguments)
    records = jax.tree.map(np.asarray, records)
    return Answer(state, records, time.monotonic() - started)

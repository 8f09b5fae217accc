"""Batches that are made in advance, while the device takes earlier steps."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence

import jax
import numpy as np

from transformer_jax.data.tasks import Batch


def in_one_call(batches: Sequence[Batch], capacity: int) -> Batch:
    """Returns at most C = `capacity` batches, stacked as one argument of the training program.

    Arrays [B, ...] become [C, B, ...]; if there are fewer than C batches, zeros fill the rest.
    """

    def stacked(*leaves: np.ndarray) -> np.ndarray:
        places = np.zeros((capacity, *np.shape(leaves[0])), np.result_type(*leaves))
        places[: len(leaves)] = leaves
        return places

    return jax.tree.map(stacked, *batches)


class BatchesAhead:
    """Batches of one run, some of which are made in advance."""

    def __init__(self, make: Callable[[int], Batch]) -> None:
        """Makes no batch yet; `make` is a function from a step to its batch."""
        self._make = make
        self._made: dict[int, Batch] = {}
        self.waited = 0.0  # mean seconds per step spent on getting the batches of the last call
        self.seconds = 0.0  # taken to make the newest batch

    def take(self, steps: Sequence[int]) -> list[Batch]:
        """Returns the batches for `steps`, and makes those that were not made in advance."""
        made, started = self._made, time.monotonic()
        self._made = {step: batch for step, batch in made.items() if step > steps[-1]}
        taken = [made[step] if step in made else self._make_timed(step) for step in steps]
        self.waited = (time.monotonic() - started) / len(steps)
        return taken

    def make(self, step: int) -> None:
        """Makes the batch for a later step in advance, unless it is already made."""
        if step not in self._made:
            self._made[step] = self._make_timed(step)

    def _make_timed(self, step: int) -> Batch:
        started = time.monotonic()
        batch = self._make(step)
        self.seconds = time.monotonic() - started
        return batch


@contextlib.contextmanager
def meanwhile(work: Iterable[Callable[[], None]]) -> Generator[None]:
    """Calls the functions in `work` in a thread, until all are done or the context closes."""
    ended = threading.Event()

    def do() -> None:
        # A batch that fails here fails again when it is taken, and is reported then.
        with contextlib.suppress(Exception):
            for piece in work:
                if ended.is_set():
                    return
                piece()

    thread = threading.Thread(target=do, name="batches ahead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()

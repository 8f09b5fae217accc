"""Batches that are made while the device takes earlier steps."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence

import jax
import numpy as np

from transformer_jax.data.tasks import Batch


def in_one_call(batches: Sequence[Batch], capacity: int) -> Batch:
    """Returns at most C = `capacity` batches of arrays [B, ...] as one argument of the program.

    Its arrays are [C, B, ...], padded with zeros.
    """

    def stacked(*leaves: np.ndarray) -> np.ndarray:
        places = np.zeros((capacity, *np.shape(leaves[0])), np.result_type(*leaves))
        places[: len(leaves)] = leaves
        return places

    return jax.tree.map(stacked, *batches)


class BatchesAhead:
    """The batches of one run, some of them made in advance."""

    def __init__(self, make: Callable[[int], Batch]) -> None:
        """Makes no batch yet; `make` is the function from a step to its batch."""
        self._make = make
        self._made: dict[int, Batch] = {}
        self.waited = 0.0  # mean seconds per step that the last call waited for its batches
        self.seconds = 0.0  # to make the newest batch

    def take(self, steps: Sequence[int]) -> list[Batch]:
        """Returns the batches of some steps; missing ones are made now."""
        made, started = self._made, time.monotonic()
        self._made = {step: batch for step, batch in made.items() if step > steps[-1]}
        taken = [made[step] if step in made else self._make_timed(step) for step in steps]
        self.waited = (time.monotonic() - started) / len(steps)
        return taken

    def make(self, step: int) -> None:
        """Makes the batch of a later step, if it is missing."""
        if step not in self._made:
            self._made[step] = self._make_timed(step)

    def _make_timed(self, step: int) -> Batch:
        started = time.monotonic()
        batch = self._make(step)
        self.seconds = time.monotonic() - started
        return batch


@contextlib.contextmanager
def meanwhile(work: Iterable[Callable[[], None]]) -> Generator[None]:
    """Does pieces of work in a thread while the context is open, as far as time allows."""
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

"""Batches that are made while the device takes the steps before them."""

import contextlib
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence

import jax
import numpy as np

from transformer_jax.data.tasks import Batch


def in_one_call(batches: Sequence[Batch], capacity: int) -> Batch:
    """Returns several batches as one call of a compiled program takes them.

    Args:
      batches: Arrays [B, ...], at most as many as there is room for.
      capacity: Room, C.
    Returns:
      Arrays [C, B, ...]; what is not used is 0, memory that nobody has touched.
    """

    def stacked(*leaves: np.ndarray) -> np.ndarray:
        places = np.zeros((capacity, *np.shape(leaves[0])), np.result_type(*leaves))
        places[: len(leaves)] = leaves
        return places

    return jax.tree.map(stacked, *batches)


class BatchesAhead:
    """The batches of one run, some of them made before they are taken.

    Attributes:
      waited: Mean seconds a step that training waited for its batches, of the last call.
      seconds: That it took to make the newest batch.
    """

    def __init__(self, make: Callable[[int], Batch]) -> None:
        """Makes none yet.

        Args:
          make: The batch of a step.
        """
        self._make = make
        self._made: dict[int, Batch] = {}
        self.waited = self.seconds = 0.0

    def take(self, steps: Sequence[int]) -> list[Batch]:
        """Returns the batches of some steps, those that are not there made now."""
        made, started = self._made, time.monotonic()
        self._made = {step: batch for step, batch in made.items() if step > steps[-1]}
        taken = [made[step] if step in made else self._make_timed(step) for step in steps]
        self.waited = (time.monotonic() - started) / len(steps)
        return taken

    def make(self, step: int) -> None:
        """Makes the batch of a later step, if it is not there."""
        if step not in self._made:
            self._made[step] = self._make_timed(step)

    def _make_timed(self, step: int) -> Batch:
        started = time.monotonic()
        batch = self._make(step)
        self.seconds = time.monotonic() - started
        return batch


@contextlib.contextmanager
def meanwhile(work: Iterable[Callable[[], None]]) -> Generator[None]:
    """Does pieces of work in a thread, as many as there is time for while this is open."""
    ended = threading.Event()

    def do() -> None:
        # What fails here fails again where the batch is taken, and is told there.
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

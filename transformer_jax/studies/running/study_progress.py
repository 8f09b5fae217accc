"""What a person sees while a study runs: all cells in one line, and each cell's end."""

import math
import time
from collections.abc import Mapping

from transformer_jax.runs.progress import Progress, Silent
from transformer_jax.studies.asking.cells import DONE, Cell

_TRUSTED_SECONDS = 10.0
_MOST_ARMS = 8  # of which a terminal shows how far their seeds are
_WAITS, _TRAINS, _ENDED, _FAILED = "○◐●×"


class StudyProgress:
    """Progress over the cells of one launch."""

    def __init__(self, progress: Progress, seconds: Mapping[Cell, float], total: int) -> None:
        """Begins its clock.

        Args:
          progress: where to tell.
          seconds: expected of each cell that has to run.
          total: cells in all, those that need not run among them.
        """
        self._progress, self._expected = progress, dict(seconds)
        self._total = total
        self._shares = dict.fromkeys(seconds, 0.0)
        self._failed: set[Cell] = set()
        self._started = time.monotonic()
        progress.details = self._by_arm

    def of(self, cell: Cell) -> Progress:
        """Returns where a cell may tell how it goes."""
        return _OfCell(self, cell)

    def step(self, cell: Cell, step: int, steps: int, loss: float) -> None:
        """Shows that a cell went on."""
        number = min(self._done() + 1, self._total)  # before this step may be its last
        self._shares[cell] = step / steps
        already = self._total - len(self._shares)
        self._progress.step(
            round((already + sum(self._shares.values())) * steps),
            self._total * steps,
            loss,
            f"cell {number}/{self._total}: {cell.arm}, seed {cell.seed}",
            self._seconds_left(),
        )

    def ended(self, cell: Cell, state: str, reason: str) -> None:
        """Says how a cell ended."""
        self._shares[cell] = 1.0
        if state != DONE:
            self._failed.add(cell)
        why = "" if state == DONE else f"  {reason}"
        loss = cell.means("validation").get("loss") if state == DONE else None
        score = "" if loss is None else f"  validation loss {loss:.4f}"
        self._progress.say(
            f"{self._done():>3}/{self._total} {cell.arm}, seed {cell.seed}: {state}{score}{why}"
        )

    def _by_arm(self) -> list[str]:
        """A line an arm of this launch, a mark a seed; those that are not through come first."""
        marks: dict[str, str] = {}
        for cell, share in self._shares.items():
            mark = _WAITS if share == 0 else _TRAINS if share < 1 else _ENDED
            marks[cell.arm] = marks.get(cell.arm, "") + (_FAILED if cell in self._failed else mark)
        through = [arm for arm, of_arm in marks.items() if not set(of_arm) & {_WAITS, _TRAINS}]
        order = [arm for arm in marks if arm not in through] + through
        shown = order if len(order) <= _MOST_ARMS else order[: _MOST_ARMS - 1]
        lines = [f"{marks[arm]}  {arm}" for arm in shown]
        return lines + [f"... and {len(order) - len(shown)} more arms"] * (len(order) > len(shown))

    def _done(self) -> int:
        already = self._total - len(self._shares)
        return already + sum(share >= 1 for share in self._shares.values())

    def _seconds_left(self) -> float:
        """What was expected of the rest, times how wrong the expectation was so far.

        The expectation is trusted for a tenth of the time, since the first steps wait for the
        compiler. Where nothing was timed, cells are taken to be as long as each other.
        """
        whole = sum(self._expected.values())
        elapsed = time.monotonic() - self._started
        if not whole:
            share = sum(self._shares.values()) / len(self._shares)
            return elapsed * (1 - share) / share if share else math.inf
        done = sum(self._shares[cell] * s for cell, s in self._expected.items())
        trusted = max(_TRUSTED_SECONDS, whole / 10)
        return (whole - done) * (elapsed + trusted) / (done + trusted)


class _OfCell(Silent):
    """Hands a cell's steps to the board, and is silent about the rest."""

    def __init__(self, board: StudyProgress, cell: Cell) -> None:
        super().__init__()
        self._board, self._cell = board, cell

    def step(self, step: int, steps: int, loss: float, speed: str, seconds_left: float) -> None:
        """Tells the board."""
        self._board.step(self._cell, step, steps, loss)

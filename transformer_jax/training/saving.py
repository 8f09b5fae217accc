"""When the checkpoints of a run are written, and whether the newest state is among them."""

from collections.abc import Callable, Collection
from typing import Any

from transformer_jax.runs.checkpoints import Checkpoints, SaveFailed
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.training.branching import kept_states


class Saving:
    """Has checkpoints written while training goes on; says, and keeps, why one is not there.

    Attributes:
      checkpoints: of the run.
      unsaved: why the newest state is not on disk, or None.
    """

    def __init__(
        self,
        directory: RunDirectory,
        count: int,
        warn: Callable[[str], None],
        keeps: Collection[int] = (),
        waits: bool = False,
    ) -> None:
        """Touches nothing yet.

        Args:
          directory: of the run.
          count: checkpoints that stay, the newest.
          warn: takes a line about what goes wrong.
          keeps: updates after which the state is kept for runs that begin there; in between
            nothing is saved then.
          waits: whether nothing goes on meanwhile, of many runs in one process say.
        """
        self.checkpoints = Checkpoints(directory.file("checkpoints"), count, warn)
        self.unsaved: str | None = None
        self._directory, self._warn, self._keeps, self._waits = directory, warn, keeps, waits

    def save(self, step: int, state: Any, extra: dict, must: bool) -> None:
        """Begins to write a checkpoint; `must`: even between those that are kept, and waits for it.

        Args:
          step: optimizer updates so far.
          state: tree of arrays, which may be donated as soon as this returns.
          extra: plain data for JSON.
          must: whether nothing follows.
        """
        if self._keeps and step not in self._keeps and not must:
            return
        self._try(self.checkpoints.settle)  # says why the one before could not be written
        self.unsaved = None
        if step in self._keeps:
            kept = kept_states(self._directory, len(self._keeps))
            self._try(lambda: kept.save(step, state, extra))
        self._try(lambda: self.checkpoints.begin_save(step, state, extra))
        if must or self._waits:
            self._try(self.checkpoints.settle)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except SaveFailed as error:
            self.unsaved = str(error)
            self._warn(f"NOT SAVED: {error}")

"""When the checkpoints of a run are written, and whether the newest state is among them."""

from collections.abc import Callable
from typing import Any

from transformer_jax.runs.checkpoints import Checkpoints, SaveFailed
from transformer_jax.runs.directory import RunDirectory


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
        waits: bool = False,
    ) -> None:
        """Touches nothing yet.

        Args:
          directory: of the run.
          count: checkpoints that stay, the newest.
          warn: takes a line about what goes wrong.
          waits: whether nothing goes on meanwhile, of many runs in one process say.
        """
        self.checkpoints = Checkpoints(directory.file("checkpoints"), count, warn)
        self.unsaved: str | None = None
        self._warn, self._waits = warn, waits

    def save(self, step: int, state: Any, extra: dict, must: bool) -> None:
        """Begins to write a checkpoint; `must`: waits for it.

        Args:
          step: optimizer updates so far.
          state: tree of arrays, which may be donated as soon as this returns.
          extra: plain data for JSON.
          must: whether nothing follows.
        """
        self._try(self.checkpoints.settle)  # says why the one before could not be written
        self.unsaved = None
        self._try(lambda: self.checkpoints.begin_save(step, state, extra))
        if must or self._waits:
            self._try(self.checkpoints.settle)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except SaveFailed as error:
            self.unsaved = str(error)
            self._warn(f"NOT SAVED: {error}")

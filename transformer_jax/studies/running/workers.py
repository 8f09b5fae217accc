"""Who trains cells: this process, in whichever way is fastest, or jobs of a cluster."""

import contextlib
import dataclasses
import time
from collections.abc import Generator, Mapping, Sequence

from ml_collections import ConfigDict

from transformer_jax.errors import InvalidInput, Stop, in_one_line
from transformer_jax.runs.directory import InUse, RunDirectory
from transformer_jax.runs.interruption import Interrupted, StopSignal
from transformer_jax.runs.progress import Progress
from transformer_jax.studies.asking.cells import OUTCOMES, Cell, code_hash
from transformer_jax.studies.running.batched import (
    Group,
    computed,
    group_arms,
    members_at_once,
    run_together,
)
from transformer_jax.studies.running.details import measure_later
from transformer_jax.studies.running.planning import Arm, Estimate
from transformer_jax.studies.running.study_progress import StudyProgress
from transformer_jax.training.loop import Training
from transformer_jax.training.run import Run

_POLL = 2.0  # seconds between looks at cells that another process trains
_BRIEF = 60.0  # a cell of fewer seconds is begun again rather than saved in between


class CellsLost(Stop):
    """Some cells failed; the others ran, and the study was judged without their arms."""


@dataclasses.dataclass
class Workers:
    """Trains cells; one that fails stops no other.

    Attributes:
      estimate: how to compute, and how long cells take.
      progress: where to tell.
      stop: tells when to end.
      lost: (arm, seed) -> why a cell has no outcome.
      peak_bytes: arm -> memory of a member's training program.
      elsewhere: cells that another process was training when their turn came.
    """

    estimate: Estimate
    progress: Progress
    stop: StopSignal
    lost: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict)
    peak_bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    elsewhere: list[Cell] = dataclasses.field(default_factory=list)

    def run(self, arms: Mapping[str, Arm], waiting: Sequence[Cell], total: int) -> None:
        """Trains cells in this process.

        Args:
          arms: name -> arm.
          waiting: cells, in the order in which they shall end.
          total: cells in all, those that are there already among them.
        """
        board, left = self.board(waiting, total), list(waiting)
        prepared = {cell.arm: arms[cell.arm].prepared for cell in waiting}
        with self.progress.busy(f"tracing {len(prepared)} arms"):
            groups = group_arms(prepared, self.estimate.how)
        while left and self.stop.signal is None:
            self.elsewhere = []
            for group, together in self._batches(arms, groups, left):
                if self.stop.signal is None:
                    self._run_batch(arms, group, together, board)
            left = self._wait_for_others(board)

    def _wait_for_others(self, board: StudyProgress) -> list[Cell]:
        """Waits a little for cells that other processes train; returns those not ended there."""
        if not self.elsewhere:
            return []
        self.progress.note(f"waiting for {len(self.elsewhere)} cells that others train")
        time.sleep(_POLL)
        ended = [cell for cell in self.elsewhere if cell.state() in OUTCOMES]
        for cell in ended:
            board.ended(cell, cell.state(), "by another process")
        return [cell for cell in self.elsewhere if cell not in ended]

    def refuse_lost(self) -> None:
        """Raises CellsLost where a cell has no outcome."""
        if self.lost:
            (arm, seed), reason = next(iter(self.lost.items()))
            raise CellsLost(
                f"{len(self.lost)} cells failed, the first {arm!r} with seed {seed}: {reason}\n"
                "--retry tries them again; STATUS says why, and error.txt for a fault in code"
            )

    def board(self, waiting: Sequence[Cell], total: int) -> StudyProgress:
        """Returns what tells how far the cells are."""
        seconds = {cell: self.estimate.seconds_of(cell.arm) for cell in waiting}
        return StudyProgress(self.progress, seconds, total)

    def _batches(
        self, arms: Mapping[str, Arm], groups: list[Group], left: list[Cell]
    ) -> Generator[tuple[Group, list[Cell]]]:
        """Cells that are computed together, in the order of their seeds."""
        of_arm = {name: group for group in groups for name in group.arms}
        while left:
            group = of_arm[left[0].arm]
            # What the base needs was measured; larger arms need more, about as their operations.
            work = max(arms[name].cost.flops for name in group.arms) / self.estimate.flops
            nbytes = round(self.estimate.peak_bytes * max(work, 1.0))
            width = members_at_once(group, len(left), nbytes)
            batch = [cell for cell in left if of_arm[cell.arm] is group][:width]
            left = [cell for cell in left if cell not in batch]
            yield group, batch

    def _run_batch(
        self, arms: Mapping[str, Arm], group: Group, cells: list[Cell], board: StudyProgress
    ) -> None:
        training = {c: self._training(arms[c.arm], c, board, len(cells)) for c in cells}
        members = [(cell, its.coroutine()) for cell, its in training.items()]

        def ended(cell: Cell, error: BaseException | None) -> None:
            if isinstance(error, Interrupted):
                return
            if isinstance(error, InUse):
                self.elsewhere.append(cell)
                return
            state = cell.state()
            if state in OUTCOMES:
                self.lost.pop((cell.arm, cell.seed), None)
            elif error is not None:
                self.lost[cell.arm, cell.seed] = in_one_line(error)
            board.ended(cell, state, self.lost.get((cell.arm, cell.seed), ""))

        run_together(group, members, ended)
        self.peak_bytes |= dict.fromkeys(group.arms, group.nbytes_of_one)

    def _training(self, arm: Arm, cell: Cell, board: StudyProgress, width: int) -> Training:
        # Without an estimate it may be long.
        brief = 0 < width * self.estimate.seconds_of(arm.name) < _BRIEF
        config = with_seed(_config_of(cell, arm), cell.seed, brief)
        facts = {
            "code": code_hash(),
            "computed": computed(self.estimate.how),
            "how": self.estimate.how,
            "cell": arm.hash,
        }
        directory, prepared = RunDirectory(cell.path), arm.prepared

        def at_end(run: Run) -> None:
            # What this finds is secondary: the study does it again where something went wrong.
            with contextlib.suppress(Exception):
                measure_later(cell, prepared, run)

        progress = board.of(cell)
        return Training(
            config, directory, lambda: prepared, progress, self.stop, cell=facts, at_end=at_end
        )


def _config_of(cell: Cell, arm: Arm) -> ConfigDict:
    """The arm's, or that of the study which began the cell and says the same in other words."""
    directory = RunDirectory(cell.path)
    with contextlib.suppress(InvalidInput, OSError):  # what is damaged, the run itself tells
        if directory.manifest().get("cell") == arm.hash:
            return directory.config()
    return arm.config


def with_seed(config: ConfigDict, seed: int, brief: bool) -> ConfigDict:
    """Returns an arm's config for one seed; a brief cell is saved at its end alone."""
    copy = config.copy_and_resolve_references().unlock()
    copy.seed = seed
    if brief:
        copy.checkpoint.every = copy.training.steps
    return copy.lock()

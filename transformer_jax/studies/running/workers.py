"""Who trains cells: this process, so many members of a program at a time, or jobs of a cluster."""

import contextlib
import dataclasses
import time
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from transformer_jax.errors import InvalidInput, Stop, in_one_line
from transformer_jax.runs.directory import InUse, RunDirectory
from transformer_jax.runs.interruption import Interrupted, StopSignal
from transformer_jax.runs.progress import Progress
from transformer_jax.studies.asking.cells import OUTCOMES, Cell, code_hash
from transformer_jax.studies.running.details import measure_later
from transformer_jax.studies.running.planning import Arm, Estimate
from transformer_jax.studies.running.study_progress import StudyProgress
from transformer_jax.training.loop import Member, train_members
from transformer_jax.training.program import Program
from transformer_jax.training.run import Run

_POLL = 2.0  # seconds between looks at cells that another process trains
_BRIEF = 60.0  # a cell of fewer seconds is begun again rather than saved in between


class CellsLost(Stop):
    """Some cells failed; the others ran, and the study was judged without their arms."""


@dataclasses.dataclass
class Workers:
    """Trains cells; one that fails stops no other.

    Attributes:
      estimate: how many members go at a time, and how long cells take.
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
        programs: dict[str, Program] = {}
        for arm in {cell.arm: arms[cell.arm] for cell in waiting}.values():
            program = Program(arm.prepared, self.estimate.members)
            programs.setdefault(arm.prepared.program_key, program)
        while left and self.stop.signal is None:
            self.elsewhere, rest = [], left
            while rest and self.stop.signal is None:
                key = arms[rest[0].arm].prepared.program_key
                alike = [cell for cell in rest if arms[cell.arm].prepared.program_key == key]
                together = alike[: self.estimate.members]
                rest = [cell for cell in rest if cell not in together]
                self._train(arms, programs[key], together, board)
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

    def _train(
        self,
        arms: Mapping[str, Arm],
        program: Program,
        cells: Sequence[Cell],
        board: StudyProgress,
    ) -> None:
        members = {cell: self._member(arms[cell.arm], cell, board) for cell in cells}
        train_members([*members.values()], self.stop, program)
        for cell, member in members.items():
            if isinstance(member.error, Interrupted):
                continue
            if isinstance(member.error, InUse):
                self.elsewhere.append(cell)
                continue
            state = cell.state()
            if state in OUTCOMES:
                self.lost.pop((cell.arm, cell.seed), None)
            elif member.error is not None:
                self.lost[cell.arm, cell.seed] = in_one_line(member.error)
            board.ended(cell, state, self.lost.get((cell.arm, cell.seed), ""))
            if member.error is None:
                self.peak_bytes[cell.arm] = program.bytes_of_member

    def _member(self, arm: Arm, cell: Cell, board: StudyProgress) -> Member:
        # Without an estimate it may be long.
        brief = 0 < self.estimate.members * self.estimate.seconds_of(arm.name) < _BRIEF
        config = with_seed(_config_of(cell, arm), cell.seed, brief)
        facts = {
            "code": code_hash(),
            "members": self.estimate.members,
            "cell": arm.hash,
        }
        directory, prepared = RunDirectory(cell.path), arm.prepared

        def at_end(run: Run) -> None:
            # What this finds is secondary: the study does it again where something went wrong.
            with contextlib.suppress(Exception):
                measure_later(cell, prepared, run)

        progress = board.of(cell)
        return Member(
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

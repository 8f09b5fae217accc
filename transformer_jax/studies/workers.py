"""Who trains cells: this process, in whichever way is fastest, or jobs of a cluster."""

import contextlib
import dataclasses
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import Stop
from transformer_jax.studies.board import Board
from transformer_jax.studies.cells import DIVERGED, DONE, FAILED, OUT_OF_MEMORY, Cell
from transformer_jax.studies.cluster import Cluster, run_jobs
from transformer_jax.studies.design import Design
from transformer_jax.studies.details import look_closer
from transformer_jax.studies.execution import (
    Group,
    Member,
    computed,
    group_arms,
    members_at_once,
    run_together,
)
from transformer_jax.studies.planning import Arm, Estimate, Workshop
from transformer_jax.training.interruption import Interrupted, StopSignal
from transformer_jax.training.loading import Run
from transformer_jax.training.loop import Training
from transformer_jax.training.progress import Progress
from transformer_jax.training.runs import InUse, RunDirectory

_POLL = 2.0  # seconds between looks at cells that another process trains
_BRIEF = 60.0  # a cell of fewer seconds is begun again rather than saved in between


@dataclasses.dataclass
class Workers:
    """Trains cells; one that fails stops no other.

    Attributes:
      estimate: how to compute, and how long cells take.
      progress: where to tell.
      stop: tells when to end.
      also: further evaluations of finished cells, see details.
      lost: (arm, seed) -> why a cell has no outcome.
      peak_bytes: arm -> memory of a member's training program.
      elsewhere: cells that another process was training when their turn came.
    """

    estimate: Estimate
    progress: Progress
    stop: StopSignal
    also: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
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
        board, left = self._board(waiting, total), list(waiting)
        wanted = {cell.arm: arms[cell.arm].prepared for cell in waiting}
        with self.progress.busy(f"tracing {len(wanted)} arms"):
            groups = group_arms(wanted, self.estimate.how)
        while left and self.stop.signal is None:
            self.elsewhere = []
            for group, together in self._batches(arms, groups, left):
                if self.stop.signal is None:
                    self._run_batch(arms, group, together, board)
            left = self._wait_for_others(board)

    def _wait_for_others(self, board: Board) -> list[Cell]:
        """Waits a little for cells that other processes train; returns those not ended there."""
        if not self.elsewhere:
            return []
        self.progress.note(f"waiting for {len(self.elsewhere)} cells that others train")
        time.sleep(_POLL)
        ended = [cell for cell in self.elsewhere if cell.state() in (DONE, DIVERGED)]
        for cell in ended:
            board.ended(cell, cell.state(), "by another process")
        return [cell for cell in self.elsewhere if cell not in ended]

    def _board(self, waiting: Sequence[Cell], total: int) -> Board:
        seconds = {cell: self.estimate.seconds_of(cell.arm) for cell in waiting}
        return Board(self.progress, seconds, total)

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
        self, arms: Mapping[str, Arm], group: Group, cells: list[Cell], board: Board
    ) -> None:
        members = [
            (
                cell,
                Member(cell.arm, self._training(arms[cell.arm], cell, board, len(cells)).story()),
            )
            for cell in cells
        ]
        of_story = {id(member.story): cell for cell, member in members}

        def ended(member: Member, error: BaseException | None) -> None:
            cell = of_story[id(member.story)]
            if isinstance(error, Interrupted):
                return
            if isinstance(error, InUse):
                self.elsewhere.append(cell)
                return
            state = cell.state()
            if state not in (DONE, DIVERGED):
                first = (str(error).splitlines() or [""])[0]
                self.lost[cell.arm, cell.seed] = f"{type(error).__name__}: {first}"
            board.ended(cell, state, self.lost.get((cell.arm, cell.seed), ""))

        run_together(group, [member for _, member in members], len(cells), ended)
        self.peak_bytes |= dict.fromkeys(group.arms, group.nbytes_of_one)

    def _training(self, arm: Arm, cell: Cell, board: Board, width: int) -> Training:
        brief = width * self.estimate.seconds_of(arm.name) < _BRIEF
        config = with_seed(arm.config, cell.seed, brief)
        facts = {
            "code": arm.facts["code"],
            "computed": computed(self.estimate.how),
            "how": self.estimate.how,
            "cell": arm.hash,
        }
        directory, prepared = RunDirectory(cell.path), arm.prepared

        def at_end(run: Run) -> None:
            # What this finds is secondary: the study does it again where something went wrong.
            with contextlib.suppress(Exception):
                look_closer(cell, self.also, prepared, run)

        progress = board.of(cell)
        return Training(
            config, directory, lambda: prepared, progress, self.stop, cell=facts, at_end=at_end
        )

    # ---- as jobs

    def submit(
        self,
        cluster: Cluster,
        design: Design,
        workdir: Path,
        root: Path,
        arms: Mapping[str, Arm],
        waiting: Sequence[Cell],
        total: int,
    ) -> None:
        """Trains cells as jobs; each gets cells of one arm as far as that goes, to compile once.

        Args:
          cluster: where to.
          design: of the study.
          workdir: of the study; `jobs` in it gets their logs.
          root: that holds `cells`.
          arms: name -> arm.
          waiting: cells.
          total: cells in all.
        """
        board, names = self._board(waiting, total), list(arms)
        order = sorted(waiting, key=lambda cell: (names.index(cell.arm), cell.seed))
        size = cluster.cells_per_job
        jobs = [order[start : start + size] for start in range(0, len(order), size)]
        told: set[Cell] = set()

        def look() -> None:
            for cell in waiting:
                state = cell.state()
                if cell not in told and state in (DONE, DIVERGED, FAILED, OUT_OF_MEMORY):
                    told.add(cell)
                    board.ended(cell, state, "" if state == DONE else cell.reason())

        self.progress.say(f"jobs   {len(jobs)} with {len(order)} cells ({cluster.kind})")
        run_jobs(
            cluster,
            workdir / "jobs",
            (design, str(root.absolute()), self.estimate),
            [[(c.arm, arms[c.arm].changes, arms[c.arm].hash, c.seed) for c in job] for job in jobs],
            lambda: self.stop.signal is not None,
            look,
        )
        for cell in waiting:
            if cell.state() not in (DONE, DIVERGED):
                what_for = cell.reason() or f"its job did not end well, see {workdir}/jobs"
                self.lost[cell.arm, cell.seed] = what_for


def run_some(
    design: Design,
    root: str,
    estimate: Estimate,
    batch: Sequence[tuple[str, dict[str, Any], str, int]],
) -> list[str]:
    """What a job does: trains cells of a study that another process has sealed and will judge.

    Args:
      design: of the study.
      root: that holds `cells`.
      estimate: how to compute, and how long cells take.
      batch: of (arm, or trial of its tuning; its changes; its cells' folder; seed).
    Returns:
      How each cell ended.
    Raises:
      Stop: here the same arm would be another: other code, packages or device than where the study
        was launched.
    """
    with StopSignal() as stop:
        arms: dict[str, Arm] = {}
        for name, changes, folder, _ in batch:
            if name not in arms:
                of_arm = dataclasses.replace(design, arms={**design.arms, name: changes})
                arms[name] = Workshop(of_arm).make(name, name)
                arms[name].place(estimate.how)
                if arms[name].hash != folder:
                    raise Stop(
                        f"{name}: code, packages or device are not those where the study was "
                        "launched; launch it from a node like this one"
                    )
        cells = [
            Cell(name, seed, Path(root) / "cells" / arms[name].hash / f"s{seed}")
            for name, _, _, seed in batch
        ]
        Workers(estimate, Progress(), stop, design.also).run(arms, cells, len(cells))
        return [cell.state() for cell in cells]


def with_seed(config: ConfigDict, seed: int, brief: bool) -> ConfigDict:
    """Returns an arm's config for one seed; a brief cell is saved at its end alone."""
    copy = config.copy_and_resolve_references().unlock()
    copy.seed = seed
    if brief:
        copy.checkpoint.every = copy.training.steps
    return copy.lock()

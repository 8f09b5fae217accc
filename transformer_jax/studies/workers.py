"""Training of cells: in this process, several members per program, or as jobs of a cluster."""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import InvalidInput, Stop, in_one_line
from transformer_jax.metrics import measured_by
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import InUse, RunDirectory
from transformer_jax.runs.files import replace
from transformer_jax.runs.interruption import Interrupted, StopSignal
from transformer_jax.runs.progress import Progress, Silent
from transformer_jax.studies.arms import Arm, Estimate
from transformer_jax.studies.cells import DONE, OUTCOMES, Cell, code_hash, read_details
from transformer_jax.training.evaluation import evaluate, score_of
from transformer_jax.training.loop import Member, train_members
from transformer_jax.training.measuring import Measured, facts_of_metrics, measured
from transformer_jax.training.optimizers import evaluated_params
from transformer_jax.training.prepared import Prepared
from transformer_jax.training.program import Program
from transformer_jax.training.run import Run

# ---------------------------------------------------------------- metrics asked for later


def measure_later(cell: Cell, prepared: Prepared, run: Run | None = None) -> None:
    """Measures the metrics that a finished cell lacks, from `run` or its checkpoint."""
    names = _unmeasured(cell, prepared.config.evaluation)
    if not names:
        return
    figures = _measured(cell, prepared, run or _load(cell, prepared), names)
    details = read_details(cell)  # another launch may have written meanwhile
    before = details.get("metrics", {})
    details["metrics"] = {part: {**before.get(part, {}), **figures[part]} for part in figures}
    replace(cell.path, "details.json", json.dumps(details) + "\n")


def _unmeasured(cell: Cell, evaluation: ConfigDict) -> list[str]:
    """Returns the metrics that a finished cell lacks, or has by another file or target."""
    stored, now = cell.metric_facts(), _facts(evaluation.metrics, evaluation.target)
    return [name for name in now if stored.get(name, {}).get("code") != now[name]["code"]]


def _facts(names: Sequence[str], target: float | None) -> dict[str, Any]:
    """Returns facts about metrics, with the target for those that use one."""
    found = facts_of_metrics(names)
    return {n: {**f, "code": measured_by(n, f["code"], target)} for n, f in found.items()}


def _measured(
    cell: Cell, prepared: Prepared, run: Run, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Returns metrics of a finished cell: values by split, and facts about them."""
    directory, figures = RunDirectory(cell.path), {}
    curve = prepared.curve(directory.metrics(), directory.is_alone())
    for split in ("validation", "test"):
        size = prepared.config.evaluation.batch_size
        scored = evaluate(score_of(run), run.params, prepared.task, split, size)
        # Scores of what the model wrote are in the cell; nothing is written again.
        generated = {key: v for key, v in cell.means(split).items() if isinstance(v, float)}
        scored = scored._replace(means={**generated, **scored.means})
        at = Measured(run, prepared.task, split, scored, curve)
        figures[split] = measured(names, at, prepared.allow, again=True)
    return {**figures, "facts": _facts(names, run.config.evaluation.target)}


def _load(cell: Cell, prepared: Prepared) -> Run:
    """Returns the cell's run as load_run does, reusing the prepared data and model."""
    checkpoints = Checkpoints(RunDirectory(cell.path).file("checkpoints"))
    restored = checkpoints.restore(prepared.template, read_only=True)
    if restored is None:
        raise InvalidInput(
            f"{cell.path}: its checkpoints are gone (runs gc --checkpoints); remove the folder: "
            "ablate trains it again"
        )
    params = evaluated_params(restored.state.opt_state, restored.state.params)
    return prepared.run(params, restored.step)


# ---------------------------------------------------------------- what a person sees

_TRUSTED_SECONDS = 10.0
_MOST_ARMS = 8  # of which a terminal shows how far their seeds are
_WAITS, _TRAINS, _ENDED, _FAILED = "○◐●×"


class StudyProgress:
    """Progress over the cells of one launch."""

    def __init__(self, progress: Progress, seconds: Mapping[Cell, float], total: int) -> None:
        """Starts the clock, with the expected seconds of each cell that has to run.

        `total` is the number of all cells, including those that need not run.
        """
        self._progress, self._expected = progress, dict(seconds)
        self._total = total
        self._shares = dict.fromkeys(seconds, 0.0)
        self._failed: set[Cell] = set()
        self._started = time.monotonic()
        progress.details = self._by_arm

    def of(self, cell: Cell) -> Progress:
        """Returns the progress of one cell."""
        return _OfCell(self, cell)

    def step(self, cell: Cell, step: int, steps: int, loss: float) -> None:
        """Shows the progress of a cell."""
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
        """Prints how a cell ended."""
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
        """Returns a line per arm of this launch with a mark per seed; unfinished arms first."""
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
        """Returns the expected seconds of the rest, corrected by the error of expectations so far.

        Expectations are trusted for a tenth of the time, since the first steps wait for the
        compiler. Without timings, all cells count as equally long.
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
    """Passes a cell's steps on, and is silent otherwise."""

    def __init__(self, board: StudyProgress, cell: Cell) -> None:
        super().__init__()
        self._board, self._cell = board, cell

    def step(self, step: int, steps: int, loss: float, speed: str, seconds_left: float) -> None:
        """Passes the step on."""
        self._board.step(self._cell, step, steps, loss)


# ---------------------------------------------------------------- workers

_POLL = 2.0  # seconds between looks at cells that another process trains
_BRIEF = 60.0  # a cell of fewer seconds is begun again rather than saved in between


class CellsLost(Stop):
    """Some cells failed; the others ran, and the study was judged without their arms."""


@dataclasses.dataclass
class Workers:
    """Trains cells; one that fails stops no other.

    Attributes:
      estimate: Number of members at a time, and duration of cells.
      progress: Where progress is reported.
      stop: The signal that ends training.
      lost: (arm, seed) -> why a cell has no outcome.
      peak_bytes: Arm -> memory of a member's training program.
      elsewhere: Cells that another process was training when their turn came.
    """

    estimate: Estimate
    progress: Progress
    stop: StopSignal
    lost: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict)
    peak_bytes: dict[str, int] = dataclasses.field(default_factory=dict)
    elsewhere: list[Cell] = dataclasses.field(default_factory=list)

    def run(self, arms: Mapping[str, Arm], waiting: Sequence[Cell], total: int) -> None:
        """Trains the waiting cells, of `total` in all, in this process and in this order."""
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
            if member.error is None and program.is_compiled:
                self.peak_bytes[cell.arm] = program.bytes_of_member

    def _member(self, arm: Arm, cell: Cell, board: StudyProgress) -> Member:
        # Without an estimate it may be long.
        brief = 0 < self.estimate.members * self.estimate.seconds_of(arm.name) < _BRIEF
        config = with_seed(_config_of(cell, arm), cell.seed, brief)
        facts = {"code": code_hash(), "members": self.estimate.members, "cell": arm.hash}
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

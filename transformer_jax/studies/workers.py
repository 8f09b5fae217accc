"""Training of cells in this process, with several members per program."""

import contextlib
import dataclasses
import json
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import InvalidInput, Stop, in_one_line
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import InUse, RunDirectory
from transformer_jax.runs.files import replace
from transformer_jax.runs.interruption import Interrupted, StopSignal
from transformer_jax.runs.progress import Progress, Silent
from transformer_jax.studies.arms import Arm, Estimate
from transformer_jax.studies.cells import DONE, OUTCOMES, Cell, code_hash, for_target, read_details
from transformer_jax.training.evaluation import evaluate, score_of
from transformer_jax.training.loop import Member, train_members
from transformer_jax.training.measuring import facts_of_metrics, measured
from transformer_jax.training.optimizers import evaluated_params
from transformer_jax.training.prepared import Prepared
from transformer_jax.training.program import Program
from transformer_jax.training.run import Run


def measure_later(cell: Cell, prepared: Prepared, run: Run | None = None) -> None:
    """Measures the metrics that a finished cell lacks, from `run` or the cell's checkpoint.

    A metric measured by different code or for a different target counts as lacking.
    """
    evaluation, stored = prepared.config.evaluation, cell.metric_facts()
    facts = facts_of_metrics(evaluation.metrics, evaluation.benchmark)
    facts = for_target(facts, evaluation.target)
    names = [name for name in facts if stored.get(name, {}).get("code") != facts[name]["code"]]
    if not names:
        return
    run = run or _load(cell, prepared)
    directory = RunDirectory(cell.path)
    curve = prepared.curve(directory.metrics(), directory.manifest().get("members", 1) == 1)
    figures: dict[str, Any] = {}
    for split in ("validation", "test"):
        scored = evaluate(score_of(run), run.params, prepared.task, split, evaluation.batch_size)
        # The cell already has the scores of generated text, so nothing is generated again.
        generated = {key: v for key, v in cell.means(split).items() if isinstance(v, float)}
        scored = scored._replace(means={**generated, **scored.means})
        at = (run, prepared.task, split, scored, prepared.allow)
        figures[split] = measured(names, *at, curve=curve, again=True)
    figures["facts"] = {name: facts[name] for name in names}
    details = read_details(cell)  # another launch may have written meanwhile
    before = details.get("metrics", {})
    details["metrics"] = {part: {**before.get(part, {}), **figures[part]} for part in figures}
    replace(cell.path, "details.json", json.dumps(details) + "\n")


def _load(cell: Cell, prepared: Prepared) -> Run:
    """Loads the cell's run like load_run, but reuses the prepared data and model."""
    checkpoints = Checkpoints(RunDirectory(cell.path).file("checkpoints"))
    restored = checkpoints.restore(prepared.template, read_only=True)
    if restored is None:
        raise InvalidInput(
            f"{cell.path}: its checkpoints were removed (runs gc --checkpoints); remove the "
            "folder, and ablate trains the cell again"
        )
    trained = restored.state
    params = evaluated_params(trained.opt_state, trained.params, trained.state)
    return prepared.run(params, restored.step)


_TRUSTED_SECONDS = 10.0
_MOST_ARMS = 8  # most arms whose seeds a terminal shows
_WAITS, _TRAINS, _ENDED, _FAILED = "○◐●×"


class StudyProgress:
    """Display of the progress over the cells of one launch."""

    def __init__(self, progress: Progress, seconds: Mapping[Cell, float], total: int) -> None:
        """Starts the clock; `seconds` has the expected time of each cell to run, out of `total`."""
        self._progress, self._expected, self._total = progress, dict(seconds), total
        self._already = total - len(seconds)
        self._shares = dict.fromkeys(seconds, 0.0)
        self._failed: set[Cell] = set()
        self._started = time.monotonic()
        progress.details = self._by_arm

    def step(self, cell: Cell, step: int, steps: int, loss: float) -> None:
        """Shows the progress of a cell."""
        number = min(self._done() + 1, self._total)  # counted before a last step
        self._shares[cell] = step / steps
        self._progress.step(
            round((self._already + sum(self._shares.values())) * steps),
            self._total * steps,
            loss,
            f"cell {number}/{self._total}: {cell.arm}, seed {cell.seed}",
            self._seconds_left(),
        )

    def ended(self, cell: Cell, state: str, reason: str) -> None:
        """Prints how a cell ended."""
        self._shares[cell] = 1.0
        remark = f"  {reason}"
        if state == DONE:
            loss = cell.means("validation").get("loss")
            remark = "" if loss is None else f"  validation loss {loss:.4f}"
        else:
            self._failed.add(cell)
        self._progress.say(
            f"{self._done():>3}/{self._total} {cell.arm}, seed {cell.seed}: {state}{remark}"
        )

    def _by_arm(self) -> list[str]:
        """Returns one line per arm of this launch, with a mark per seed; unfinished arms first."""
        marks: dict[str, str] = {}
        for cell, share in self._shares.items():
            mark = _WAITS if share == 0 else _TRAINS if share < 1 else _ENDED
            marks[cell.arm] = marks.get(cell.arm, "") + (_FAILED if cell in self._failed else mark)
        arms = sorted(marks, key=lambda arm: not {_WAITS, _TRAINS} & {*marks[arm]})
        shown = arms if len(arms) <= _MOST_ARMS else arms[: _MOST_ARMS - 1]
        hidden = len(arms) - len(shown)
        lines = [f"{marks[arm]}  {arm}" for arm in shown]
        return [*lines, f"... and {hidden} more arms"] if hidden else lines

    def _done(self) -> int:
        return self._already + sum(share >= 1 for share in self._shares.values())

    def _seconds_left(self) -> float:
        """Returns the expected seconds left, corrected by the error of the estimates so far.

        The estimates are trusted for the first tenth of the time, when steps wait for the
        compiler. Without estimates, all cells count as equally long.
        """
        whole = sum(self._expected.values())
        elapsed = time.monotonic() - self._started
        if not whole:
            share = sum(self._shares.values()) / len(self._shares)
            return elapsed * (1 - share) / share if share else math.inf
        done = sum(self._shares[cell] * s for cell, s in self._expected.items())
        trusted = max(_TRUSTED_SECONDS, whole / 10)
        return (whole - done) * (elapsed + trusted) / (done + trusted)


class _CellProgress(Silent):
    """Progress of one cell, which passes steps to a StudyProgress and is silent otherwise."""

    def __init__(self, board: StudyProgress, cell: Cell) -> None:
        super().__init__()
        self._board, self._cell = board, cell

    def step(self, step: int, steps: int, loss: float, speed: str, seconds_left: float) -> None:
        self._board.step(self._cell, step, steps, loss)


_POLL = 2.0  # seconds between checks of cells that another process trains
_BRIEF = 60.0  # a cell of fewer seconds is not saved before its end, but begun again


class CellsLost(Stop):
    """Some cells failed; the others ran, and arms with failed cells got no verdict."""


@dataclasses.dataclass
class Workers:
    """Trainer of cells; a cell that fails does not stop the others.

    Attributes:
      lost: (arm, seed) -> reason why the cell has no outcome.
      peak_bytes: Arm -> bytes of memory that the training program needs per member.
    """

    estimate: Estimate
    progress: Progress
    stop: StopSignal
    lost: dict[tuple[str, int], str] = dataclasses.field(default_factory=dict)
    peak_bytes: dict[str, int] = dataclasses.field(default_factory=dict)

    def run(self, arms: Mapping[str, Arm], waiting: Sequence[Cell], total: int) -> None:
        """Trains the waiting cells (of `total` in all) in this process, in the given order."""
        board, left = self.board(waiting, total), list(waiting)
        keys = {cell.arm: arms[cell.arm].prepared.program_key for cell in waiting}
        programs: dict[str, Program] = {}
        for arm, key in keys.items():
            programs.setdefault(key, Program(arms[arm].prepared, self.estimate.members))
        while left and self.stop.signal is None:
            rest, elsewhere = left, []
            while rest and self.stop.signal is None:
                key = keys[rest[0].arm]
                together = [c for c in rest if keys[c.arm] == key][: self.estimate.members]
                rest = [cell for cell in rest if cell not in together]
                elsewhere += self._train(arms, programs[key], together, board)
            left = self._wait_for_others(elsewhere, board)

    def _wait_for_others(self, cells: Sequence[Cell], board: StudyProgress) -> list[Cell]:
        """Waits briefly for cells that other processes train; returns those without an outcome."""
        if not cells:
            return []
        self.progress.note(f"waiting for {len(cells)} cells that other processes train")
        time.sleep(_POLL)
        left = []
        for cell in cells:
            if (state := cell.state()) in OUTCOMES:
                board.ended(cell, state, "by another process")
            else:
                left.append(cell)
        return left

    def refuse_lost(self) -> None:
        """Raises CellsLost if a cell ended without an outcome."""
        if self.lost:
            (arm, seed), reason = next(iter(self.lost.items()))
            raise CellsLost(
                f"{len(self.lost)} cells failed; the first is arm {arm!r}, seed {seed}: {reason}\n"
                "--retry runs them again; STATUS has the reason, error.txt the traceback"
            )

    def board(self, waiting: Sequence[Cell], total: int) -> StudyProgress:
        """Returns a progress display for the waiting cells (of `total` in all)."""
        seconds = {cell: self.estimate.seconds_of(cell.arm) for cell in waiting}
        return StudyProgress(self.progress, seconds, total)

    def _train(
        self, arms: Mapping[str, Arm], program: Program, cells: Sequence[Cell], board: StudyProgress
    ) -> list[Cell]:
        """Trains cells in one program; returns those that another process is training."""
        members = {cell: self._member(arms[cell.arm], cell, board) for cell in cells}
        train_members([*members.values()], self.stop, program)
        elsewhere = []
        for cell, member in members.items():
            if isinstance(member.error, Interrupted):
                continue
            if isinstance(member.error, InUse):
                elsewhere.append(cell)
                continue
            state = cell.state()
            if state in OUTCOMES:
                self.lost.pop((cell.arm, cell.seed), None)
            elif member.error is not None:
                self.lost[cell.arm, cell.seed] = in_one_line(member.error)
            board.ended(cell, state, self.lost.get((cell.arm, cell.seed), ""))
            if member.error is None and (most := program.bytes_of_member) is not None:
                self.peak_bytes[cell.arm] = most
        return elsewhere

    def _member(self, arm: Arm, cell: Cell, board: StudyProgress) -> Member:
        directory, config = RunDirectory(cell.path), arm.config
        # The study that began the cell may have stated the same options in other words.
        with contextlib.suppress(InvalidInput, OSError):  # the run itself reports damage
            if directory.manifest().get("cell") == arm.hash:
                config = directory.config()
        # Without an estimate a cell may take long.
        brief = 0 < self.estimate.members * self.estimate.seconds_of(arm.name) < _BRIEF

        def at_end(run: Run) -> None:
            # Metrics measured here are secondary: the study measures again what failed.
            with contextlib.suppress(Exception):
                measure_later(cell, arm.prepared, run)

        return Member(
            with_seed(config, cell.seed, brief),
            directory,
            lambda: arm.prepared,
            _CellProgress(board, cell),
            self.stop,
            cell={"code": code_hash(), "members": self.estimate.members, "cell": arm.hash},
            at_end=at_end,
        )


def with_seed(config: ConfigDict, seed: int, brief: bool) -> ConfigDict:
    """Returns an arm's config for one seed; if `brief`, the run is saved only at its end."""
    copy = config.copy_and_resolve_references().unlock()
    copy.seed = seed
    if brief:
        copy.checkpoint.every = copy.training.steps
    return copy.lock()

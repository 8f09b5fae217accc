"""Running of a study, from the question to the verdict: plan, seal, runs and judgement."""

import contextlib
import math
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config_files import flatten
from transformer_jax.errors import InvalidInput, in_one_line
from transformer_jax.resolve import unread
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import as_plain, inside, refuse_foreign_files
from transformer_jax.runs.interruption import StopSignal
from transformer_jax.runs.progress import Progress
from transformer_jax.runs.provenance import command_line, surroundings
from transformer_jax.studies import tables
from transformer_jax.studies.arms import (
    Arm,
    ArmBuilder,
    Estimate,
    calibrate,
    incomparable,
    members_of,
    same_files,
)
from transformer_jax.studies.cells import DONE, FAILED, OUTCOMES, Cell, code_hash
from transformer_jax.studies.cluster import Cluster
from transformer_jax.studies.design import METHODS, Design, gate_of
from transformer_jax.studies.jobs import run_as_jobs
from transformer_jax.studies.statistics import FOR_MEANS, detectable, level_of_look, lowest_point
from transformer_jax.studies.study import Study, changed_since, way_to
from transformer_jax.studies.workers import Workers, measure_later
from transformer_jax.training.compatibility import refuse_what_is_not_installed

# (trials, seeds) -> validation scores by trial and seed: {} if diverged, None without an outcome.
RunTrials = Callable[[Mapping[str, Arm], Sequence[int]], dict[str, list[dict | None]]]


def tune(
    design: Design, builder: ArmBuilder, arms: Mapping[str, Arm], run_trials: RunTrials
) -> dict[str, dict[str, Any]]:
    """Runs the tuning trials of all arms and returns the results.

    Returns:
      A dict by arm: `key`, `grid` and `seeds`, the `chosen` value, `scores` by grid value and seed
      (None: no score), the number of `runs`, and `refused`, a reason against a verdict or "".
    """
    assert design.tuning is not None
    key, grid, seeds = design.tuning.key, design.tuning.grid, design.tuning.seeds
    names = {(arm, value): f"{arm} | {key}={value:g}" for arm in arms for value in grid}
    trials = {
        name: builder.make(name, arm, {**arms[arm].matched, key: value})
        for (arm, value), name in names.items()
    }
    means = run_trials(trials, seeds)
    sign = -1.0 if design.larger_is_better else 1.0
    tuned = {}
    for name, arm in arms.items():
        rows = [means[names[name, value]] for value in grid]
        # A metric can lack a value, such as the updates to a target that was never reached.
        scores = [[(row or {}).get(design.metric) for row in of_value] for of_value in rows]
        losses = [
            sum(math.inf if s is None or not math.isfinite(s) else sign * s for s in of_value)
            / len(of_value)
            for of_value in scores
        ]
        best = lowest_point(grid, losses)
        refused = f"its best {key} is at the edge of the grid" if best is None else ""
        if any(row is None for of_value in rows for row in of_value):
            refused = "some trials of its tuning have no outcome"
        tried = grid[losses.index(min(losses))]
        chosen = tried
        for chosen in (float(f"{best or tried:.3g}"), round(best or tried), tried):
            # The option may need an integer, or a width that suits the heads; `tried` was trained.
            with contextlib.suppress(InvalidInput, ValueError):
                builder.make(name, name, {**arm.matched, key: chosen})
                break
        tuned[name] = {
            "key": key,
            "grid": list(grid),
            "seeds": list(seeds),
            "chosen": chosen,
            "scores": scores,
            "runs": design.tuning.runs_of_an_arm,
            "refused": refused,
        }
    return tuned


def run(
    design: Design,
    workdir: str | Path,
    seeds: Sequence[int],
    *,
    members: int | None = None,
    retry: bool = False,
    dry_run: bool = False,
    root: str | Path | None = None,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
) -> Study:
    """Runs the missing cells of a study, judges it and returns it; finished cells are reused.

    Args:
      design: The question, arms and rules of the study.
      workdir: Directory of the study.
      seeds: Seeds to run; those of earlier launches are kept.
      members: Number of members that a program trains at a time, or None for that of the earlier
        launch or the default; see members_of.
      retry: Whether failed cells are tried again.
      dry_run: Whether to stop after the plan.
      root: Directory that holds `cells`, shared by all studies below it; workdir's parent if None.
      cluster: Cluster whose jobs train the cells, or None to train them in this process.
      progress: Receiver of progress reports; standard output if None.

    Raises:
      InvalidInput: The design, an arm or the directory is not valid; nothing ran.
      Interrupted: The process received a signal; cells in progress were saved.
      CellsLost: Some cells failed.
    """
    options = {"members": members, "root": root, "cluster": cluster, "dry_run": dry_run}
    with (
        contextlib.closing(progress or Progress()) as shown,
        StopSignal() as stop,
        planned(design, workdir, seeds, shown, stop, **options) as launch,
    ):
        if not dry_run:
            launch.run(retry)
    return launch.study


@contextlib.contextmanager
def planned(
    design: Design,
    workdir: str | Path,
    seeds: Sequence[int],
    progress: Progress,
    stop: StopSignal,
    dry_run: bool = False,
    **options: Any,
) -> Generator["Launch"]:
    """Yields a Launch whose plan was shown; locks the study's directory unless `dry_run`.

    The arguments are as in `run`; `options` are members, root and cluster.
    """
    study = Study(workdir)
    if not study.record:
        allowed = ("cells", "jobs", "register.jsonl")
        refuse_foreign_files(study.path, "--workdir", "study", allowed)
    with contextlib.nullcontext() if dry_run else RunDirectory(study.path).locked():
        if design.exploratory:  # such a study is looked at once all its seeds have run
            looks = study.sealed["looks"] if study.record else (len(seeds),)
            design = design.model_copy(update={"looks": tuple(looks)})
        launch = Launch(study, design, seeds, progress, stop, **options)
        launch.show_plan()
        yield launch


class Launch:
    """One launch of a study; its arms have the values that earlier tuning chose for them."""

    def __init__(
        self,
        study: Study,
        design: Design,
        seeds: Sequence[int],
        progress: Progress,
        stop: StopSignal,
        members: int | None = None,
        root: str | Path | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        """Builds, times and checks the arms; the arguments are as in `run`."""
        started = time.monotonic()
        self.study, self.design, self.cluster = study, design, cluster
        self.progress, self.stop = progress, stop
        self.seeds = sorted({*study.begun(), *seeds})
        if design.tuning and set(self.seeds) & set(design.tuning.seeds):
            raise InvalidInput(f"--seeds: {design.tuning.seeds} are reserved for tuning")
        default_root = study.root if study.record else study.path.absolute().parent
        self.root = Path(root) if root else default_root
        if cluster is not None:  # refused before anything is sealed
            cluster.executor(inside(study.path, "jobs"))
        if study.record and study.base not in design.arms:
            raise InvalidInput(
                f"--workdir={study.path}: it holds a study of {', '.join(study.arms)} with the "
                f"base {study.base!r}, which is no longer an arm; choose another --workdir"
            )
        refuse_what_is_not_installed(design.config_of(design.base))
        arms_before = study.record.get("arms", {})
        is_the_same = study.record and not changed_since(study.sealed, design.sealed())
        solved = {name: arm["matched"] for name, arm in arms_before.items() if arm["matched"]}
        self.builder = ArmBuilder(design, solved if is_the_same else {})
        with progress.busy(f"preparing {len(design.arms)} arms"):
            self.arms = self.builder.arms()
            members = members_of(self.arms.values(), members or study.record.get("members"))
            self._take_tuned(members)
        before = study.record.get("files", {}) if study.record.get("began") else {}
        self.files = same_files(self.arms, before, f"--workdir={study.path}")
        self.states = {cell: cell.state() for cell in self._cells()}
        self.missing = [cell for cell, state in self.states.items() if state not in OUTCOMES]
        is_tuned = {name for name, arm in arms_before.items() if "tuning" in arm}
        self.untuned = [name for name in self.arms if design.tuning and name not in is_tuned]
        with progress.busy("timing some steps"):
            self.estimate = Estimate(members)
            if self.missing or self.untuned:
                self.estimate = calibrate(self.arms, design.base, members)
        self.workers = Workers(self.estimate, progress, stop)
        with progress.busy("checking that each arm's change has an effect"):
            self.certificates = self.builder.certificates(self.arms, self._known_certificates())
        self.baselines = self._baselines()
        self.planning = time.monotonic() - started

    def _baselines(self) -> dict[str, Any]:
        """Returns the scores of simple methods on the base's data, and the gate to beat."""
        base = self.arms[self.design.base]
        baselines: dict[str, Any] = self.study.record.get("baselines", {})
        if baselines.get("data") != base.data:
            with self.progress.busy("scoring simple methods"):
                scores, usual = self.builder.baselines(base)
            baselines = {"data": base.data, "scores": scores, "usual": usual}
        gate: dict[str, Any] | None = None
        if self.design.target is None:
            gate = gate_of(self.design.sealed()["gate"], baselines["usual"], baselines["scores"])
        return {**baselines, "gate": gate}

    def _take_tuned(self, members: int) -> None:
        """Gives arms the values chosen by tuning, and finds the folders of their cells."""
        tuning = self.design.tuning
        for name, stored in self.study.record.get("arms", {}).items():
            if name in self.arms and tuning and stored.get("tuning", {}).get("key") == tuning.key:
                more = {**self.arms[name].matched, tuning.key: stored["tuning"]["chosen"]}
                self.arms[name] = self.builder.make(name, name, more)
        for arm in self.arms.values():
            arm.find_folder(members)

    def _known_certificates(self) -> dict[str, dict]:
        arms = self.study.record.get("arms", {})
        base = self.arms[self.design.base].hash
        if arms.get(self.design.base, {}).get("hash") != base:
            return {}  # the stored ones compare with a different base
        return {arm["hash"]: arm["certificate"] for arm in arms.values()}

    def _cells(self) -> list[Cell]:
        """Returns all cells, ordered by seed and then by arm."""
        return [arm.cell(self.root, seed) for seed in self.seeds for arm in self.arms.values()]

    # ---- the plan

    def seconds_to_come(self) -> dict[str, float]:
        """Returns the expected seconds for missing `cells` and, if any is asked for, `tuning`."""
        seconds_of, tuning = self.estimate.seconds_of, self.design.tuning
        seconds = {"cells": sum(seconds_of(cell.arm) for cell in self.missing)}
        if tuning:
            seconds["tuning"] = sum(map(seconds_of, self.untuned)) * tuning.runs_of_an_arm
        return seconds

    def show_plan(self) -> None:
        """Prints the plan, and the effect of each arm's change before training."""
        design, arms, say = self.design, self.arms, self.progress.say
        seconds = self.seconds_to_come()
        together = f"{self.estimate.members} at a time; " if self.estimate.members > 1 else ""
        lines = [
            f"question    {design.question}",
            f"prediction  {design.prediction}",
            f"judged by   test/{design.metric}, {tables.direction(design.larger_is_better)}; "
            f"margin {design.margin:g}: {design.margin_reason}",
            f"cells       {len(arms)} arms x {len(self.seeds)} seeds, "
            f"{len(self.states) - len(self.missing)} there already, {len(self.missing)} to run in "
            f"about {tables.clock(seconds['cells'])} "
            f"({together}{self.estimate.description or 'nothing was timed'})",
        ]
        if design.tuning:
            values = ", ".join(f"{value:g}" for value in design.tuning.grid)
            lines.append(
                f"tuning      {design.tuning.key} {values} with {len(design.tuning.seeds)} seeds, "
                f"then a parabola: for each arm as much as {design.tuning.runs_of_an_arm} of its "
                f"runs, in all about {tables.clock(seconds['tuning'])}"
            )
        if design.exploratory:
            lines.append("exploratory: made on the command line, so verdicts are leads to confirm")
        say("\n".join(lines))
        heads = ["arm", "params", "FLOPs/token", "there", *tables.CHANGE_HEADS]
        rows = []
        for name, arm in arms.items():
            done = sum(state in OUTCOMES for cell, state in self.states.items() if cell.arm == name)
            cost = [tables.spell(arm.cost.parameters), f"{arm.cost.flops:.3g}"]
            change = tables.change_cells(self.certificates[name])
            rows.append([name, *cost, f"{done}/{len(self.seeds)}", *change])
        say(tables.table_text(heads, rows))
        for name, arm in arms.items():
            changes = [f"{k.removeprefix('model.')}={value}" for k, value in arm.changes.items()]
            if (listed := ", ".join(changes)) not in ("", name):
                say(f"  {name}: {listed}")
        read_by_base = unread(flatten(arms[design.base].config))
        for name, arm in arms.items():
            for key, choice in unread(flatten(arm.config)).items():
                if key not in read_by_base:
                    say(f"  {name} does not read {key}, which the config states: {choice}")
        say(baselines_as_text(self.baselines))
        say(resolution(design, len(self.seeds)))
        costs = {name: arm.cost._asdict() for name, arm in arms.items()}
        for name, differences in tables.unmatched(costs, design.base).items():
            say(f"unmatched  {name}: {differences}")
        for name, reasons in incomparable(arms, design.base, design.metric).items():
            say(f"no verdict {name}: {'; '.join(reasons)}")

    # ---- running

    def run(self, retry: bool) -> None:
        """Seals the study, runs the missing cells, and judges the study."""
        # Between the plan and now other studies may have run; their time does not count.
        self.counted_until = time.monotonic() - self.planning
        self.stop.end("interrupted before this study was sealed")
        self._seal()
        if self.design.tuning:
            self._tune(retry)
        cells = self._cells()
        self._run_cells(self.arms, cells, retry)
        for cell in cells:
            if cell.state() == DONE and self.stop.signal is None:
                self._measure_later(cell, self.arms[cell.arm])
        self.decide()
        self.workers.refuse_lost()

    def _measure_later(self, cell: Cell, arm: Arm) -> None:
        """Measures and writes metrics that a finished cell lacks; a failure is only reported."""
        try:
            measure_later(cell, arm.prepared)
        except Exception as error:
            message = in_one_line(error)
            self.progress.say(f"no further metrics of {cell.arm}, seed {cell.seed}: {message}")

    def decide(self) -> None:
        """Judges the study, writes all its files, and reports the verdicts."""
        from transformer_jax.studies.report import judge_and_report

        for name, nbytes in self.workers.peak_bytes.items():
            if name in self.study.arms:  # not a trial of the tuning
                self.study.arms[name]["peak_bytes"] = nbytes
        self.study.record["began"] = True
        self._write_seconds()
        judge_and_report(self.study, self.progress)

    def _write_seconds(self) -> None:
        now = time.monotonic()
        seconds = self.study.record.get("seconds", 0) + now - self.counted_until
        self.study.record["seconds"], self.counted_until = round(seconds), now
        self.study.write()

    def _seal(self) -> None:
        around, _ = surroundings()
        facts = {
            "root": way_to(self.root, self.study.path),
            "members": self.estimate.members,
            "config_path": self.design.path,
            "overrides": dict(self.design.overrides),
            "counted": self.arms[self.design.base].prepared.task.counted,
            "baselines": self.baselines,
            "files": self.files,
            "environment": {**around, "code": code_hash(), "cores": os.cpu_count()},
            "timing": self.estimate.description or self.study.record.get("timing", ""),
            "commands": [*self.study.record.get("commands", []), command_line()],
            "arms": self._facts_of_arms(),
        }
        if not self.study.record.get("began"):
            self.study.record = {}  # nothing was trained, so nothing was seen: seal the study anew
        for line in self.study.seal(self.design, facts, self.seeds):
            self.progress.say(f"exploratory: {line}")

    def _facts_of_arms(self) -> dict[str, dict[str, Any]]:
        """Returns facts by arm, including tuning and memory from earlier launches."""
        facts = {}
        for name, arm in self.arms.items():
            stored = self.study.record.get("arms", {}).get(name, {})
            facts[name] = {
                "hash": arm.hash,
                "changes": as_plain(arm.changes),
                "matched": arm.matched,
                "cost": as_plain(arm.cost),
                "certificate": self.certificates[name],
                **{key: stored[key] for key in ("tuning", "peak_bytes") if key in stored},
            }
        return facts

    def _tune(self, retry: bool) -> None:
        """Tunes all arms with the same trials, and records the chosen values."""

        def run_trials(trials: Mapping[str, Arm], seeds: Sequence[int]) -> dict[str, list]:
            for trial in trials.values():
                trial.find_folder(self.estimate.members)
            cells = [trial.cell(self.root, seed) for seed in seeds for trial in trials.values()]
            self._run_cells(trials, cells, retry)
            means: dict[str, list[dict | None]] = {name: [] for name in trials}
            for cell in cells:
                if (scored := cell.validated()) and scored.get(self.design.metric) is None:
                    self._measure_later(cell, trials[cell.arm])
                means[cell.arm].append(cell.validated())
            return means

        for name, result in tune(self.design, self.builder, self.arms, run_trials).items():
            self.study.arms[name]["tuning"] = as_plain(result)
        self._take_tuned(self.estimate.members)
        self.certificates = self.builder.certificates(self.arms, self._known_certificates())
        self.study.record["arms"] = self._facts_of_arms()
        self.study.write()

    def _run_cells(self, arms: Mapping[str, Arm], cells: list[Cell], retry: bool) -> None:
        waiting = []
        for cell in cells:
            state = cell.state()
            if state == FAILED and not retry:
                self.workers.lost[cell.arm, cell.seed] = cell.reason()
            elif state not in OUTCOMES:
                waiting.append(cell)
        if not waiting:
            return
        self.study.record["began"] = True
        self.study.write()
        if self.cluster is None:
            self.workers.run(arms, waiting, len(cells))
        else:
            where = (self.design, self.study.path, self.root)
            run_as_jobs(self.cluster, self.workers, *where, arms, waiting, len(cells))
        self._write_seconds()
        self.stop.end("interrupted; running cells are saved, and the same command continues")


def baselines_as_text(baselines: Mapping[str, Any]) -> str:
    """Returns the scores of the simple methods, and the gate chosen from them, as text."""
    gate = baselines["gate"]
    line = "gate       none: no simple method is known for such a task, or the study has a target"
    if gate is not None:
        line = (
            f"gate       the base has to be better than {METHODS[gate['method']]}: "
            f"test/{gate['metric']} {gate['score']:.4f} ({gate['reason']}); else no verdict"
        )
    if not baselines["scores"]:
        return line
    return f"{tables.table_text(tables.BASELINE_HEADS, tables.baseline_rows(baselines))}\n{line}"


def resolution(design: Design, count: int) -> str:
    """Returns a line about the effect that `count` seeds can detect, or about the target."""
    if design.target is not None:
        return f"solved at  {design.target:g}: compares runs that reach it, and updates until then"
    contrasts = len(design.primary) or len(design.others)
    effect = detectable(count, FOR_MEANS * level_of_look(count, design.looks) / contrasts)
    return (
        f"resolves   {contrasts} contrast{'s' * (contrasts != 1)} over {count} seeds: with "
        f"80 % power an effect of {effect:.1f} deviations of a paired difference"
    )

"""The training loop, which trains, logs, evaluates and saves one run or several runs together.

A step is a pure function of state and batch, and the batch of a step is a pure function of seed and
step. So a run that is killed and started again ends with the same bits, whatever it logs or saves.
"""

import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax import config_files as configs
from transformer_jax.config_files import fingerprint_of_own, own_modules
from transformer_jax.errors import InvalidInput
from transformer_jax.options import is_user_defined
from transformer_jax.own import changed_code
from transformer_jax.processes import agreed, is_first, whole
from transformer_jax.resolve import problems_of
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.interruption import StopSignal
from transformer_jax.runs.progress import Progress, Silent, in_a_line
from transformer_jax.runs.records import StepLog, mean_loss, row_of_step
from transformer_jax.training.ahead import BatchesAhead, in_one_call, meanwhile
from transformer_jax.training.announcement import announce, kernels_of
from transformer_jax.training.compatibility import (
    own_rows_of_model,
    refuse_hosts_with_other_data,
    refuse_what_is_not_installed,
)
from transformer_jax.training.evaluation import evaluate, score_of
from transformer_jax.training.memory import bytes_refused
from transformer_jax.training.optimizers import evaluated_params, make_schedule
from transformer_jax.training.prepared import Prepared, prepare, seed_of
from transformer_jax.training.program import Program, StepRequest, StepResult
from transformer_jax.training.step import TrainState

if TYPE_CHECKING:
    from transformer_jax.training.extension import Extension
    from transformer_jax.training.run import Run

_SECONDS_PER_CALL = 1.0  # longest that one call of the program may keep signals waiting


def train(
    config: ConfigDict,
    workdir: str | Path,
    progress: Progress | None = None,
    allow: Collection[str] = (),
    across_numerics: bool = False,
    profile: bool = False,
    extension: "Extension | None" = None,
) -> dict[str, float]:
    """Trains the model of a config in a run directory, or resumes the run there.

    Args:
      config: A config from load_config; it is checked again.
      workdir: A new or empty directory, or that of the same run.
      progress: Receiver of reports; if None, they are printed.
      allow: Further modules that may be imported for a run whose weights this run starts from.
      across_numerics: Whether a run that began with different numerics may resume; see provenance.
      profile: Whether to write a trace of some steps to the folder `profile` in `workdir`.
      extension: Changes of options with which an earlier run continues.

    Returns:
      The last row of metrics.jsonl.

    Raises:
      InvalidInput: The config, the data or the directory is not valid; nothing was lost.
      NonFinite: The loss or a gradient is not finite; the run was saved before that step.
      SaveFailed: The last checkpoint could not be written.
      Interrupted: The process received SIGTERM, SIGINT or SIGUSR2; the run was saved.
    """
    configs.report(problems_of(configs.flatten(config)))
    refuse_what_is_not_installed(config)
    progress = (progress or Progress()) if is_first() else Silent()
    shared = RunDirectory(workdir)
    if extension is None:
        shared.refuse_other_config(config)
    if not across_numerics:
        shared.refuse_other_numerics()
    of_process = contextlib.nullcontext(shared)
    are_several = jax.process_count() > 1
    if are_several:
        from transformer_jax.runs.several_processes import directory_of_process

        of_process = directory_of_process(shared, config)
    with (
        contextlib.closing(progress),
        StopSignal(agrees=are_several) as stop,
        of_process as directory,
    ):

        def make() -> Prepared:
            prepared = prepare(config, directory.tokenizer(own_modules(config)), allow)
            refuse_hosts_with_other_data(prepared.task, seed_of(config, "order"))
            if extension is not None:
                extension.write(directory, prepared.task.facts)
            return prepared

        member = Member(config, directory, make, progress, stop)
        train_members([member], stop, trace_to=directory.file("profile") if profile else None)
        if member.error is not None:
            raise member.error
        rows = directory.metrics()
        if not rows:
            raise InvalidInput(
                f"{directory.file('metrics.jsonl')}: missing or empty, although the run is done\n"
                "restore this file; the final scores are in evaluation.json"
            )
        return rows[-1]


def train_members(
    members: Sequence["Member"],
    stop: StopSignal,
    program: Program | None = None,
    trace_to: Path | None = None,
) -> None:
    """Trains runs together, each to its end; a run that fails keeps its `error` and stops no other.

    There are at most `program.width` runs, which differ only in seeds and traced options. If
    `program` is None, that of the first member is used. `trace_to` is a folder for the profiler's
    trace of the second call of the program; the first call is not typical.
    """
    try:
        for member in members:
            with member.faults_kept():
                member.begin()
        for number in itertools.count(1):
            going = [member for member in members if not member.has_ended]
            if not going:
                return
            program = program or Program(going[0].prepared)
            # Members that were resumed at a later stage wait for the others.
            now = program.at(min(member.directory.step for member in going))
            together = [m for m in going if program.at(m.directory.step) is now]
            _take_steps(together, stop, now, trace_to if number == 2 else None)
    except BaseException as error:  # e.g. KeyboardInterrupt
        for member in members:
            if not member.has_ended:
                member.fail(error)
        raise


def _take_steps(
    members: Sequence["Member"], stop: StopSignal, program: Program, trace_to: Path | None
) -> None:
    """Takes the steps that the members request, in one call of the program."""
    requests: dict[Member, StepRequest] = {}
    for member in members:
        with member.faults_kept():
            requests[member] = member.next_request()
    if not requests:
        return
    try:
        _ = program.compiled  # compiled before the thread starts: both read batches
        with contextlib.nullcontext() if trace_to is None else jax.profiler.trace(trace_to):
            with meanwhile(piece for member in requests for piece in member.later_batches()):
                results = program.take([*requests.values()])
                taken = time.monotonic()
            waited = time.monotonic() - taken  # for a batch that was still being made
        stop.agree()
    except Exception as error:
        for member in requests:
            member.fail(error)
        return
    for member, result in zip(requests, results, strict=True):
        with member.faults_kept():
            member.go_on(result, waited)


class Member:
    """A run that is trained alone or together with others: its files, its state, its next steps.

    A member that `has_ended` needs no more steps; if it has an `error`, it ended early.
    """

    def __init__(
        self,
        config: ConfigDict,
        directory: RunDirectory,
        make: Callable[[], Prepared],
        progress: Progress,
        stop: StopSignal,
        cell: Mapping[str, Any] | None = None,
        at_end: Callable[["Run"], None] = lambda run: None,
    ) -> None:
        """Reads and writes nothing yet.

        `make` is called after the directory is locked. For a cell of a study, `cell` has further
        entries for the manifest; at its end, a cell calls `at_end` and writes no sample or picture.
        """
        self.config, self.directory, self.progress, self.stop = config, directory, progress, stop
        self.make, self.cell, self.at_end = make, cell, at_end
        # Only if a run is alone are the measured times its own.
        self.is_alone = (cell or {}).get("members", 1) == 1
        self.has_ended = False
        self.error: BaseException | None = None
        self.state: Any = None
        self.write: Callable[[list[dict]], None] = lambda rows: None
        self.warnings: list[str] = []
        self.seconds_per_step = 0.0
        self._open = contextlib.ExitStack()  # the run's lock and writers
        folder, keep = directory.file("checkpoints"), config.checkpoint.keep
        self.checkpoints = Checkpoints(folder, keep, self._warn)

    @contextlib.contextmanager
    def faults_kept(self) -> Generator[None]:
        """Ends the run and keeps the error if the code in this context fails."""
        try:
            yield
        except BaseException as error:
            self.fail(error)
            if not isinstance(error, Exception):
                raise

    def fail(self, error: BaseException) -> None:
        """Ends the run and records the error in its directory, if the directory is writable."""
        self.error = error
        try:
            self._end(error)
        except Exception as reason:  # e.g. the disk is full
            self.error = reason

    def _end(self, error: BaseException | None = None) -> None:
        self.has_ended, self.state = True, None  # other members may need the memory
        of_error = (None,) * 3 if error is None else (type(error), error, error.__traceback__)
        self._open.__exit__(*of_error)

    def begin(self) -> None:
        """Opens the directory and draws or restores the state; ends a run that is complete."""
        enter, directory = self._open.enter_context, self.directory
        steps = self.config.training.steps
        enter(directory.locked())
        enter(directory.failures_recorded())
        enter(self.checkpoints.settled())
        drawn = self._prepare()
        is_new = drawn is not None
        self.state = self._restored(is_new) or drawn or self._start()
        if directory.step == steps and directory.status() == "done":
            if not directory.has_scores():  # evaluation.json is damaged: score the last step again
                self._add_evaluation(rows := directory.metrics()[-1:], is_last=True)
                directory.cut_metrics(steps - 1)
                directory.append_metrics(rows)
            but = configs.PLACEMENT
            for key in configs.differences(directory.config(), self.config, but):
                self.progress.say(f"note   {key} is not applied, since the run is complete")
            self.progress.say(f"complete ({steps}/{steps}): {directory.path}")
            self._end()
            return
        if directory.step < steps:
            if not is_new:
                announce(self._stage, self.progress, compiles=self.cell is None, is_new=False)
            directory.drop_scores()  # those from its end before it was extended
        directory.write_status("running")
        writers = self.config.logging.writers if is_first() else ()
        if writers:
            from transformer_jax.runs.writers import writing_to

            flat = configs.flatten(self.config)
            self.write = enter(writing_to(writers, directory.path, flat, directory.step))
        if directory.step == steps:
            self._finish()

    def next_request(self) -> StepRequest:
        """Returns the request for the next steps."""
        started = time.monotonic()
        self.num_steps = num_steps = self._affordable_steps()
        batches = self.batches.take(range(self.directory.step, self.directory.step + num_steps))
        stacked = in_one_call(batches, self._stage.capacity)
        self.making_seconds = time.monotonic() - started
        return StepRequest(self.numbers, self.state, stacked, np.int32(num_steps))

    @property
    def _stage(self) -> Prepared:
        return self.prepared.at(self.directory.step)

    def later_batches(self) -> Iterator[Callable[[], None]]:
        """Yields functions to call during this request, which make the next request's batches."""
        first = self.directory.step + self.num_steps
        for step in range(first, min(first + self.num_steps, self.config.training.steps)):
            yield functools.partial(self.batches.make, step)

    def go_on(self, result: StepResult, waited: float = 0.0) -> None:
        """Logs, evaluates and saves after the requested steps, whichever of these are due.

        `waited` is the time in seconds that was spent waiting for a batch.

        Raises:
          NonFinite: The loss or a gradient was not finite; the run was saved before that step.
          Interrupted: A signal was received; the run was saved.
          SaveFailed: The last checkpoint could not be written.
        """
        config, directory = self.config, self.directory
        self.state = result.state
        self.batches.waited += waited / self.num_steps
        rows, finite = self._log(result, waited)
        step = directory.step
        is_last = step == config.training.steps
        if finite and config.hooks.functions and (is_last or step % config.hooks.every == 0):
            self.state, numbers = self._call_hooks(self.state)
            row_of_step(rows, step).update(numbers)
        if finite and (is_last or step % config.evaluation.every == 0):
            self._add_evaluation(rows, is_last)
        directory.append_metrics(rows)
        directory.write_status("running")
        must_save = is_last or not finite or self.stop.signal is not None
        if must_save or step % config.checkpoint.every == 0:
            self._save(must_save)
        self.write(rows)  # to services that may fail, so after the run is saved
        if not finite:
            from transformer_jax.training.diagnosis import non_finite

            batch = self.task.batch(seed_of(config, "order"), step)
            now = self.state  # its weights, not their average
            params = self.prepared.unstacked(evaluated_params((), now.params, now.state))
            raise non_finite(self.score, params, batch, step)
        if must_save and self.checkpoints.unsaved:
            raise self.checkpoints.unsaved
        if is_last:
            self._finish()
        elif must_save:
            directory.write_status("interrupted")
            self.stop.end(f"interrupted at step {step} and saved; the same command resumes the run")

    # ---- starting

    def _prepare(self) -> TrainState | None:
        """Prepares run and directory; returns the state of a new run, or None for a resumed one."""
        config, directory = self.config, self.directory
        self.prepared = prepared = self.make()
        self.task, self.allow = prepared.task, prepared.allow
        self.numbers = prepared.numbers(config)
        self.score = score_of(prepared)
        order = seed_of(config, "order")
        self.batches = batches = BatchesAhead(lambda step: prepared.own_batch(order, step))
        self.log = StepLog(
            config.logging.every,
            config.training.steps,
            make_schedule(config, prepared.allow),
            self.task.counted,
            lambda: (batches.waited, batches.seconds),
        )
        self.progress.details = self.log.details
        # Before the directory is marked as begun, so that a refusal, e.g. of weights or of a step
        # that needs too much memory, leaves it untouched. Cells are compiled together, later.
        initial, drawn = {}, None
        if not directory.has_begun():
            initial, drawn = self._initial_files(), self._start()
            announce(prepared, self.progress, compiles=self.cell is None, is_new=True)
        facts = {
            "seed": config.seed,
            "parameters": prepared.num_parameters,
            # User-defined tasks may return numpy numbers, which JSON cannot hold.
            "sizes": {name: np.asarray(size).tolist() for name, size in self.task.sizes.items()},
            "initial": initial,
            "own_rows": fingerprint_of_own(config),
            "kernels": kernels_of(prepared, jax.devices()[0].platform),
            **(self.cell or {}),
        }
        changed = directory.begin(config, self.task.tokenizer, self.task.facts, facts)
        if changed:
            self._warn(
                f"{' and '.join(changed)} changed since this run began, so its results may differ "
                "in some bits from those of an uninterrupted run; see manifest.json"
            )
        for choice in changed_code(directory.manifest(), facts["own_rows"]):
            self._warn(f"the code of {choice} changed since this run began")
        return drawn

    def _restored(self, is_new: bool) -> TrainState | None:
        """Returns the state of the newest checkpoint, or None if the run starts at step 0."""
        directory, checkpoints = self.directory, self.checkpoints
        checkpoints.tidy()
        restored = checkpoints.restore(self.prepared.template)
        if restored is None:
            if directory.status() == "done":
                raise InvalidInput(
                    f"--workdir={directory.path}: the run is done but its checkpoints are gone; "
                    "choose a different --workdir to train again"
                )
            directory.cut_metrics(0)
            if not is_new:
                directory.refuse_other_start(self._initial_files())
            return None
        directory.refuse_foreign_checkpoint(restored.step, restored.extra)
        directory.step = restored.step
        self.log.pending = [tuple(pair) for pair in restored.extra["pending"]]
        directory.cut_metrics(restored.step)
        if len(self.log.pending) < restored.step and not directory.metrics():
            self._warn("metrics.jsonl is lost: metrics of curves lack earlier updates")
        if len(directory.manifest()["launches"]) == 1:
            self._warn("manifest.json is lost: whether code or data changed is unknown")
        directory.amend_launch(resumed_from=restored.step, warnings=self.warnings)
        self.progress.say(f"resuming from step {restored.step} (checkpoint verified)")
        return self.prepared.stack(restored.state)

    def _initial_files(self) -> dict[str, str]:
        """Returns hashes of the files that training starts from, by option."""
        if not any(self.config.initial.values()):
            return {}
        from transformer_jax.runs.initial_files import fingerprint_of

        return fingerprint_of(self.config.initial)

    def _start(self) -> TrainState:
        """Returns the state at step 0, after user-defined code has been tried with this state."""
        if own_rows_of_model(self.config):
            from transformer_jax.training.leaks import refuse_what_leaks

            refuse_what_leaks(self.prepared)
        state, remarks = self.prepared.start(self.config)
        for remark in remarks:
            self.progress.say(remark)
        self._call_hooks(state)
        if any(map(is_user_defined, self.config.evaluation.metrics)):
            from transformer_jax.training.measuring import try_metrics

            try_metrics(self._run(whole, state), self.task, self.score, self.allow)
        return state

    # ---- going on

    def _affordable_steps(self) -> int:
        """Returns the number of steps for the next call, so that it takes about a second.

        A call ends no later than the next evaluation, checkpoint or hook. The first has one step.
        """
        if not self.seconds_per_step:
            return 1
        config, step = self.config, self.directory.step
        cadences = [config.evaluation.every, config.checkpoint.every]
        cadences += [config.hooks.every] if config.hooks.functions else []
        boundaries = [(step // every + 1) * every for every in cadences]
        later = [start for start in self.prepared.starts if start > step]
        ahead = min(*boundaries, *later, config.training.steps) - step
        affordable = max(1, int(_SECONDS_PER_CALL / self.seconds_per_step))
        return min(ahead, self._stage.capacity, agreed(affordable))

    def _log(self, result: StepResult, waited: float) -> tuple[list[dict[str, float]], bool]:
        """Logs the steps; returns the rows that became due, and whether all steps were finite."""
        losses, norms, applied = (leaf[: self.num_steps] for leaf in result.records)
        per_step = self.making_seconds / self.num_steps
        per_step += (result.seconds + waited) / result.num_steps
        self.seconds_per_step = per_step = max(per_step, 1e-9)
        taken = int(applied.sum())  # the first step that is not finite ends the call
        count = self._stage.count_of_update
        mfu = self._stage.mfu(per_step) if self.is_alone else None
        step, steps = self.directory.step, self.config.training.steps
        rows = self.log.add(step + 1, losses[:taken], norms[:taken], per_step, count, mfu)
        self.directory.step = step = step + taken
        speed = f"{count / per_step:,.0f} {self.task.counted}/s"
        speed += "" if mfu is None else f"  MFU {mfu:.0%}"
        loss = mean_loss(losses[: max(taken, 1)])
        self.progress.step(step, steps, loss, speed, (steps - step) * per_step)
        return rows, taken == self.num_steps

    def _add_evaluation(self, rows: list[dict], is_last: bool) -> None:
        """Adds validation scores, and after the last step test scores, to the row of the step."""
        from transformer_jax.training.measuring import facts_of_metrics, measured

        config, directory, task = self.config, self.directory, self.task
        names = {"validation": "eval"} | ({"test": "test"} if is_last else {})
        row, run, scored = row_of_step(rows, directory.step), self._run(), {}
        for split, prefix in names.items():
            self.progress.note(f"evaluating the {split} split ...")
            size = config.evaluation.batch_size
            scored[split] = evaluate(self.score, run.params, task, split, size)
            if is_last:
                from transformer_jax.training.showcases import demonstration_of

                written = demonstration_of(config.data.task).scores(run, task, split)
                scored[split] = scored[split].with_generated(*written)
            row |= {f"{prefix}/{name}": mean for name, mean in scored[split].means.items()}
        asked = config.evaluation.metrics
        run = self._run(whole) if asked else run  # metrics get all parameters on each host
        options: dict[str, Any] = {}
        if asked and is_last:
            before = [old for old in directory.metrics() if old["step"] < rows[0]["step"]]
            options["curve"] = self.prepared.curve([*before, *rows], self.is_alone)
            options["tell"] = self._warn
        for split, prefix in names.items() if asked else ():
            more = measured(asked, run, task, split, scored[split], self.allow, **options)
            scored[split].means.update(more)
            row |= {f"{prefix}/{name}": value for name, value in more.items()}
        if is_last:
            stored = {split: {**e.means, "protocol": e.protocol} for split, e in scored.items()}
            if asked:
                stored["metrics"] = facts_of_metrics(asked, config.evaluation.benchmark)
            directory.write_json("evaluation.json", stored)
            sequences: dict[str, Any] = {
                f"{split}/{name}": column
                for split, evaluation in scored.items()
                for name, column in evaluation.sequences.items()
            }
            np.savez_compressed(directory.file("sequences.npz"), **sequences)

    def _call_hooks(self, state: TrainState) -> tuple[TrainState, dict[str, float]]:
        """Calls the config's hooks; returns the state after them and the numbers they report."""
        names = self.config.hooks.functions
        if not names:
            return state, {}
        from transformer_jax.training.hooks import call_hooks

        about = self.task, seed_of(self.config, "order"), self.directory.step, self.allow
        seen = self.prepared.unstacked(state)
        new, numbers = call_hooks(lambda state: self._run(whole, state), seen, names, *about)
        return (state if new is seen else self.prepared.stack(new)), numbers

    def _save(self, must: bool) -> None:
        extra = {"pending": list(self.log.pending), "config": configs.plain(self.config)}
        state = self.prepared.unstacked(self.state)
        must |= not self.is_alone  # members of one program wait for each other anyway
        self.checkpoints.try_to_save(self.directory.step, state, extra, must)

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        self.progress.say(text)

    # ---- ending

    def _finish(self) -> None:
        """Ends the run: writes a sample and a picture and prints the scores, or calls `at_end`."""
        directory = self.directory
        if self.cell is not None:
            self.at_end(self._run())
            directory.write_status("done")
            self._end()
            return
        from transformer_jax.runs.pictures import draw_loss_curve
        from transformer_jax.training.measuring import results_of
        from transformer_jax.training.showcases import demonstration_of

        try:
            shown = demonstration_of(self.config.data.task).show(self._run(), self.task)
        except jax.errors.JaxRuntimeError as error:
            if bytes_refused(error) is None:
                raise
            shown = "no sample: the training state leaves too little memory"
        directory.file("samples").mkdir(exist_ok=True)
        sample = directory.write_text(f"samples/step-{directory.step:08d}.txt", shown)
        rows = directory.metrics()
        picture = draw_loss_curve(rows, directory.file("loss.png"))
        directory.write_status("done")
        self.progress.say(
            f"\n{shown}\n\n{results_of(rows[-1], self.task.target)}\n"
            f"run        {directory.path}/ (config.json, metrics.jsonl, evaluation.json, ...)\n"
            f"sample     {sample}\n"
            f"picture    {picture}\ntraining   {in_a_line([row.get('train/loss') for row in rows])}"
        )
        self._end()

    def _run(self, get: Callable | None = None, state: TrainState | None = None) -> "Run":
        """Returns a Run with the parameters of `state` (default: current), after applying `get`."""
        from transformer_jax.training.run import to_write

        state = self.state if state is None else state
        params = evaluated_params(state.opt_state, state.params, state.state)
        params = self.prepared.unstacked(params)
        run = self.prepared.run(get(params) if get else params, self.directory.step, self.config)
        return run if get else to_write(run, self.prepared.sharding)

"""Runs of a base and of a single change to it, paired by seed, for the referee.

Scores are those of the validation split, so that nothing is selected on the test split.
"""

from collections.abc import Collection, Sequence

from transformer_jax.config_files import changed, flatten, refuse_foreign_modules
from transformer_jax.errors import InvalidInput, Stop
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.interruption import StopSignal
from transformer_jax.runs.progress import Progress
from transformer_jax.studies.arms import ArmBuilder, Estimate, incomparable, same_files
from transformer_jax.studies.cells import DONE, ENDED, FAILED, OUTCOMES, UNREADABLE, Cell
from transformer_jax.studies.design import Design, gate_of
from transformer_jax.studies.judging import RunFacts, scored_otherwise, whether_learned
from transformer_jax.studies.referee import CannotTrain, Journal, Try, spelled
from transformer_jax.studies.tables import unmatched
from transformer_jax.studies.workers import Workers

_BASE, _CHANGE = "base", "change"
# Failures that do not depend on the change, such as a full disk or a missing permission.
_OF_THE_MACHINE = ("SaveFailed:", "Stop:", "OSError:", "PermissionError:", UNREADABLE)


class TrainedPairs:
    """Runs of a base and a change, paired by seed; `cost` has differences, `files` digests."""

    def __init__(
        self, journal: Journal, this: Try, progress: Progress, stop: StopSignal, allow: Collection
    ) -> None:
        """Prepares base and change of the try `this`; `allow` has the base's permitted modules.

        Raises:
          InvalidInput: The change has no effect or is scored on different data, the data have
            changed, or the base names code that is not allowed.
        """
        self._where, self._told = journal.path, spelled(this.change)
        self._progress, self._stop = progress, stop
        asked = journal.begun or {}
        config = changed(journal.config(), texts=this.base)
        refuse_foreign_modules(config, allow)
        after = flatten(changed(config, texts=this.change))
        arms = {_BASE: {}, _CHANGE: {key: after[key] for key in this.change}}
        self._design = Design.model_construct(
            metric=asked["metric"], base=_BASE, arms=arms, config=config
        )
        builder = ArmBuilder(self._design)
        with progress.busy("preparing base and change"):
            self._arms = builder.arms()
        for arm in self._arms.values():
            arm.find_folder(1)
        self.files = same_files(self._arms, journal.files, f"--base={journal.path}")
        task = self._arms[_BASE].prepared.task
        if asked["metric"] == "bits_per_byte" and task.scored_bytes(task.batch(0, 0)) is None:
            raise InvalidInput("--metric=bits_per_byte: this data's targets have no byte counts")
        if apart := incomparable(self._arms, _BASE, asked["metric"], "validation"):
            why = f"{'; '.join(*apart.values())}; expected the same data and targets"
            raise InvalidInput(f"--change={self._told}: {why}")
        with progress.busy("checking that the change has an effect"):
            builder.certificates(self._arms, {})
        baselines = builder.baselines(self._arms[_BASE])
        try:
            self._gate = gate_of(asked["gate"], baselines.gate, baselines.scores, "validation")
        except InvalidInput as error:
            message = str(error).partition("gate: by=")[2]
            raise InvalidInput(f"--gate={message}") from error
        costs = {name: arm.cost._asdict() for name, arm in self._arms.items()}
        self.cost: Sequence[str] = [*unmatched(costs, _BASE).values()]

    def missing(self, seeds: Sequence[int]) -> int:
        """Returns the number of pairs, one per seed, in which a run has no outcome yet."""
        pairs = map(self._pair, seeds)
        return sum(any(cell.state() not in OUTCOMES for cell in pair) for pair in pairs)

    def train(self, seeds: Sequence[int]) -> None:
        """Trains the runs without an outcome in the pairs for these seeds.

        Raises:
          CannotTrain: A run with the change diverged or failed.
          Stop: A run failed for a reason other than the change, e.g. a full disk.
          Interrupted: The process received a signal; cells in progress were saved.
          InvalidInput: Base and change are scored differently, or the base does not learn.
        """
        pairs = [self._pair(seed) for seed in seeds]
        if 0 in seeds:  # the screening: nothing else is trained on a base that has not learned
            self._run([base for base, _ in pairs])
            if self._gate is not None:
                metric = self._gate["metric"]
                values = [base.means("validation")[metric] for base, _ in pairs]
                learned = whether_learned(self._gate, values)
                if not learned["passed"]:
                    raise InvalidInput(
                        f"--base={self._where}: the base has not learned: {learned['told']}\n"
                        "train it longer, or begin in a different --base with a different --gate"
                    )
        self._run([cell for pair in pairs for cell in pair])
        base, change = (RunFacts.of(RunDirectory(cell.path)) for cell in pairs[0])
        if apart := scored_otherwise(base, change, self._design.metric, (), "validation"):
            raise InvalidInput(f"--change={self._told}: {apart[0]}")

    def _run(self, cells: Sequence[Cell]) -> None:
        waiting = [cell for cell in cells if cell.state() not in OUTCOMES]
        if waiting:
            workers = Workers(Estimate(1), self._progress, self._stop)
            workers.run(self._arms, waiting, len(cells))
            self._stop.end("interrupted; running cells are saved, and the same change continues")
        for cell in cells:
            state, reason = cell.state(), cell.reason()
            message = f"seed {cell.seed} {state} {reason}".rstrip()
            failed_here = state == FAILED and reason.startswith(_OF_THE_MACHINE)
            if state not in ENDED or failed_here:
                raise Stop(f"--change={self._told}: {message}\nthe same command tries it again")
            if state != DONE:
                if cell.arm == _BASE:
                    raise InvalidInput(f"--base={self._where}: the base does not train: {message}")
                raise CannotTrain(message)

    def differences(self, seeds: Sequence[int]) -> list[float]:
        """Returns the score difference of each finished pair; positive favours the change."""
        sign, metric = 1.0 if self._design.larger_is_better else -1.0, self._design.metric
        return [
            sign * (change.means("validation")[metric] - base.means("validation")[metric])
            for base, change in map(self._pair, seeds)
            if base.state() == change.state() == DONE
        ]

    def _pair(self, seed: int) -> list[Cell]:
        return [self._arms[name].cell(self._where, seed) for name in (_BASE, _CHANGE)]

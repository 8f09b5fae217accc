"""Arms made ready, and what a study will take before it takes it."""

import dataclasses
import hashlib
import itertools
import json
import statistics as plain_statistics
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config_files import flatten, own_modules, resolved
from transformer_jax.data.baselines import Baselines, baselines_of
from transformer_jax.data.tasks import Task
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.provenance import surroundings
from transformer_jax.studies.asking.cells import Cell, cell_hash, cell_path
from transformer_jax.studies.asking.design import Design
from transformer_jax.studies.running.costs import Cost, cost_of, explicit, matched_value, step_of
from transformer_jax.studies.running.manipulation import (
    ManipulationCheck,
    check_manipulation,
    probe,
    refuse_looking_ahead,
    refuse_without_effect,
)
from transformer_jax.training.build import make_task
from transformer_jax.training.evaluation import score_of
from transformer_jax.training.prepared import Prepared, prepare
from transformer_jax.training.program import Program, StepRequest
from transformer_jax.training.warm_start import fingerprint_of

_MEMBERS = 8  # of a program at a time, on a GPU or TPU
_ROWS = 64  # of an evaluated batch
_BASELINES: dict[tuple[str, int], Baselines] = {}  # by data and batches


@dataclasses.dataclass
class Arm:
    """An arm ready to be trained.

    Attributes:
      name: of the arm, or of a trial of its tuning.
      changes: of the base, with what was matched and tuned.
      config: with seed 0.
      prepared: data, model and optimizer.
      cost: what it uses.
      data: digest of its task.
      hash: of its cells' folder.
      matched: the field that was solved for, and its value.
    """

    name: str
    changes: dict[str, Any]
    config: ConfigDict
    prepared: Prepared
    cost: Cost
    data: str
    hash: str = ""
    matched: dict[str, int] = dataclasses.field(default_factory=dict)

    def cell(self, root: Path, seed: int) -> Cell:
        """Its run of a seed, below what holds `cells`."""
        return Cell(self.name, seed, cell_path(root, self.hash, seed))

    def find_folder(self, members: int) -> None:
        """Gives the arm the hash that names its folder, for so many members at a time."""
        self.hash, _ = cell_hash(
            self.config,
            self.data,
            members,
            surroundings()[0],
            fingerprint_of(self.config.initial),
        )


class ArmBuilder:
    """Makes arms of a design; data that several arms read is read once."""

    def __init__(
        self, design: Design, solved: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        """Reads nothing yet.

        Args:
          design: of the study.
          solved: arm -> field -> value, of an earlier launch; an arm never changes between two.
        """
        self.design, self._solved = design, solved or {}
        self._tasks: dict[str, tuple[Task, str]] = {}

    def prepared(self, config: ConfigDict) -> Prepared:
        """Data, model and optimizer of a config."""
        return prepare(config, task=self._data(config)[0])

    def _data(self, config: ConfigDict) -> tuple[Task, str]:
        """A config's task and its digest."""
        flat = flatten(config)
        relevant = ("data.", "training.batch_size", "evaluation.stride")
        key = json.dumps({k: v for k, v in flat.items() if k.startswith(relevant)}, default=str)
        if key not in self._tasks:
            task = make_task(config, allow=own_modules(config))
            self._tasks[key] = task, digest_of(task)
        return self._tasks[key]

    def _hash(self, config: ConfigDict) -> str:
        """The hash of a config's cells, were they computed alone."""
        initial = fingerprint_of(config.initial)
        return cell_hash(config, self._data(config)[1], 1, surroundings()[0], initial)[0]

    def make(self, name: str, arm: str, more: Mapping[str, Any] | None = None) -> Arm:
        """Makes an arm, or a trial of its tuning that changes `more`."""
        more = dict(more or {})
        config = self.design.config_of(arm, changes=more)
        prepared, (_, digest) = self.prepared(config), self._data(config)
        changes = {**self.design.arms[arm], **more}
        return Arm(name, changes, config, prepared, cost_of(prepared), digest)

    def arms(self) -> dict[str, Arm]:
        """All arms of the design, made equal where it says so."""
        base = self.make(self.design.base, self.design.base)
        made = {self.design.base: base}
        for name in self.design.others:
            made[name] = self._matched(name, base) if self.design.match else self.make(name, name)
        return {name: made[name] for name in self.design.arms}

    def _matched(self, name: str, base: Arm) -> Arm:
        assert self.design.match is not None
        if name in self._solved:
            arm = self.make(name, name, self._solved[name])
            arm.matched = dict(self._solved[name])
            return arm
        what, fields = self.design.match
        for field in fields:
            if field in self.design.arms[name]:
                raise InvalidInput(f"arm {name!r} sets {field}, which is solved for: match={what}")

        def measured(prepared: Prepared) -> float:
            if what == "time":
                return seconds_per_step(prepared)
            cost = cost_of(prepared)
            return cost.parameters if what == "params" else cost.flops

        target, solved = measured(base.prepared), {}
        for field in fields:

            def cost_at(value: int, field: str = field) -> float:
                changes = {**solved, field: value}
                return measured(self.prepared(self.design.config_of(name, changes=changes)))

            config = self.design.config_of(name, changes=solved)
            start, step = explicit(field, config), step_of(field, config)
            try:
                solved[field], _ = matched_value(cost_at, target, start, step)
            except ValueError as error:
                raise InvalidInput(f"arm {name!r}: match={what} by {field}: {error}") from error
        arm = self.make(name, name, solved)
        arm.matched = dict(solved)
        return arm

    @staticmethod
    def baselines(arm: Arm) -> Baselines:
        """What simple methods reach on an arm's data, found once in a process."""
        key = arm.data, arm.config.training.steps
        if key not in _BASELINES:
            _BASELINES[key] = baselines_of(arm.prepared.task, arm.config.training.steps)
        return _BASELINES[key]

    def certificates(
        self, arms: Mapping[str, Arm], before: Mapping[str, Any]
    ) -> dict[str, ManipulationCheck | dict]:
        """Looks whether each arm's change took; refuses those whose did not.

        Args:
          arms: name -> arm.
          before: hash -> certificate of an earlier launch.
        """
        base, certificates = arms[self.design.base], {}
        base_probe, base_values = probe(base.prepared), resolved(base.config)
        for name, arm in arms.items():
            if name != self.design.base:
                own = self.design.arms[name]  # without what was matched and tuned
                found = {k: v for k, v in arm.changes.items() if k not in own}

                def without(key: str, own: Mapping = own, found: Mapping = found) -> str:
                    left = {k: v for k, v in own.items() if k != key}
                    back = {key: base_values[key]} if key in base_values else {}
                    design = dataclasses.replace(self.design, arms={"left": {**left, **back}})
                    return self._hash(design.config_of("left", found))

                # What an arm says again as the base has it is no change.
                changes = {k: v for k, v in own.items() if base_values.get(k) != v}
                hashes = self._hash(arm.config), self._hash(base.config)
                refuse_without_effect(name, changes, *hashes, without)
            if arm.hash in before:
                certificates[name] = before[arm.hash]
                continue
            its = base_probe if name == self.design.base else probe(arm.prepared)
            certificates[name] = check_manipulation(its, base_probe)
            refuse_looking_ahead(name, certificates[name])
        return certificates


def digest_of(task: Task) -> str:
    """Returns a hash of a task's data: its evaluated splits, and the batches of some steps."""
    digest = hashlib.sha256()
    facts = {key: value for key, value in task.facts.items() if key != "source"}
    digest.update(json.dumps([facts, task.protocol], sort_keys=True, default=str).encode())
    batches = [task.batch(seed, step) for seed in (0, 1) for step in (0, 1, 10, 1000)]
    evaluated = (task.evaluation_batches(split, _ROWS) for split in ("validation", "test"))
    for batch in itertools.chain(*evaluated, batches):
        for path, leaf in jax.tree.leaves_with_path(batch):
            array = np.ascontiguousarray(leaf)
            digest.update(f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}".encode())
            digest.update(array.tobytes())
    return digest.hexdigest()


# ---------------------------------------------------------------- how long, and how many at a time


def seconds_per_step(prepared: Prepared) -> float:
    """Returns the median time of a training step of a compiled program."""
    return measure(Program(prepared))


def measure(program: Program) -> float:
    """Returns the seconds of a step of one member: the median over some calls of equal members."""
    prepared = program.prepared
    state, batches = prepared.draw(np.uint32(0)), prepared.stacked_batches(0, 0, 1)
    request = StepRequest(prepared.numbers(), state, batches, np.int32(1))
    requests = [request._replace(state=jax.tree.map(jnp.copy, state)) for _ in range(program.width)]
    steps, times = 1, []
    for _ in range(7):
        results = program.take(requests)
        times.append(results[0].seconds / steps / program.width)
        if results[0].seconds > 0.5:
            break
        steps = min(prepared.capacity, max(1, int(0.15 / (times[-1] * program.width))))
        requests = [
            request._replace(state=result.state, num_steps=np.int32(steps)) for result in results
        ]
    return plain_statistics.median(times[1:] or times)


@dataclasses.dataclass
class Estimate:
    """How many members go at a time, and what timing some steps says.

    Attributes:
      members: of a program at a time; 1: one after another.
      seconds: of one cell, by arm, training and evaluation.
      told: what was timed, in words.
    """

    members: int
    seconds: dict[str, float]
    told: str

    def seconds_of(self, arm: str) -> float:
        """Of one cell of an arm; a trial of a tuning is as long as the usual cell."""
        usual = max(self.seconds.values(), default=0.0)
        return self.seconds.get(arm, usual)


def members_of(arms: Iterable[Arm], asked: int | None) -> int:
    """Returns how many members of a program are trained at a time.

    On a CPU, and where runs are over several devices, one after another; on a GPU or TPU eight.

    Args:
      arms: of the study.
      asked: a number in the place of that.
    Raises:
      InvalidInput: runs over several devices go one after another.
    """
    if asked is not None and asked < 1:
        raise InvalidInput(f"--members={asked}: expected an integer >= 1")
    are_on_mesh = any(arm.prepared.sharding is not None for arm in arms)
    if are_on_mesh and asked not in (None, 1):
        raise InvalidInput(
            f"--members={asked}: runs over several devices (mesh) go one after another; expected 1"
        )
    if asked is not None:
        return asked
    return 1 if are_on_mesh or jax.devices()[0].platform == "cpu" else _MEMBERS


def calibrate(arms: Mapping[str, Arm], base: str, members: int) -> Estimate:
    """Times some steps of the base; other arms take as long as their operations say.

    Args:
      arms: name -> arm.
      base: name of the base.
      members: that go at a time.
    """
    first = arms[base]
    seconds = measure(Program(first.prepared, members))
    cell = first.config.training.steps * seconds + _evaluation_seconds(first.prepared)
    told = f"{seconds * 1e3:.2f} ms a step"
    return Estimate(
        members, {name: cell * _work(arm) / _work(first) for name, arm in arms.items()}, told
    )


def nothing_to_run(arms: Iterable[str], members: int = 1) -> Estimate:
    """The estimate of a study whose cells are all there."""
    return Estimate(members, dict.fromkeys(arms, 0.0), "")


def _work(arm: Arm) -> float:
    return max(arm.cost.flops, 1.0) * arm.cost.counted


def _evaluation_seconds(prepared: Prepared) -> float:
    """Of all evaluations of a cell: one batch, timed, times how many there are."""
    config, score = prepared.config, score_of(prepared)
    params = prepared.draw(np.uint32(0)).params
    size = config.evaluation.batch_size
    counts = {}
    for split in ("validation", "test"):
        batches = iter(prepared.task.evaluation_batches(split, size))
        batch = next(batches)
        counts[split] = 1 + sum(1 for _ in batches)  # one at a time: a split may be large
    jax.block_until_ready(score(params, batch))
    started = time.monotonic()
    jax.block_until_ready(score(params, batch))
    one = time.monotonic() - started
    times = -(-config.training.steps // config.evaluation.every)
    return one * (times * counts["validation"] + counts["test"])

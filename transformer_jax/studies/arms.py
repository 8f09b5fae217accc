"""Arms ready to train: their data, models and costs, and checks of their changes."""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import statistics as plain_statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config_files import flatten, own_modules, resolved
from transformer_jax.data.baselines import Baselines, baselines_of
from transformer_jax.data.tasks import Task
from transformer_jax.errors import InvalidInput
from transformer_jax.paths import by_path
from transformer_jax.runs.initial_files import fingerprint_of
from transformer_jax.runs.provenance import surroundings
from transformer_jax.sites import values_by_site
from transformer_jax.studies.cells import Cell, cell_hash, cell_path
from transformer_jax.studies.design import Design
from transformer_jax.studies.tables import spell_share
from transformer_jax.training.build import make_task
from transformer_jax.training.evaluation import score_of
from transformer_jax.training.losses import safe_mean
from transformer_jax.training.objectives import score_batch
from transformer_jax.training.prepared import Prepared, prepare, seeds_of
from transformer_jax.training.program import Program, StepRequest

# ---------------------------------------------------------------- costs

_EMBEDDINGS = {"token_embedding", "positions", "type_embedding"}  # names in a parameter's path


class Cost(NamedTuple):
    """The size of an arm and what its training takes.

    Attributes:
      parameters: Number of parameters.
      without_embeddings: Number of parameters outside token and position tables.
      flops: FLOPs of training on one token (or example), in matrix products alone.
      updates: Number of updates.
      counted: Number of tokens (or examples) in training.
    """

    parameters: int
    without_embeddings: int
    flops: float
    updates: int
    counted: int


def cost_of(prepared: Prepared) -> Cost:
    """Returns the cost of an arm; nothing is compiled or drawn."""
    leaves = by_path(prepared.template.params).items()
    sizes = {path: math.prod(leaf.shape) for path, leaf in leaves}
    inside = sum(n for path, n in sizes.items() if not _EMBEDDINGS.intersection(path.split("/")))
    updates, count = prepared.config.training.steps, prepared.count_of_update
    flops = prepared.operations_of_update / count
    return Cost(sum(sizes.values()), inside, flops, updates, updates * count)


def scored_on_other_data(tasks: Mapping[str, Task], base: str) -> list[str]:
    """Returns the arms that are scored on different examples from the base's."""
    hashes = {name: task.facts.get("sha256") for name, task in tasks.items()}
    return [name for name, sha256 in hashes.items() if sha256 != hashes[base]]


def unmatched(costs: Mapping[str, Cost], base: str) -> list[str]:
    """Returns the differences in size from the base of more than 2 %, one line per arm."""
    lines = []
    for name, cost in costs.items():
        apart = []
        for what in ("parameters", "flops", "counted", "updates"):
            arm_cost, base_cost = getattr(cost, what), getattr(costs[base], what)
            if share := spell_share(arm_cost, base_cost):
                apart.append(f"{what} {share}")
        if apart:
            lines.append(f"{name}: {', '.join(apart)}")
    return lines


# ---------------------------------------------------------------- making arms equal


def matched_value(
    measure: Callable[[int], float], target: float, start: int, step: int = 1
) -> tuple[int, float]:
    """Returns the multiple of `step` at which a growing measure is nearest to `target`, with it.

    Raises:
      ValueError: The measure does not grow.
    """
    at = functools.cache(lambda units: measure(units * step))
    low, high = 1, max(1, start // step)
    while at(high) < target:
        if at(2 * high) <= at(high):
            raise ValueError("it does not grow with this field")
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) < target else (low, middle)
    best = min((low, high), key=lambda units: abs(at(units) - target))
    return best * step, at(best)


def _start_and_step(field: str, config: ConfigDict) -> tuple[int, int]:
    """Returns the start of the search for a field's value, and its divisor."""
    value, model = flatten(config)[field], config.model
    start = 4 * model.width if value is None else value  # mlp_dim's default
    # Rotated heads need pairs of features.
    heads = model.num_heads * (2 if model.position == "rotary" else 1)
    return start, heads if field == "model.width" else 1


# ---------------------------------------------------------------- whether the change took


class ManipulationCheck(NamedTuple):
    """Differences of an arm from the baseline before training; seed 0, first batch.

    Attributes:
      only_here: Parameters that the baseline lacks, or has with another shape.
      only_base: Parameters that only the baseline has.
      paired: Fraction of the arm's parameters whose initial values equal the baseline's.
      logits: Root mean square of the difference of logits, over that of the baseline's.
      loss: The arm's minus the baseline's loss, in nats per target.
      gradient: Norm of the difference of gradients over the baseline's, for shared parameters.
      input_rms: Root mean square of the input of the first block.
      sees_ahead: Largest change of earlier logits if the last token changes, or None for a model
        that may look ahead or reads no tokens.
    """

    only_here: tuple[str, ...]
    only_base: tuple[str, ...]
    paired: float
    logits: float
    loss: float
    gradient: float
    input_rms: float
    sees_ahead: float | None


class Probe(NamedTuple):
    """Values of one arm before training, by parameter path or for the first batch."""

    params: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    logits: np.ndarray
    loss: float
    input_rms: float
    sees_ahead: float | None


def probe(prepared: Prepared) -> Probe:
    """Starts an arm from seed 0, or from its initial weights, and computes its first batch."""
    params = prepared.start(prepared.config)[0].params
    batch, model = prepared.task.batch(seeds_of(prepared.config).order, 0), prepared.model
    changed = _last_token_changed(prepared, batch)
    loss, gradients, logits, entering, ahead = _look(model)(params, batch, changed)
    return Probe(
        params=by_path(jax.device_get(params)),
        gradients=by_path(jax.device_get(gradients)),
        logits=np.asarray(logits, np.float64),
        loss=float(loss),
        input_rms=float(entering),
        sees_ahead=None if changed is None else float(ahead),
    )


@functools.lru_cache(maxsize=32)
def _look(model: Any) -> Callable:
    """Returns a program that computes a model's probe; arms with equal models share it.

    On a CPU it is compiled with little optimisation, which is faster for a single run.
    """

    def look(params: Any, batch: Any, changed: Any) -> tuple:
        def mean_loss(params: Any) -> jax.Array:
            sums, _ = score_batch(model, params, batch)
            return safe_mean(sums.loss.sum(), sums.weight.sum())

        loss, gradients = jax.value_and_grad(mean_loss)(params)
        # One body for both: two copies of it are fused in two ways, and round in two.
        both = [batch["inputs"]] + ([] if changed is None else [changed])
        stacked = jax.tree.map(lambda *values: jnp.stack(values), *both)
        logits, entering = jax.lax.map(lambda inputs: _with_input(model, params, inputs), stacked)
        ahead = jnp.nan
        if changed is not None:
            ahead = jnp.abs(logits[1] - logits[0])[..., :-1, :].max()
        return loss, gradients, logits[0], entering[0], ahead

    quickly = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    return jax.jit(look, compiler_options=quickly)


def check_manipulation(arm: Probe, base: Probe) -> ManipulationCheck:
    """Compares an arm with the base."""
    shared = [
        path
        for path, value in arm.params.items()
        if path in base.params and base.params[path].shape == value.shape
    ]
    equal = [path for path in shared if np.array_equal(arm.params[path], base.params[path])]
    gradient = math.sqrt(sum(((arm.gradients[p] - base.gradients[p]) ** 2).sum() for p in shared))
    size = math.sqrt(sum((base.gradients[p] ** 2).sum() for p in shared))
    comparable = arm.logits.shape == base.logits.shape
    logits = _rms(arm.logits - base.logits) / _rms(base.logits) if comparable else math.nan
    return ManipulationCheck(
        only_here=tuple(path for path in arm.params if path not in shared),
        only_base=tuple(path for path in base.params if path not in shared),
        paired=sum(arm.params[p].size for p in equal) / sum(v.size for v in arm.params.values()),
        logits=float(logits),
        loss=arm.loss - base.loss,
        gradient=gradient / size if size else math.nan,
        input_rms=arm.input_rms,
        sees_ahead=arm.sees_ahead,
    )


def refuse_without_effect(
    name: str, changes: Mapping[str, Any], arm: str, base: str, without: Callable[[str], str]
) -> None:
    """Raises InvalidInput if an arm, or one of its changes, changes nothing that is used.

    Args:
      name: Name of the arm.
      changes: The arm's changes of the baseline.
      arm: Hash of the arm's cells.
      base: Hash of the baseline's cells.
      without: Changed key -> hash of the arm's cells without that change.
    """
    shown = ", ".join(f"{key}={value}" for key, value in changes.items())
    if arm == base:
        raise InvalidInput(
            f"arm {name!r} changes nothing ({shown}): no chosen component reads it, or the base "
            "has it already\nremove it, or change what the base reads"
        )
    for key in changes if len(changes) > 1 else ():
        try:
            is_read = without(key) != arm
        except InvalidInput:  # the other changes need it
            continue
        if not is_read:
            raise InvalidInput(
                f"arm {name!r}: {key}: without effect in this arm\n"
                "remove it from the arm, so that nobody believes it was tested"
            )


def refuse_looking_ahead(name: str, certificate: ManipulationCheck) -> None:
    """Raises InvalidInput if earlier logits depend on the last token, or are not finite."""
    ahead = certificate.sees_ahead
    if ahead is not None and math.isnan(ahead):
        raise InvalidInput(f"arm {name!r}: the logits are not finite before any training")
    if ahead:
        raise InvalidInput(
            f"arm {name!r}: earlier logits change by {ahead:g} with the last token: the model "
            "looks ahead"
        )


def _last_token_changed(prepared: Prepared, batch: Any) -> dict | None:
    """Returns the inputs with another last token, if the model must not see it earlier."""
    if prepared.config.data.task != "language_modelling":
        return None
    tokens = np.array(batch["inputs"]["tokens"])
    tokens[..., -1] = (tokens[..., -1] + 1) % prepared.task.sizes["vocab_size"]
    return {**batch["inputs"], "tokens": tokens}


def _with_input(model: Any, params: Any, inputs: dict) -> tuple[jax.Array, jax.Array]:
    """Returns the logits, and the root mean square of the first block's input."""
    logits, state = model.apply({"params": params}, **inputs, mutable=["intermediates"])
    values = values_by_site(state.get("intermediates", {}))
    entering = values.get("embedded", values.get("encoder.embedded"))
    if entering is None:  # an architecture of the user's, without sites
        return logits, jnp.float32(jnp.nan)
    return logits, jnp.sqrt(jnp.square(entering.astype(jnp.float32)).mean())


def _rms(array: np.ndarray) -> float:
    return float(np.sqrt(np.square(array).mean()))


# ---------------------------------------------------------------- arms

_MEMBERS = 8  # of a program at a time, on a GPU or TPU
_ROWS = 64  # of an evaluated batch
_BASELINES: dict[tuple[str, int], Baselines] = {}  # by data and batches


@dataclasses.dataclass
class Arm:
    """An arm that is ready to be trained.

    Attributes:
      name: Name of the arm, or of a trial of its tuning.
      changes: Changes to the baseline, including matched and tuned values.
      config: Config with seed 0.
      prepared: Data, model and optimizer.
      cost: Size and cost of training.
      data: Digest of the task's data.
      hash: Name of the folder of its cells.
      matched: Option that was solved for, with its value.
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
        """Returns its run of a seed, below the folder that contains `cells`."""
        return Cell(self.name, seed, cell_path(root, self.hash, seed))

    def find_folder(self, members: int) -> None:
        """Sets the hash that names the folder of its cells, for a number of members."""
        initial = fingerprint_of(self.config.initial)
        self.hash, _ = cell_hash(self.config, self.data, members, surroundings()[0], initial)


class ArmBuilder:
    """Builds the arms of a design; data that arms share is read once."""

    def __init__(
        self, design: Design, solved: Mapping[str, Mapping[str, int]] | None = None
    ) -> None:
        """Reads nothing yet; `solved` has options that an earlier launch solved for, by arm."""
        self.design, self._solved = design, solved or {}
        self._tasks: dict[str, tuple[Task, str]] = {}

    def prepared(self, config: ConfigDict) -> Prepared:
        """Returns data, model and optimizer of a config."""
        return prepare(config, task=self._data(config)[0])

    def _data(self, config: ConfigDict) -> tuple[Task, str]:
        """Returns a config's task and its digest."""
        flat = flatten(config)
        relevant = ("data.", "training.batch_size", "evaluation.stride")
        key = json.dumps({k: v for k, v in flat.items() if k.startswith(relevant)}, default=str)
        if key not in self._tasks:
            task = make_task(config, allow=own_modules(config))
            self._tasks[key] = task, digest_of(task)
        return self._tasks[key]

    def _hash(self, config: ConfigDict) -> str:
        """Returns the hash of a config's cells if they are trained alone."""
        initial = fingerprint_of(config.initial)
        return cell_hash(config, self._data(config)[1], 1, surroundings()[0], initial)[0]

    def make(self, name: str, arm: str, more: Mapping[str, Any] | None = None) -> Arm:
        """Builds an arm, or a trial of its tuning with the changes `more`."""
        more = dict(more or {})
        config = self.design.config_of(arm, changes=more)
        prepared, (_, digest) = self.prepared(config), self._data(config)
        changes = {**self.design.arms[arm], **more}
        return Arm(name, changes, config, prepared, cost_of(prepared), digest)

    def arms(self) -> dict[str, Arm]:
        """Returns all arms of the design, matched if it says so."""
        base = self.make(self.design.base, self.design.base)
        made = {self.design.base: base}
        for name in self.design.others:
            made[name] = self._matched(name, base) if self.design.match else self.make(name, name)
        return {name: made[name] for name in self.design.arms}

    def _matched(self, name: str, base: Arm) -> Arm:
        assert self.design.match is not None
        what, field = self.design.match
        if field in self.design.arms[name]:
            raise InvalidInput(f"arm {name!r} sets {field}, which is solved for: match={what}")
        solved = self._solved.get(name)
        if solved is None:

            def measured(prepared: Prepared) -> float:
                cost = cost_of(prepared)
                return cost.parameters if what == "params" else cost.flops

            def at(value: int) -> float:
                return measured(self.prepared(self.design.config_of(name, {field: value})))

            start, step = _start_and_step(field, self.design.config_of(name))
            try:
                solved = {field: matched_value(at, measured(base.prepared), start, step)[0]}
            except ValueError as error:
                raise InvalidInput(f"arm {name!r}: match={what} by {field}: {error}") from error
        arm = self.make(name, name, solved)
        arm.matched = dict(solved)
        return arm

    @staticmethod
    def baselines(arm: Arm) -> Baselines:
        """Returns the scores of simple methods on an arm's data, computed once per process."""
        key = arm.data, arm.config.training.steps
        if key not in _BASELINES:
            _BASELINES[key] = baselines_of(arm.prepared.task, arm.config.training.steps)
        return _BASELINES[key]

    def certificates(
        self, arms: Mapping[str, Arm], before: Mapping[str, Any]
    ) -> dict[str, ManipulationCheck | dict]:
        """Checks that each arm's change took effect; `before` has earlier results, by hash."""
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
            arm_probe = base_probe if name == self.design.base else probe(arm.prepared)
            certificates[name] = check_manipulation(arm_probe, base_probe)
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


def measure(program: Program) -> float:
    """Returns the seconds of a step of one member, the median over some calls."""
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
    """The number of members that a program trains at a time, and the duration of cells.

    Attributes:
      members: Number of members; 1 is one after another.
      seconds: Arm -> seconds of one cell, for training and evaluation.
      description: Timed programs, in words.
    """

    members: int
    seconds: dict[str, float]
    description: str

    def seconds_of(self, arm: str) -> float:
        """Returns the seconds of one cell of an arm; a trial takes as long as a usual cell."""
        usual = max(self.seconds.values(), default=0.0)
        return self.seconds.get(arm, usual)


def members_of(arms: Iterable[Arm], asked: int | None) -> int:
    """Returns the number of members that a program trains at a time: `asked`, if given.

    On a CPU, and if a run uses several devices, one after another; on a GPU or TPU,
    eight at a time.

    Raises:
      InvalidInput: Runs on several devices cannot be trained together.
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
    """Times some steps of the baseline and scales the result to other arms by their FLOPs."""
    first = arms[base]
    seconds = measure(Program(first.prepared, members))
    cell = first.config.training.steps * seconds + _evaluation_seconds(first.prepared)
    work = {name: max(arm.cost.flops, 1.0) * arm.cost.counted for name, arm in arms.items()}
    scaled = {name: cell * work[name] / work[base] for name in arms}
    return Estimate(members, scaled, f"{seconds * 1e3:.2f} ms a step")


def nothing_to_run(arms: Iterable[str], members: int = 1) -> Estimate:
    """Returns the estimate of a study without missing cells."""
    return Estimate(members, dict.fromkeys(arms, 0.0), "")


def _evaluation_seconds(prepared: Prepared) -> float:
    """Returns the seconds of all evaluations of a cell, from one timed batch."""
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

"""Arms prepared for training: data, models, costs, and checks that their changes take effect."""

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import statistics
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
from transformer_jax.metrics import METRICS
from transformer_jax.paths import by_path, variables_of
from transformer_jax.resolve import stated
from transformer_jax.runs.files import as_plain
from transformer_jax.runs.initial_files import fingerprint_of
from transformer_jax.runs.provenance import surroundings
from transformer_jax.sites import values_by_site
from transformer_jax.studies.cells import Cell, cell_hash, cell_path
from transformer_jax.studies.design import Design, seal_of
from transformer_jax.studies.judging import RunFacts, scored_otherwise
from transformer_jax.training.benchmarks import chance_of
from transformer_jax.training.build import make_task
from transformer_jax.training.evaluation import score_of
from transformer_jax.training.objectives import safe_mean, score_batch
from transformer_jax.training.optimizers import evaluated_params
from transformer_jax.training.prepared import Prepared, prepare, seed_of
from transformer_jax.training.program import Program, StepRequest

_EMBEDDINGS = {"token_embedding", "positions", "type_embedding"}  # names in a parameter's path


class Cost(NamedTuple):
    """The number of parameters of an arm, and the cost of training it.

    Attributes:
      without_embeddings: Number of parameters outside the token, position and type embeddings.
      flops: FLOPs per training token (or example), counting only matrix products.
      updates: Number of parameter updates.
      counted: Number of training tokens (or examples).
    """

    parameters: int
    without_embeddings: int
    flops: float
    updates: int
    counted: int


def cost_of(prepared: Prepared) -> Cost:
    """Returns the cost of an arm without compiling its program or drawing its parameters."""
    params = by_path(variables_of(prepared.weights)["params"])
    sizes = {path: leaf.size for path, leaf in params.items()}
    inside = sum(n for path, n in sizes.items() if not _EMBEDDINGS.intersection(path.split("/")))
    updates = prepared.config.training.steps
    count, operations = prepared.spent(updates)
    return Cost(sum(sizes.values()), inside, operations / count, updates, count)


def counts_of(task: Task, split: str, batch_size: int) -> dict[str, int]:
    """Returns the numbers of a split's examples, targets and bytes, as `evaluate` counts them."""
    counts = {"examples": 0, "targets": 0}
    for batch in task.evaluation_batches(split, batch_size):
        weights = np.asarray(batch["weights"], np.float64)
        weights = weights.reshape(len(weights), -1).sum(-1)
        counts["examples"] += int((weights > 0).sum())
        counts["targets"] += round(weights.sum())
        if (num_bytes := task.scored_bytes(batch)) is not None:
            counts["bytes"] = counts.get("bytes", 0) + int(num_bytes.sum())
    return counts


def incomparable(
    arms: Mapping[str, "Arm"], base: str, metric: str, split: str = "test"
) -> dict[str, list[str]]:
    """Returns reasons why arms' scores will not be comparable with those of the arm `base`."""
    protocols, facts = {}, {}
    for name, arm in arms.items():
        task = arm.prepared.task
        protocol = protocols.setdefault(id(task), {"protocol": counts_of(task, split, _ROWS)})
        manifest = {"data": dict(task.facts)}
        facts[name] = RunFacts(manifest, flatten(arm.config), {split: protocol})
    changed = {key for arm in arms.values() for key in arm.changes}
    apart = {
        name: scored_otherwise(of_arm, facts[base], metric, changed, split)
        for name, of_arm in facts.items()
    }
    return {name: reasons for name, reasons in apart.items() if reasons}


def matched_value(
    measure: Callable[[int], float], target: float, start: int, step: int = 1
) -> tuple[int, float]:
    """Returns the multiple of `step` whose measure is nearest to `target`, and that measure.

    The measure must increase with its argument; the search begins near `start`.

    Raises:
      ValueError: The measure does not increase.
    """
    at = functools.cache(lambda units: measure(units * step))
    low, high = 1, max(1, start // step)
    while at(high) < target:
        if at(2 * high) <= at(high):
            raise ValueError("the cost does not grow with this option")
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) < target else (low, middle)
    best = min((low, high), key=lambda units: abs(at(units) - target))
    return best * step, at(best)


class Probe(NamedTuple):
    """Measurements of one arm before training, on the first batch of seed 0.

    Attributes:
      params: Initial values, by parameter path.
      gradients: Gradients of the loss, by parameter path.
      logits: Logits in float64.
      loss: Mean loss, in nats per target.
      input_rms: Root mean square of the input to the first block.
      sees_ahead: Largest change in earlier logits when the last token changes; None for a model
        that is allowed to look ahead or reads no tokens.
    """

    params: dict[str, np.ndarray]
    gradients: dict[str, np.ndarray]
    logits: np.ndarray
    loss: float
    input_rms: float
    sees_ahead: float | None


def probe(prepared: Prepared) -> Probe:
    """Returns the Probe of an arm that starts from seed 0 or from its initial weights."""
    state = prepared.start(prepared.config)[0]
    params = evaluated_params((), state.params, state.state)
    batch = prepared.task.batch(seed_of(prepared.config, "order"), 0)
    changed = []  # the inputs with a different last token, if earlier logits must not depend on it
    if prepared.config.data.task == "language_modelling":
        tokens = np.array(batch["inputs"]["tokens"])
        tokens[..., -1] = (tokens[..., -1] + 1) % prepared.task.sizes["vocab_size"]
        changed = [{**batch["inputs"], "tokens": tokens}]
    gradients, logits, *numbers = _look(prepared.model)(params, batch, changed)
    params, gradients = (by_path(jax.device_get(tree)) for tree in (params, gradients))
    loss, input_rms, ahead = map(float, numbers)
    logits = np.asarray(logits, np.float64)
    return Probe(params, gradients, logits, loss, input_rms, ahead if changed else None)


@functools.lru_cache(maxsize=32)
def _look(model: Any) -> Callable:
    """Returns a jitted function that computes a model's probe; arms with equal models share it.

    On a CPU, the function is compiled with little optimisation, which saves time for one call.
    """

    def look(params: Any, batch: Any, changed: list) -> tuple:
        def mean_loss(params: Any) -> jax.Array:
            loss, sums, *_ = score_batch(model, params, batch)
            return safe_mean(loss, sums.weight.sum())

        def forward(inputs: dict) -> tuple[jax.Array, jax.Array]:
            logits, state = model.apply(variables_of(params), **inputs, mutable=["intermediates"])
            values = values_by_site(state.get("intermediates", {}))
            entering = values.get("embedded", values.get("encoder.embedded"))
            if entering is None:  # a user-defined architecture without sites
                return logits, jnp.float32(jnp.nan)
            return logits, jnp.sqrt(jnp.square(entering.astype(jnp.float32)).mean())

        loss, gradients = jax.value_and_grad(mean_loss)(params)
        # One body for both inputs, since two copies could be fused, and so rounded, differently.
        stacked = jax.tree.map(lambda *values: jnp.stack(values), batch["inputs"], *changed)
        logits, entering = jax.lax.map(forward, stacked)
        ahead = jnp.abs(logits[1] - logits[0])[..., :-1, :].max() if changed else jnp.nan
        return gradients, logits[0], loss, entering[0], ahead

    quickly = {"xla_backend_optimization_level": 0} if jax.default_backend() == "cpu" else None
    return jax.jit(look, compiler_options=quickly)


def check_manipulation(arm: Probe, base: Probe) -> dict[str, Any]:
    """Returns the differences between an arm and the baseline before training.

    Returns:
      `only_here`, `only_base`: parameters that the other model lacks or has in another shape;
      `paired`: fraction of the arm's parameters that start with the baseline's values;
      `logits`: RMS of the difference in logits, divided by the RMS of the baseline's logits;
      `loss`: the arm's loss minus the baseline's, in nats per target;
      `gradient`: the same ratio for the norm of the gradients of shared parameters;
      `input_rms`, `sees_ahead`: the values in the arm's probe.
      A value that is not finite is given as None.
    """
    shapes = {path: value.shape for path, value in base.params.items()}
    shared = [path for path, value in arm.params.items() if shapes.get(path) == value.shape]
    equal = [path for path in shared if np.array_equal(arm.params[path], base.params[path])]
    gradient = math.sqrt(sum(((arm.gradients[p] - base.gradients[p]) ** 2).sum() for p in shared))
    size = math.sqrt(sum((base.gradients[p] ** 2).sum() for p in shared))
    comparable = arm.logits.shape == base.logits.shape
    scale = _rms(base.logits)  # 0 if the base begins with a head of zeros
    logits = _rms(arm.logits - base.logits) / scale if comparable and scale else math.nan
    return as_plain({
        "only_here": [path for path in arm.params if path not in shared],
        "only_base": [path for path in base.params if path not in shared],
        "paired": sum(arm.params[p].size for p in equal) / sum(v.size for v in arm.params.values()),
        "logits": logits,
        "loss": arm.loss - base.loss,
        "gradient": gradient / size if size else math.nan,
        "input_rms": arm.input_rms,
        "sees_ahead": arm.sees_ahead,
    })  # fmt: skip


def _rms(array: np.ndarray) -> float:
    return float(np.sqrt(np.square(array).mean()))


_ROWS = 64  # examples of an evaluated batch
_BASELINES: dict[tuple[str, int], Baselines] = {}  # by digest of the data and number of batches


@dataclasses.dataclass
class Arm:
    """An arm, or one trial in the tuning of an arm, that is ready to be trained.

    Attributes:
      changes: Changes to the baseline, including matched and tuned values.
      config: Config of the arm, with seed 0.
      data: Digest of the task's data.
      matched: Option solved for, to match the base's cost -> its value; {} if none was.
      hash: Name of the folder that holds the arm's cells; set by find_folder.
    """

    name: str
    changes: dict[str, Any]
    config: ConfigDict
    prepared: Prepared
    cost: Cost
    data: str
    matched: dict[str, int]
    hash: str = ""

    def cell(self, root: Path, seed: int) -> Cell:
        """Returns the arm's cell for a seed; `root` is the folder that contains `cells`."""
        return Cell(self.name, seed, cell_path(root, self.hash, seed))

    def find_folder(self, members: int) -> None:
        """Sets `hash`, the folder name of the arm's cells, for `members` trained at a time."""
        self.hash = _hash_of(self.config, self.data, members)


_OF_DATA = ("data.", "training.batch_size", "evaluation.stride")  # options that a task reads


def _hash_of(config: ConfigDict, data: str, members: int) -> str:
    return cell_hash(config, data, members, surroundings()[0], fingerprint_of(config.initial))[0]


def same_files(arms: Mapping[str, Arm], before: Mapping[str, str], where: str) -> dict[str, str]:
    """Returns `before` with a digest of each arm's data and weights, by that of their options.

    Raises:
      InvalidInput: An arm with the same options had others; `where` names the runs' folder.
    """
    for name, arm in arms.items():
        flat = stated(flatten(arm.config))
        key = seal_of({k: v for k, v in flat.items() if k.startswith((*_OF_DATA, "initial."))})
        held = seal_of([arm.data, fingerprint_of(arm.config.initial)])
        if before.get(key, held) != held:
            raise InvalidInput(
                f"{where}: the data or initial weights of arm {name!r} have changed since the "
                f"first run (data.source={arm.config.data.source}); restore them, or choose "
                "another folder"
            )
        before = {**before, key: held}
    return dict(before)


class ArmBuilder:
    """Builder of the arms of a design; data shared by several arms are read once."""

    def __init__(self, design: Design, solved: Mapping[str, Any] | None = None) -> None:
        """Reads no data yet; `solved` has the options that an earlier launch solved for, by arm."""
        self.design, self._solved = design, solved or {}
        self._tasks: dict[str, tuple[Task, str]] = {}

    def _data(self, config: ConfigDict) -> tuple[Task, str]:
        """Returns a config's task, and the digest of the task's data."""
        flat = flatten(config)
        key = json.dumps({k: v for k, v in flat.items() if k.startswith(_OF_DATA)}, default=str)
        if key not in self._tasks:
            task = make_task(config, allow=own_modules(config))
            self._tasks[key] = task, digest_of(task)
        return self._tasks[key]

    def make(self, name: str, arm: str, more: Mapping[str, Any]) -> Arm:
        """Builds `arm` with further changes `more`, e.g. a tuning trial, and names it `name`."""
        config, changes = self.design.config_of(arm, more), {**self.design.arms[arm], **more}
        field = self.design.match and self.design.match.field
        matched = {key: value for key, value in more.items() if key == field}
        task, digest = self._data(config)
        prepared = prepare(config, task=task)
        return Arm(name, changes, config, prepared, cost_of(prepared), digest, matched)

    def arms(self) -> dict[str, Arm]:
        """Returns all arms of the design by name, made equal in cost if the design asks for it."""
        base = self.make(self.design.base, self.design.base, {})
        made = {self.design.base: base}
        for name in self.design.others:
            matched = self._matched(name, base.cost) if self.design.match else {}
            made[name] = self.make(name, name, matched)
        return {name: made[name] for name in self.design.arms}

    def _matched(self, name: str, base: Cost) -> dict[str, int]:
        """Returns the option to solve for, with the value whose cost is nearest to `base`."""
        assert self.design.match is not None
        what, field = self.design.match.by, self.design.match.field
        if field in self.design.arms[name]:
            raise InvalidInput(f"arm {name!r} sets {field}, which match={what} solves for")
        if name in self._solved:
            return dict(self._solved[name])
        cost_field = "parameters" if what == "params" else what
        config = self.design.config_of(name)
        value, model = flatten(config)[field], config.model
        start = 4 * model.width if value is None else value  # mlp_dim's default
        # Rotary positions need heads with an even number of features.
        heads = model.num_heads * (2 if model.position == "rotary" else 1)
        step = heads if field == "model.width" else 1

        def at(value: int) -> float:
            return getattr(self.make(name, name, {field: value}).cost, cost_field)

        try:
            return {field: matched_value(at, getattr(base, cost_field), start, step)[0]}
        except ValueError as error:
            raise InvalidInput(f"arm {name!r}: match={what} by {field}: {error}") from error

    @staticmethod
    def baselines(arm: Arm) -> Baselines:
        """Returns the Baselines (simple methods) for an arm's data, computed once per process."""
        key = arm.data, arm.config.training.steps
        if key not in _BASELINES:
            _BASELINES[key] = baselines_of(arm.prepared.task, arm.config.training.steps)
        found, benchmark = _BASELINES[key], arm.config.evaluation.benchmark
        chance = None if benchmark is None else chance_of(benchmark)
        if chance is None:
            return found
        guessed = dict.fromkeys((name for name in METRICS if name.startswith("benchmark")), chance)
        return found._replace(scores={**found.scores, "guessing": {"test": guessed}})

    def certificates(
        self, arms: Mapping[str, Arm], before: Mapping[str, dict]
    ) -> dict[str, dict[str, Any]]:
        """Returns check_manipulation's result for each arm, or the one in `before`, by arm hash.

        Raises:
          InvalidInput: An arm or change has no effect, or logits are nan or depend on later tokens.
        """
        base, certificates, found = arms[self.design.base], {}, dict[str, str]()
        base_probe = probe(base.prepared)
        for name, arm in arms.items():
            if arm is not base:
                self._refuse_without_effect(arm, base)
            if (same := found.setdefault(_hash_of(arm.config, arm.data, 1), name)) != name:
                raise InvalidInput(
                    f"arms {same!r} and {name!r} have the same options and data; remove one"
                )
            if arm.hash in before:
                certificates[name] = before[arm.hash]
                continue
            arm_probe = base_probe if arm is base else probe(arm.prepared)
            ahead = arm_probe.sees_ahead
            if ahead is not None and math.isnan(ahead):
                raise InvalidInput(f"arm {name!r}: the logits are not finite before any training")
            if ahead:
                raise InvalidInput(
                    f"arm {name!r}: changing the last token changes earlier logits by {ahead:g}: "
                    "the model looks ahead"
                )
            certificates[name] = check_manipulation(arm_probe, base_probe)
        return certificates

    def _refuse_without_effect(self, arm: Arm, base: Arm) -> None:
        """Raises InvalidInput if an arm, or one of its changes, has no effect."""
        own, base_values = self.design.arms[arm.name], resolved(base.config)
        solved = {key: value for key, value in arm.changes.items() if key not in own}
        # An option that an arm states with the base's value is not a change.
        changes = {key: value for key, value in own.items() if base_values.get(key) != value}
        arm_hash = _hash_of(arm.config, arm.data, 1)
        if arm_hash == _hash_of(base.config, base.data, 1):
            shown = ", ".join(f"{key}={value}" for key, value in changes.items())
            raise InvalidInput(
                f"arm {arm.name!r} changes nothing ({shown}): no chosen component reads this, or "
                "the base already has it\nremove the arm, or change an option that the base reads"
            )
        for key in changes if len(changes) > 1 else ():
            rest = {k: v for k, v in own.items() if k != key}
            rest |= {key: base_values[key]} if key in base_values else {}
            try:
                config = self.design.model_copy(update={"arms": {"": rest}}).config_of("", solved)
                is_read = _hash_of(config, self._data(config)[1], 1) != arm_hash
            except InvalidInput:  # the other changes need this one
                continue
            if not is_read:
                raise InvalidInput(
                    f"arm {arm.name!r}: {key} has no effect in this arm\n"
                    "remove it from the arm, or it would seem to have been tested"
                )


def digest_of(task: Task) -> str:
    """Returns a hash of a task's data: its evaluation splits and some of its training batches."""
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


def measure(program: Program) -> float:
    """Returns the seconds per step and member, as the median over several calls."""
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
        requests = [request._replace(state=r.state, num_steps=np.int32(steps)) for r in results]
    return statistics.median(times[1:] or times)


@dataclasses.dataclass
class Estimate:
    """The number of members that a program trains at a time, and the expected duration of cells.

    Attributes:
      members: Number of members trained at a time; with 1, they are trained one after another.
      seconds: Arm -> seconds of one cell, for training and evaluation.
      description: The timing as text; empty if nothing was timed.
    """

    members: int
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    description: str = ""

    def seconds_of(self, arm: str) -> float:
        """Returns the expected seconds for a cell; a tuning trial counts as the slowest arm."""
        usual = max(self.seconds.values(), default=0.0)
        return self.seconds.get(arm, usual)


def members_of(arms: Iterable[Arm], asked: int | None) -> int:
    """Returns the number of members that a program trains at a time: `asked`, if given.

    Otherwise it is 1 on a CPU or if a run uses several devices, and 8 on a GPU or TPU.

    Raises:
      InvalidInput: `asked` is below 1, or above 1 for runs on several devices.
    """
    are_on_mesh = any(arm.prepared.sharding is not None for arm in arms)
    if asked is None:
        return 1 if are_on_mesh or jax.devices()[0].platform == "cpu" else 8
    if asked < 1:
        raise InvalidInput(f"--members={asked}: expected an integer >= 1")
    if are_on_mesh and asked > 1:
        raise InvalidInput(f"--members={asked}: with a mesh, runs train one at a time; expected 1")
    return asked


def calibrate(arms: Mapping[str, Arm], base: str, members: int) -> Estimate:
    """Estimates the duration of each arm's cells from timed steps of `base`, scaled by FLOPs."""
    prepared = arms[base].prepared
    step = measure(Program(prepared, members))
    cell = prepared.config.training.steps * step + _seconds_of_evaluations(prepared)
    work = {name: max(arm.cost.flops, 1.0) * arm.cost.counted for name, arm in arms.items()}
    seconds = {name: cell * work[name] / work[base] for name in arms}
    return Estimate(members, seconds, f"{step * 1e3:.2f} ms a step")


def _seconds_of_evaluations(prepared: Prepared) -> float:
    """Estimates the seconds for all evaluations in a cell from the time for one batch."""
    config, score = prepared.config, score_of(prepared)
    state = prepared.draw(np.uint32(0))
    params = evaluated_params((), state.params, state.state)
    counts = []
    for split in ("validation", "test"):
        batches = iter(prepared.task.evaluation_batches(split, config.evaluation.batch_size))
        batch = next(batches)
        counts.append(1 + sum(1 for _ in batches))  # one at a time: a split may be large
    jax.block_until_ready(score(params, batch))
    started = time.monotonic()
    jax.block_until_ready(score(params, batch))
    seconds = time.monotonic() - started
    evaluations = math.ceil(config.training.steps / config.evaluation.every)
    return seconds * (evaluations * counts[0] + counts[1])

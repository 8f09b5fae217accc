"""Metrics of a run besides the scores of its evaluation; see transformer_jax/metrics.py.

Metrics are computed separately from the evaluation. So the choice of metrics changes no bit of the
scores, and the checkpoint of a finished run gives the same metrics.
"""

import functools
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.tasks import Batch, Task
from transformer_jax.errors import InvalidInput
from transformer_jax.metrics import METRICS, arguments_of_metric, metric_facts
from transformer_jax.options import is_user_defined
from transformer_jax.own import chosen, faults_of, hash_of_file
from transformer_jax.paths import variables_of
from transformer_jax.placement import sharded
from transformer_jax.training.evaluation import ALWAYS, Evaluation, evaluate
from transformer_jax.training.objectives import Sums, by_example

if TYPE_CHECKING:
    from transformer_jax.sharding import Sharding
    from transformer_jax.training.run import Run

_TRIED = 4  # number of examples on which a metric is tried
_ON_DEVICE = {"logits", "targets", "weights"}
_AT_ANY_TIME = {*_ON_DEVICE, "examples"}


def measured(
    names: Sequence[str],
    run: "Run",
    task: Task,
    split: str,
    evaluation: Evaluation,
    allow: Collection[str],
    *,
    curve: Sequence[Mapping[str, Any]] | None = None,
    tell: Callable[[str], None] | None = None,
    again: bool = False,
) -> dict[str, float | None]:
    """Returns the values, by name, of the metrics that are due after an evaluation of a split.

    Args:
      names: Entries of METRICS, or MODULE:NAME.
      run, task: The current model, and its data.
      split, evaluation: Validation or test, and its evaluation; at the end of training, this
        includes the scores of generated output.
      allow: Modules that may be imported.
      curve: Rows so far (see curve_of), or None while training continues.
      tell: Receives error messages of metrics that fail, whose values are then None, so that a
        finished run is not lost. If `tell` is None, errors are raised.
      again: Whether to also compute metrics that the evaluation already has.
    Raises:
      InvalidInput: A user-defined metric failed, or returned neither a number nor None.
    """
    arguments = {
        "examples": evaluation.sequences,
        "generated": evaluation.means,
        "curve": curve,
        "target": run.config.evaluation.target,
        **{"run": run, "task": task, "split": split},
    }
    values: dict[str, float | None] = {}
    size = run.config.evaluation.batch_size
    for name in names:
        function = chosen(METRICS, name, "evaluation.metrics", allow)
        wanted = _arguments_of(function)
        if name in evaluation.means and not again:
            continue  # already evaluated, as in every run of the task
        if curve is None and not wanted <= _AT_ANY_TIME:
            continue  # due only at the end
        try:
            with faults_of(*([f"evaluation.metrics={name}"] if is_user_defined(name) else [])):
                if "benchmark" in wanted:
                    from transformer_jax.training.benchmarks import results_of

                    arguments["benchmark"] = results_of(run)
                if wanted & _ON_DEVICE:
                    value = _of_sums(name, function, run, task.evaluation_batches(split, size))
                else:
                    value = function(**{key: arguments[key] for key in arguments if key in wanted})
                if value is not None and not is_number(value):
                    raise TypeError(f"expected a number or None, got {str(value)[:40]!r}")
                values[name] = None if value is None else float(value)
        except InvalidInput as error:
            if tell is None:
                raise
            tell(str(error))
            values[name] = None
    return values


def try_metrics(
    run: "Run", task: Task, score: Callable[[Any, Batch], Sums], allow: Collection[str]
) -> None:
    """Tries, on one batch, user-defined metrics that are due in training or need only the curve.

    Raises:
      InvalidInput: A metric failed, or returned neither a number nor None.
    """
    own = [name for name in run.config.evaluation.metrics if is_user_defined(name)]
    batch = next(iter(task.evaluation_batches("validation", _TRIED)))
    first: Any = SimpleNamespace(  # a task of one batch
        evaluation_batches=lambda split, batch_size: [batch],
        scored_bytes=task.scored_bytes,
        protocol=task.protocol,
        clusters=lambda split: np.zeros(_TRIED, np.int64),
    )
    scored = evaluate(score, run.params, first, "validation", _TRIED)
    at = (run, first, "validation", scored, allow)
    measured(own, *at)
    # Rows of a curve with the same entries as those of a run.
    row = {"train/loss": scored.means["loss"], "time/step_ms": 1.0}
    row |= {f"eval/{name}": value for name, value in scored.means.items()}
    curve = [{"step": n, **row} for n in (1, 2, 3)]
    curve = curve_of(curve, task.counted, lambda updates: (updates, float(updates)), alone=True)
    of_curve = [
        name
        for name in own
        if _arguments_of(chosen(METRICS, name, "evaluation.metrics", allow)) <= {"curve", "target"}
    ]
    measured(of_curve, *at, curve=curve)


def is_number(value: Any) -> bool:
    """Returns whether a value is a single real number from Python, numpy or jax."""
    dtype = np.asarray(value).dtype
    return np.ndim(value) == 0 and (dtype.kind in "fiub" or jnp.issubdtype(dtype, jnp.floating))


def _arguments_of(function: Callable) -> Set[str]:
    return inspect.signature(function).parameters.keys()


def facts_of_metrics(names: Sequence[str], benchmark: str | None) -> dict[str, Any]:
    """Returns the facts to store about metrics, by name, so that judging imports no metric."""
    from transformer_jax.training.benchmarks import digest_of

    reads = {name for name in names if "benchmark" in arguments_of_metric(name)}
    return {
        name: {
            **metric_facts(name)._asdict(),
            "code": (hash_of_file(name) if is_user_defined(name) else "")
            + (digest_of(benchmark) if benchmark and name in reads else ""),
        }
        for name in names
    }


def results_of(row: Mapping[str, Any], target: str) -> str:
    """Returns text with a line for each score: its values on the validation and test splits.

    `row` is the last row of metrics.jsonl; `target` is the unit over which losses are averaged.
    """
    names = [name.removeprefix("test/") for name in row if name.startswith("test/")]
    size, lines = max(13, *map(len, names)), []
    for name in names:
        values = [row[f"{prefix}/{name}"] for prefix in ("eval", "test")]
        unit = "" if name in ALWAYS[1:] else f" ({metric_facts(name).unit})"
        unit = unit.replace("target", target) if name in METRICS else unit
        text = "none"
        if None not in values:
            text = "{:.4f} validation, {:.4f} test{}".format(*values, unit)
        lines.append(f"{name:<{size}} {text}")
    return "\n".join(lines)


def curve_of(
    rows: Sequence[Mapping[str, Any]],
    counted: str,
    spent: Callable[[int], tuple[int, float]],
    alone: bool,
) -> list[dict[str, Any]]:
    """Returns the rows of metrics.jsonl, each with the cost of training up to its step added.

    `spent` returns the units, which `counted` names (e.g. "tokens"), and the operations of a number
    of updates. Seconds are None unless the run was trained `alone`, so that the times are its own.
    """
    curve, before, seconds = [], 0, 0.0
    # Rows before the first one with a time use that time.
    step_ms = next((row["time/step_ms"] for row in rows if "time/step_ms" in row), 0.0)
    for row in rows:
        updates, step_ms = row["step"], row.get("time/step_ms", step_ms)
        seconds += (updates - before) * step_ms / 1e3
        before = updates
        costs: dict[str, Any] = dict(zip((counted, "operations"), spent(updates), strict=True))
        costs |= {"updates": updates, "seconds": seconds if alone else None}
        curve.append({**row, **costs})
    return curve


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _sums_by_example(
    model: Any, sharding: "Sharding | None", function: Callable, params: Any, batch: Any
) -> tuple:
    """Returns a metric's sums for each example as a tuple of arrays [B, ...]."""
    with sharded(sharding):
        logits = model.apply(variables_of(params), **batch["inputs"])
    given = {**batch, "logits": logits}
    value = function(**{name: given[name] for name in _ON_DEVICE & _arguments_of(function)})
    return value if isinstance(value, tuple) else (value, by_example(batch["weights"]))


def _of_sums(name: str, function: Callable, run: "Run", batches: Iterable[Batch]) -> float | None:
    totals = []
    for batch in batches:
        values = _sums_by_example(run.model, run.sharding, function, run.params, batch)
        sums = [np.asarray(array, np.float64) for array in values]
        rows = len(batch["targets"])
        for array in sums:
            if array.shape[:1] != (rows,):
                raise InvalidInput(
                    f"evaluation.metrics={name}: got an array of shape {array.shape}; expected "
                    f"a sum for each example, shape ({rows},)"
                )
        is_example = np.reshape(batch["weights"], (rows, -1)).any(-1)
        totals.append([array[is_example].sum(0) for array in sums])
    finish = getattr(function, "finish", None) or (lambda above, below: above / below)
    return finish(*map(sum, zip(*totals, strict=True)))

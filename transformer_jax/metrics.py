"""Metrics of runs, and the decorator for user-defined ones.

A metric is a function that returns a number, or None if it does not apply. The names of its
arguments say which data it needs:

  examples   the scored examples of a split, arrays [N] float64 by name: `loss` (nats), `correct`
             and `weight` (sums over an example's targets); for text `bytes`, for documents
             `cluster`
  logits, targets, weights
             a batch on the device, [B, ..., V], [B, ...], [B, ...]. The function returns sums for
             each example, [B], or a pair of them, numerator and denominator; padding rows do not
             count. The metric is the total over the split, divided by the total of the
             denominators, or else of the weights; with `finish`, it is that function of the totals
  curve      the rows of metrics.jsonl, with `updates`, `operations`, `seconds` (None if several
             runs shared a program) and the data seen so far, e.g. `tokens`
  target     evaluation.target
  benchmark  results of evaluation.benchmark by name of a task, or None without one
  generated  scores of the model's own texts by name, if the task scores them
  run, task, split
             everything: the trained model (see load_run), its data, and validation or test

Metrics of the first two kinds are measured at every evaluation, the others at the end of a run.
`evaluation.metrics` names those to be measured besides the usual ones. The metric of a study is
measured too, even for runs that have already ended.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.tasks.batch import mean_scores
from transformer_jax.options import is_number, is_user_defined

# Arguments that a metric may declare; see above.
ARGUMENTS = (
    *("examples", "logits", "targets", "weights", "curve", "target", "generated", "benchmark"),
    *("run", "task", "split"),
)

BINS = 15  # of probabilities, for the calibration error

Examples = Mapping[str, np.ndarray]
Curve = Sequence[Mapping[str, Any]]


class MetricFacts(NamedTuple):
    """Facts about a metric: unit, direction, and usual margin; see `metric`."""

    unit: str
    larger_is_better: bool = False
    margin: float = 0.01


def metric(
    unit: str,
    *,
    larger_is_better: bool = False,
    margin: float = 0.01,
    finish: Callable[..., float] | None = None,
) -> Callable[[Callable], Callable]:
    """Returns a decorator that marks a function as a metric with a unit.

    `margin` is the usual smallest difference that matters. For metrics that are computed on the
    device, `finish` maps the totals over a split to the metric.
    """

    def mark(function: Callable) -> Callable:
        function.facts = MetricFacts(unit, larger_is_better, margin)  # ty: ignore[missing-attribute]
        function.finish = finish  # ty: ignore[missing-attribute]
        return function

    return mark


def metric_facts(name: str) -> MetricFacts:
    """Returns the facts about a metric: an entry of METRICS, or an imported MODULE:NAME.

    Raises:
      LookupError: There is no such metric (imported), or its decorator or arguments are wrong.
    """
    function = _function(name)
    if function is None:
        module = name.partition(":")[0]
        why = f"it is not imported; give --allow={module}"
        raise LookupError(f"{name}: {why if is_user_defined(name) else 'no such metric'}")
    if not hasattr(function, "facts"):
        raise LookupError(
            "it has no decorator; expected @metric('its unit', larger_is_better=...) above it, "
            "imported with: from transformer_jax import metric"
        )
    from transformer_jax.own import check_arguments

    facts: Any = function.facts
    check_arguments(function, "metric", ARGUMENTS)
    if not (isinstance(facts.unit, str) and facts.unit):
        raise LookupError(f"@metric: unit={facts.unit!r}: expected a non-empty string")
    if not (is_number(facts.margin) and facts.margin > 0):
        raise LookupError(f"@metric: margin={facts.margin!r}: expected a number > 0")
    return facts


def arguments_of_metric(name: str) -> list[str]:
    """Returns the names of a metric's arguments, or [] if it is not imported."""
    function = _function(name)
    return [] if function is None else list(inspect.signature(function).parameters)


def measured_by(name: str, code: str, target: float | None) -> str:
    """Returns a string that identifies a metric's code, and the target if the metric uses it.

    `code` is the hash of the metric's file, or "" for an entry of METRICS.
    """
    takes_one = target is not None and "target" in arguments_of_metric(name)
    return f"{code} to {target:g}".lstrip() if takes_one else code


def _function(name: str) -> Callable | None:
    if not is_user_defined(name):
        return METRICS.get(name)
    from transformer_jax.own import find

    return find(name)


@metric("nats per target")
def loss(examples: Examples) -> float:
    """Mean cross-entropy."""
    return mean_scores(examples)["loss"]


@metric("share of targets", larger_is_better=True)
def accuracy(examples: Examples) -> float:
    """Fraction of targets that have the largest logit."""
    return mean_scores(examples)["accuracy"]


@metric("bits per byte")
def bits_per_byte(examples: Examples) -> float | None:
    """Cross-entropy per byte of text, comparable across tokenizers; None if there is no text."""
    return mean_scores(examples).get("bits_per_byte")


@metric("share of answers", larger_is_better=True)
def generated_accuracy(generated: Mapping[str, float]) -> float | None:
    """Fraction of correct answers when the model reads its own earlier ones; None if not scored."""
    return generated.get("generated_accuracy")


@metric("BLEU points", larger_is_better=True, margin=0.5)
def bleu(generated: Mapping[str, float]) -> float | None:
    """BLEU of translations (sacrebleu; Papineni et al. 2002; Post 2018); None for other tasks."""
    return generated.get("bleu")


@metric("chrF points", larger_is_better=True, margin=0.5)
def chrf(generated: Mapping[str, float]) -> float | None:
    """ChrF of translations (sacrebleu; Popović 2015); None for other tasks."""
    return generated.get("chrf")


@metric("share of examples", larger_is_better=True)
def exact_match(examples: Examples) -> float:
    """Fraction of examples in which every target is predicted correctly."""
    return float(np.mean(examples["correct"] == examples["weight"]))


@metric("nats per target")
def worst_document(examples: Examples) -> float | None:
    """Largest mean loss of a document with at least 1 % of all targets; None if there is none."""
    if "cluster" not in examples:
        return None
    _, of_example = np.unique(examples["cluster"], return_inverse=True)
    weights = np.bincount(of_example, examples["weight"])
    means = np.bincount(of_example, examples["loss"]) / weights
    large = means[weights >= 0.01 * weights.sum()]
    return float(large.max()) if large.size else None


@metric("squared error")
def brier_score(logits: Any, targets: Any, weights: Any) -> Any:
    """Squared distance of the probabilities from the truth, summed over classes (Brier 1950)."""
    import jax

    chances = jax.nn.softmax(logits.astype("float32"), axis=-1)
    apart = chances - jax.nn.one_hot(targets, chances.shape[-1])
    return (weights * (apart**2).sum(-1)).reshape(len(weights), -1).sum(-1)


@metric(
    "share of targets",
    finish=lambda counts, right, sure: float(np.abs(right - sure).sum() / counts.sum()),
)
def calibration_error(logits: Any, targets: Any, weights: Any) -> Any:
    """Expected calibration error over 15 equal bins (Guo et al. 2017, arXiv:1706.04599, eq. 3)."""
    import jax
    import jax.numpy as jnp

    chances = jax.nn.softmax(logits.astype("float32"), axis=-1)
    confidences, right = chances.max(-1), chances.argmax(-1) == targets
    place = jnp.minimum((confidences * BINS).astype("int32"), BINS - 1)
    bins = jax.nn.one_hot(place, BINS) * weights[..., None]
    by_example = lambda x: x.reshape(len(x), -1, BINS).sum(1)  # noqa: E731
    return tuple(
        by_example(bins * x[..., None]) for x in (jnp.ones_like(confidences), right, confidences)
    )


def _labelled(run: Any, task: Any, split: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns probabilities [N, C] and classes [N] of a split's examples; None if it has none."""
    import jax

    from transformer_jax.paths import variables_of

    size, found = run.config.evaluation.batch_size, []
    chances = jax.jit(
        lambda params, inputs: jax.nn.softmax(run.model.apply(variables_of(params), **inputs), -1)
    )
    for batch in task.evaluation_batches(split, size):
        if np.ndim(batch["targets"]) != 1:
            return None
        real = np.asarray(batch["weights"]) > 0
        rows = np.asarray(chances(run.params, batch["inputs"]))
        found.append((rows[real], batch["targets"][real]))
    probabilities, classes = zip(*found, strict=True)
    return np.concatenate(probabilities), np.concatenate(classes)


def _confusions(run: Any, task: Any, split: str) -> np.ndarray | None:
    """Returns the numbers of examples by class and predicted class, [C, C]."""
    if (labelled := _labelled(run, task, split)) is None:
        return None
    probabilities, classes = labelled
    counts = np.zeros(2 * probabilities.shape[1:])
    np.add.at(counts, (classes, probabilities.argmax(-1)), 1)
    return counts


@metric("correlation", larger_is_better=True)
def matthews_correlation(run: Any, task: Any, split: str) -> float | None:
    """Correlation of classes with predictions (Gorodkin 2004, equation 8); 0 if either is constant.

    For two classes, it is that of Matthews 1975. None unless each example has one class.
    """
    if (counts := _confusions(run, task, split)) is None:
        return None
    real, said, total = counts.sum(1), counts.sum(0), counts.sum()
    above = counts.trace() * total - real @ said
    below = np.sqrt(total**2 - real @ real) * np.sqrt(total**2 - said @ said)
    return float(above / below) if below else 0.0


@metric("F1", larger_is_better=True)
def f1(run: Any, task: Any, split: str) -> float | None:
    """Harmonic mean of precision and recall (van Rijsbergen 1979).

    With two classes, it is that of the second (in alphabetical order), else the mean over all
    classes. None unless each example has one class.
    """
    if (counts := _confusions(run, task, split)) is None:
        return None
    both = counts.sum(0) + counts.sum(1)
    of_each = 2 * counts.diagonal() / np.where(both == 0, 1, both)
    return float(of_each[1] if len(of_each) == 2 else of_each.mean())


@metric("correlation", larger_is_better=True)
def spearman(run: Any, task: Any, split: str) -> float | None:
    """Rank correlation of labels that are numbers with their expectations (Spearman 1904).

    The expectation of an example is the sum of the labels, weighted by their probabilities. 0 if
    either is constant; None unless each example has one class, whose name is a number.
    """
    labelled = _labelled(run, task, split)
    try:
        values = np.array([float(name) for name in run.classes])
    except ValueError:
        return None
    if labelled is None or not values.size or not np.isfinite(values).all():
        return None
    from scipy import stats

    probabilities, classes = labelled
    real, expected = values[classes], probabilities @ values
    if not np.ptp(real) or not np.ptp(expected):
        return 0.0
    return float(stats.spearmanr(real, expected).statistic)


def _of_benchmark(name: str, doc: str, *results: str) -> Any:
    """Returns a metric: the mean over tasks of the first of these results that each one has."""

    @metric("score of a benchmark", larger_is_better=True)
    def score(benchmark: Mapping[str, Mapping[str, float]] | None) -> float | None:
        of_tasks = list((benchmark or {}).values())
        of_tasks = [means for means in of_tasks if "core" in means] or of_tasks
        found = [next((means[r] for r in results if r in means), None) for means in of_tasks]
        values = [value for value in found if value is not None]
        return sum(values) / len(found) if values and len(values) == len(found) else None

    score.__name__, score.__doc__ = name, f"{doc} of evaluation.benchmark; None if it has none."
    return score


_BENCHMARKS = (
    _of_benchmark("benchmark", "CORE, or the accuracy by probability,", "core", "accuracy", "acc"),
    _of_benchmark("benchmark_per_token", "Accuracy by probability per token", "accuracy_per_token"),
    _of_benchmark(
        "benchmark_per_byte", "Accuracy by probability per byte", "accuracy_per_byte", "acc_norm"
    ),
)


@metric("nats per target")
def area_under_curve(curve: Curve) -> float | None:
    """Mean validation loss over updates, first to last evaluation, by the trapezoidal rule.

    None if there are fewer than two evaluations.
    """
    points = [(row["updates"], row["eval/loss"]) for row in curve if "eval/loss" in row]
    if len(points) < 2:
        return None
    updates, losses = np.array(points).T
    return float(np.trapezoid(losses, updates) / (updates[-1] - updates[0]))


def _to_target(axis: str, margin: float, doc: str) -> Any:
    """Returns a metric: the value of `axis` when the loss first reaches the target, or None."""

    @metric(axis, margin=margin)
    def reached(curve: Curve, target: float | None) -> float | None:
        for row in curve:
            if target is not None and "eval/loss" in row and row["eval/loss"] <= target:
                return row.get(axis)
        return None

    reached.__name__, reached.__doc__ = f"{axis}_to_target", doc
    return reached


_FIRST = "until an evaluation first reached evaluation.target."
updates_to_target = _to_target("updates", 10, f"Updates {_FIRST}")
tokens_to_target = _to_target("tokens", 1e4, f"Training tokens {_FIRST}")
seconds_to_target = _to_target(
    "seconds", 1, f"Seconds of training steps on this machine, without evaluations, {_FIRST}"
)
operations_to_target = _to_target(
    "operations",
    1e9,
    f"Operations (6 for each multiplication of a forward pass, as in papers) {_FIRST}",
)


_SCORED = (loss, accuracy, bits_per_byte, generated_accuracy, bleu, chrf)
SCORED = tuple(function.__name__ for function in _SCORED)  # measured if they apply to the task
METRICS: dict[str, Callable] = {
    function.__name__: function
    for function in (
        *_SCORED,
        *(exact_match, worst_document, brier_score, calibration_error, area_under_curve),
        *(matthews_correlation, f1, spearman, *_BENCHMARKS),
        *(updates_to_target, tokens_to_target, seconds_to_target, operations_to_target),
    )
}

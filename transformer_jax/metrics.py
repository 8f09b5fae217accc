"""Metrics of runs, and the decorator for user-defined ones.

A metric is a function. The names of its arguments say what it needs, and it returns a number, or
None if it does not apply:

  examples   the scored examples of a split, name -> [N] float64: `loss` (nats), `correct` and
             `weight` (sums over an example's targets), of text `bytes`, of documents `cluster`
  logits, targets, weights
             a batch on the device, [B, ..., V], [B, ...], [B, ...]: sums of each example, [B], or
             two, numerator and denominator; padding rows do not count. The metric is
             the sum over the split divided by that of the second, or of the weights; or what
             `finish` makes of the sums
  curve      a list of rows: those of metrics.jsonl, with `updates`, `operations`, `seconds` (None
             if several runs shared a program) and the data seen so far, e.g. `tokens`
  target     evaluation.target
  generated  name -> score of the model's own texts, if the task scores them
  run, task, split
             everything: the trained model (see load_run), its data, and validation or test

The first two kinds are measured at every evaluation, the others at the end. `evaluation.metrics`
names those that are measured besides the usual ones; the metric of a study is measured too,
also for runs that ended before.
"""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.options import is_number, is_user_defined

# Arguments that a metric may declare, see above.
ARGUMENTS = (
    *("examples", "logits", "targets", "weights", "curve", "target", "generated"),
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
    """Marks a function as a metric, whose number has a unit.

    `margin` is the usual smallest difference that matters, and `finish`, for metrics on the device,
    the function from the sums over a split to the number.
    """

    def mark(function: Callable) -> Callable:
        function.facts = MetricFacts(unit, larger_is_better, margin)  # ty: ignore[missing-attribute]
        function.finish = finish  # ty: ignore[missing-attribute]
        return function

    return mark


def metric_facts(name: str) -> MetricFacts:
    """Returns the facts about a metric: an entry of METRICS, or an imported MODULE:NAME.

    Raises:
      LookupError: There is no such metric, its module is not imported, or its mark or its arguments
        are wrong.
    """
    function = _function(name)
    if function is None:
        module = name.partition(":")[0]
        why = f"it is not imported; --allow={module}" if is_user_defined(name) else "no such metric"
        raise LookupError(f"{name}: {why}")
    if not hasattr(function, "facts"):
        raise LookupError(
            "it has no mark; expected @metric('its unit', larger_is_better=...) above it, from "
            "transformer_jax import metric"
        )
    from transformer_jax.own import check_arguments

    facts: Any = function.facts
    check_arguments(function, "metric", ARGUMENTS)
    if not (isinstance(facts.unit, str) and facts.unit):
        raise LookupError(f"@metric: unit={facts.unit!r}: expected its unit, a text")
    if not (is_number(facts.margin) and facts.margin > 0):
        raise LookupError(f"@metric: margin={facts.margin!r}: expected a number > 0")
    return facts


def arguments_of_metric(name: str) -> list[str]:
    """Returns the arguments of a metric; [] if it is not imported."""
    function = _function(name)
    return [] if function is None else list(inspect.signature(function).parameters)


def measured_by(name: str, code: str, target: float | None) -> str:
    """Returns what determines a metric besides the run: user-defined code, and evaluation.target.

    `code` is the hash of its file; "" if it is an entry of METRICS.
    """
    takes_one = target is not None and "target" in arguments_of_metric(name)
    return f"{code} to {target:g}".lstrip() if takes_one else code


def _function(name: str) -> Callable | None:
    if not is_user_defined(name):
        return METRICS.get(name)
    from transformer_jax.own import find

    return find(name)


# ---------------------------------------------------------------- what every run has


@metric("nats per target")
def loss(examples: Examples) -> float:
    """Mean cross-entropy."""
    return float(examples["loss"].sum()) / float(examples["weight"].sum())


@metric("share of targets", larger_is_better=True)
def accuracy(examples: Examples) -> float:
    """Fraction of targets that had the largest logit."""
    return float(examples["correct"].sum()) / float(examples["weight"].sum())


@metric("bits per byte")
def bits_per_byte(examples: Examples) -> float | None:
    """Cross-entropy per byte of text, comparable across tokenizers."""
    if "bytes" not in examples:
        return None
    return float(examples["loss"].sum()) / math.log(2) / int(examples["bytes"].sum())


@metric("share of answers", larger_is_better=True)
def generated_accuracy(generated: Mapping[str, float]) -> float | None:
    """Fraction of right answers if the model reads its own previous answers."""
    return generated.get("generated_accuracy")


@metric("BLEU points", larger_is_better=True, margin=0.5)
def bleu(generated: Mapping[str, float]) -> float | None:
    """BLEU of translations, by sacrebleu (Papineni et al. 2002; Post 2018)."""
    return generated.get("bleu")


@metric("chrF points", larger_is_better=True, margin=0.5)
def chrf(generated: Mapping[str, float]) -> float | None:
    """ChrF of translations, by sacrebleu (Popović 2015)."""
    return generated.get("chrf")


# ---------------------------------------------------------------- what is asked for


@metric("share of examples", larger_is_better=True)
def exact_match(examples: Examples) -> float:
    """Fraction of examples with every target right."""
    return float(np.mean(examples["correct"] == examples["weight"]))


@metric("nats per target")
def worst_document(examples: Examples) -> float | None:
    """The largest mean loss of a document with at least 1 % of all targets, or None."""
    if "cluster" not in examples:
        return None
    _, of_example = np.unique(examples["cluster"], return_inverse=True)
    weights = np.bincount(of_example, examples["weight"])
    means = np.bincount(of_example, examples["loss"]) / weights
    large = means[weights >= 0.01 * weights.sum()]
    return float(large.max()) if large.size else None


@metric("squared error")
def brier_score(logits: Any, targets: Any, weights: Any) -> Any:
    """Squared distance of the probabilities from the truth, summed over classes: Brier 1950."""
    import jax

    chances = jax.nn.softmax(logits.astype("float32"), axis=-1)
    apart = chances - jax.nn.one_hot(targets, chances.shape[-1])
    return (weights * (apart**2).sum(-1)).reshape(len(weights), -1).sum(-1)


@metric(
    "share of targets",
    finish=lambda counts, right, sure: float(np.abs(right - sure).sum() / counts.sum()),
)
def calibration_error(logits: Any, targets: Any, weights: Any) -> Any:
    """Expected calibration error over 15 equal bins: Guo et al. 2017, arXiv:1706.04599, eq. 3."""
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


@metric("nats per target")
def area_under_curve(curve: Curve) -> float | None:
    """Mean validation loss from the first evaluation to the last, by trapezoids over updates."""
    points = [(row["updates"], row["eval/loss"]) for row in curve if "eval/loss" in row]
    if len(points) < 2:
        return None
    updates, losses = np.array(points).T
    return float(np.trapezoid(losses, updates) / (updates[-1] - updates[0]))


def _to_target(axis: str, margin: float, doc: str) -> Any:
    """Returns the metric that is the value on an axis when the loss first reaches the target."""

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
    "seconds", 1, "Seconds of training steps until then, on this machine, without evaluations."
)
operations_to_target = _to_target(
    "operations",
    1e9,
    "Operations until then: 6 for each multiplication of a forward pass, as papers count.",
)


_SCORED = (loss, accuracy, bits_per_byte, generated_accuracy, bleu, chrf)
SCORED = tuple(function.__name__ for function in _SCORED)  # measured if they apply to the task
METRICS: dict[str, Callable] = {
    function.__name__: function
    for function in (
        *_SCORED,
        *(exact_match, worst_document, brier_score, calibration_error, area_under_curve),
        *(updates_to_target, tokens_to_target, seconds_to_target, operations_to_target),
    )
}

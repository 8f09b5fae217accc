"""Whether a base has learned, and whether a metric leaves room for a difference.

A base that is not above a simple method says nothing about parts of transformers, nor does a
difference between scores that are all perfect, or all no better than those of a guess.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.studies.asking.gate import FLOORS, METHODS
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.statistics import paired_t
from transformer_jax.studies.inference.words import (
    BETTER,
    CANNOT_TELL,
    IDENTICAL,
    SAME,
    UNRESOLVED,
    WORSE,
)

_ABOUT_MODELS = (BETTER, WORSE, SAME, UNRESOLVED, IDENTICAL)  # words for what was trained
LEVEL = 0.05  # at which a base is above its gate


def passed(values: Sequence[float], score: float, larger_is_better: bool) -> bool:
    """Whether scores are above a fixed one, by a one-sided t test.

    A base that is no better than the simple method passes in at most 5 % of looks; of one seed its
    score is taken as it is.

    Args:
      values: of each seed of the base, [n].
      score: of the simple method.
      larger_is_better: direction of the metric.
    """
    gains = (1 if larger_is_better else -1) * (np.asarray(values, float) - score)
    if len(gains) < 2:
        return bool((gains > 0).all() and len(gains))
    mean, _, p = paired_t(gains, float(np.abs(values).max()))
    return bool(mean > 0 and p / 2 <= LEVEL)


def whether_learned(gate: Mapping[str, Any], values: Sequence[float]) -> dict[str, Any]:
    """Returns the gate with what came of it: the base's mean, whether it passed, and words.

    Args:
      gate: of gate_of.
      values: of that metric on that split, of each seed of the base.
    """
    holds = passed(values, gate["score"], gate["metric"] == "accuracy")
    mean = float(np.mean(values)) if len(values) else None
    sentence = "the base has no score"
    if mean is not None:
        is_above = may_have_learned({**gate, "base": mean, "passed": holds})
        word = "better" if holds else "not surely better" if is_above else "no better"
        sentence = (
            f"the base's {gate['split']}/{gate['metric']} of {mean:.4g} is {word} than "
            f"{gate['score']:.4g}, what {METHODS[gate['method']]} reaches"
        )
    return {**gate, "base": mean, "passed": holds, "told": sentence}


def may_have_learned(learned: Mapping[str, Any] | None) -> bool:
    """Whether a base that did not pass is better than its gate all the same, if not surely.

    Args:
      learned: of whether_learned; None: there is no gate.
    """
    if learned is None or learned["passed"] or learned["base"] is None:
        return False
    gain = learned["base"] - learned["score"]
    return gain > 0 if learned["metric"] == "accuracy" else gain < 0


def at_an_end(
    base: Sequence[float],
    arm: Sequence[float],
    best: float | None,
    floor: float | None,
    margin: float,
    larger_is_better: bool,
) -> str:
    """Returns in which way two arms are at an end of their metric; empty where they are not.

    Args:
      base: scores of each seed.
      arm: the same.
      best: the best score there is, if that is known.
      floor: of a guess that reads nothing, if that is known.
      margin: the smallest difference that matters.
      larger_is_better: direction of the metric.
    """
    sign = 1 if larger_is_better else -1
    if not len(base) or not len(arm):
        return ""
    means = [sign * float(np.mean(values)) for values in (base, arm)]
    if best is not None and min(means) >= sign * best - margin:
        return f"base and arm are both within {margin:g} of {best:.4g}, the best there is"
    if floor is not None and max(means) <= sign * floor + margin:
        return f"neither base nor arm is {margin:g} better than {floor:.4g}, that of a guess"
    return ""


def best_and_guess(
    scores: Mapping[str, Mapping[str, Mapping[str, float]]], metric: str
) -> tuple[float | None, float | None]:
    """Returns the best score of a metric and that of a guess, None where they are not known.

    Args:
      scores: method -> split -> metric -> score, of data/baselines.
      metric: name, without its split.
    """
    best = scores.get("known floor", {}).get("test", {}).get(metric)
    if metric.endswith("accuracy"):
        best = 1.0
    floors = [scores[name]["test"].get(metric) for name in FLOORS if name in scores]
    return best, next((floor for floor in floors if floor is not None), None)


def cannot_tell(
    by_arm: Mapping[str, dict[str, Any]],
    outcomes: Mapping[str, Mapping[int, Outcome]],
    sealed: Mapping[str, Any],
    learned: Mapping[str, Any] | None,
    baselines: Mapping[str, Any],
) -> None:
    """Replaces words about models where the base has not learned, or the metric leaves no room.

    Args:
      by_arm: what was decided of each arm; changed.
      outcomes: arm -> seed -> outcome.
      sealed: what was asked.
      learned: of whether_learned; None: there is no gate.
      baselines: what study.json says of simple methods.
    """
    if sealed["target"] is not None:
        return
    metric = sealed["metric"].removeprefix("test/")
    values = {
        name: [o.value for o in by_seed.values() if o.value is not None]
        for name, by_seed in outcomes.items()
    }
    rest = (
        *best_and_guess(baselines["scores"], metric),
        sealed["margin"],
        sealed["larger_is_better"],
    )
    for name, arm in by_arm.items():
        if arm["verdict"] not in _ABOUT_MODELS:
            continue
        reason = at_an_end(values[sealed["base"]], values[name], *rest)
        if learned is not None and not learned["passed"]:
            reason = "the base has not learned"
        if reason:
            arm |= {"verdict": CANNOT_TELL, "words": f"{CANNOT_TELL}: {reason}"}

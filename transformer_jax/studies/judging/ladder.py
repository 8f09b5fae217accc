"""The same contrasts at several scales or splits, judged over them; forecasts of the largest."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.studies.asking.ladder import SPLITS
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.inference.multipliers import multiplier_of
from transformer_jax.studies.inference.scales import (
    NONE,
    forecast_of_differences,
    forecast_of_scores,
    over_scales,
    over_splits,
)
from transformer_jax.studies.inference.words import CANNOT_TELL, IDENTICAL, NOT_PRIMARY, REFUSED

_LAW_REJECTED = 0.05  # level at which power laws do not describe the scores

Costs = Sequence[Mapping[str, Any]]  # of one arm, by rung


def judge_ladder(studies: Sequence[Study], key: str, values: Sequence[float]) -> dict[str, Any]:
    """Compares the verdicts of a ladder's studies.

    Args:
      studies: of the rungs, judged.
      key: of the config.
      values: of the rungs, ascending.
    """
    verdicts = [study.verdicts() for study in studies]
    first, costs = verdicts[0], _costs(studies)
    axis, places = axis_of(costs[first["base"]], studies[0].record["counted"], key, values)
    if key == SPLITS:
        axis, places = key, [float(value) for value in values]

    def over_rungs(arm: str) -> dict[str, Any]:
        if any(v["arms"][arm]["verdict"] == NOT_PRIMARY for v in verdicts):
            return {"word": f"{NOT_PRIMARY}: no word"}
        if any(study.sealed.get("target") is not None for study in studies):
            return {"word": f"{NONE}: with a target no mean is judged"}
        if any(v["arms"][arm].get("regrets") for v in verdicts):
            return {"word": f"{NONE}: what a parabola missed is not in intervals over rungs"}
        if any(count for v in verdicts for count, _ in v["arms"][arm].get("diverged", ())):
            return {"word": f"{NONE}: some runs diverged"}
        by_rung = dict(zip(values, (v["arms"][arm]["verdict"] for v in verdicts), strict=True))
        if refused := [f"{value:g}" for value, word in by_rung.items() if word == REFUSED]:
            return {"word": f"{NONE}: refused at {', '.join(refused)}"}
        if set(by_rung.values()) == {IDENTICAL}:
            return {"word": f"{IDENTICAL}: the change did nothing"}
        differences = [_differences(v["arms"][arm]) for v in verdicts]
        level = _level(verdicts, arm)
        shared = (differences, first["margin"], len(first["arms"]), level)
        if key == SPLITS:
            verdict = over_splits(*shared)
        else:
            verdict = over_scales(places, *shared)
            axes = shared_axes(costs[first["base"]], costs[arm], studies[0].record["counted"])
            verdict["multipliers"] = multipliers(verdicts, arm, axes, level / len(first["arms"]))
        words = {
            value: v["arms"][arm]["words"]
            for value, v in zip(values, verdicts, strict=True)
            if v["arms"][arm]["verdict"] == CANNOT_TELL
        }
        if words:
            where = ", ".join(f"{value:g}" for value in words)
            verdict.pop("multipliers", None)
            return verdict | {"word": f"{next(iter(words.values()))} (at {where})"}
        return verdict

    scores = [v["values"][v["base"]]["by_seed"] for v in verdicts]
    return {
        "question": first["question"],
        "key": key,
        "values": list(values),
        "axis": axis,
        "places": places,
        "metric": first["metric"],
        "margin": first["margin"],
        "base": first["base"],
        "by_seed": {
            name: [v["values"][name]["by_seed"] for v in verdicts]
            for name in (first["base"], *first["arms"])
        },
        "scores": [v["values"][v["base"]]["mean"] for v in verdicts],
        "forecast_of_score": {} if key == SPLITS else forecast_of_scores(places, scores),
        "arms": {arm: over_rungs(arm) for arm in first["arms"]},
    }


def forecast(
    smaller: Sequence[Study], largest: Mapping[str, Mapping[str, Any]], key: str, values: Any
) -> dict[str, Any]:
    """Forecasts the largest rung of a ladder from the others alone.

    Args:
      smaller: studies of the other rungs, judged.
      largest: arm -> cost, of the largest rung, which need not have been trained.
      key: of the config.
      values: of all rungs, ascending.
    Returns:
      axis, places; score of the base; of each arm its difference and its multipliers.
    """
    verdicts = [study.verdicts() for study in smaller]
    first, counted = verdicts[0], smaller[0].record["counted"]
    costs = {arm: [*its, largest[arm]] for arm, its in _costs(smaller).items()}
    axis, places = axis_of(costs[first["base"]], counted, key, values)
    scores = [v["values"][v["base"]]["by_seed"] for v in verdicts]
    arms = {}
    for arm in first["arms"]:
        if any(v["arms"][arm]["refusals"] for v in verdicts):  # cells that failed, say
            arms[arm] = {"difference": {}, "multipliers": {}}
            continue
        differences = [_differences(v["arms"][arm]) for v in verdicts]
        level = _level(verdicts, arm) / len(first["arms"])
        axes = shared_axes(costs[first["base"]], costs[arm], counted)
        arms[arm] = {
            "difference": forecast_of_differences(places, differences, level),
            "multipliers": multipliers(verdicts, arm, axes, level),
        }
    return {
        "key": key,
        "values": list(values),
        "axis": axis,
        "places": places,
        "seeds": first["seeds"],
        "score": forecast_of_scores(places, scores),
        "arms": arms,
    }


def _costs(studies: Sequence[Study]) -> dict[str, Costs]:
    return {arm: [study.arms[arm]["cost"] for study in studies] for arm in studies[0].arms}


def _level(verdicts: Sequence[Mapping[str, Any]], arm: str) -> float:
    return min(v["arms"][arm].get("level", v["level"]) for v in verdicts)


def _differences(arm: Mapping[str, Any]) -> dict[int, float]:
    return dict(zip(arm.get("seeds", ()), arm.get("differences", ()), strict=False))


# ---------------------------------------------------------------- what effects are seen over


def axis_of(
    costs: Costs, counted: str, key: str, values: Sequence[float]
) -> tuple[str, list[float]]:
    """Returns what effects are seen over, and where the rungs lie on it.

    That is what the options change of the base: its operations where parameters and what training
    counts both grow; else parameters (outside embeddings), else what training counts, else its
    operations; the option itself where none of them grows with it.
    """
    axes = _growing(costs, counted)
    several = "parameters" in axes and counted in axes and _OPERATIONS in axes
    for name in (_OPERATIONS,) if several else axes:
        return name, axes[name]
    return key, [float(value) for value in values]


_OPERATIONS = "training operations"


def _growing(costs: Costs, counted: str) -> dict[str, list[float]]:
    """Axes on which every rung lies above the one before."""
    axes = {
        "parameters": [cost["without_embeddings"] for cost in costs],
        counted: [cost["counted"] for cost in costs],
        _OPERATIONS: [cost["flops"] * cost["counted"] for cost in costs],
    }
    return {
        name: [float(value) for value in places]
        for name, places in axes.items()
        if all(0 < before < after for before, after in itertools.pairwise(places))
    }


def shared_axes(
    base: Costs, arm: Costs, counted: str
) -> dict[str, tuple[list[float], list[float]]]:
    """Axes on which base and arm grow, and where the rungs of both lie."""
    ours, theirs = _growing(arm, counted), _growing(base, counted)
    return {name: (theirs[name], ours[name]) for name in theirs if name in ours}


def multipliers(
    verdicts: Sequence[Mapping[str, Any]],
    arm: str,
    axes: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    level: float,
) -> dict[str, dict[str, Any]]:
    """Returns axis -> how much of the base's parameters, tokens or operations an arm is worth.

    Args:
      verdicts: of the rungs; of all but the largest, it is a forecast for that one.
      arm: its name.
      axes: where the rungs of base and arm lie on each.
      level: 1 minus the coverage of the intervals.
    Returns:
      What a Multiplier holds; {} where scores follow no power law: there are too few rungs or
      seeds, the metric is no error, or the base does not get better.
    """
    first, scores = verdicts[0], {}
    is_a_share = first["metric"].endswith("accuracy")
    if first["larger_is_better"] and not is_a_share:
        return {}
    for name in (first["base"], arm):
        by_rung = [v["values"][name]["by_seed"] for v in verdicts]
        scores[name] = [{s: y for s, y in rung.items() if y is not None} for rung in by_rung]
    seeds = set.intersection(*(set(rung) for its in scores.values() for rung in its))
    base, its = (
        np.array([[rung[s] for s in sorted(seeds)] for rung in scores[name]], float)
        for name in (first["base"], arm)
    )
    if is_a_share:
        base, its = 1 - base, 1 - its
    count, worth = len(verdicts), {}
    for axis, (theirs, ours) in axes.items():
        ahead = float(ours[-1]) if len(ours) > count else None
        places = (np.asarray(theirs[:count]), np.asarray(ours[:count]))
        estimate = multiplier_of(*places, base, its, level, at=ahead)
        if estimate is not None:
            rejected = estimate.fit_p is not None and estimate.fit_p < _LAW_REJECTED
            worth[axis] = {**estimate._asdict(), "is_rejected": rejected}
    return worth

"""From a study's cells to its verdicts, and when to refuse one.

The words better, worse, no different, ... are decided in inference/statistics.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import inside, replace
from transformer_jax.studies.asking.cells import (
    DIVERGED,
    DONE,
    Cell,
    key_of,
    read_details,
)
from transformer_jax.studies.asking.study import Study, as_plain
from transformer_jax.studies.inference import statistics
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.judging.breakdowns import taken_apart
from transformer_jax.studies.judging.comparability import computed_otherwise, scored_otherwise


def judge(study: Study) -> dict[str, Any]:
    """Compares every arm with the base, writes verdicts.json and notes the look.

    Returns:
      What verdicts.json holds.
    """
    sealed, metric = study.sealed, study.metric
    arms = [name for name in study.arms if name != study.base]
    outcomes = {name: _outcomes(study, name, metric) for name in study.arms}
    refusals = {name: _refusals(study, name) for name in arms}
    fit = {name: outcomes[name] for name in arms if not refusals[name]}
    seeds = [seed for seed in study.seeds if seed in outcomes[study.base]]
    cells = sorted(arm["hash"] for arm in study.arms.values())
    drawn = {(tuple(look["seeds"]), tuple(look["cells"])): None for look in study.looks()}
    earlier = [len(shown) for shown, of in drawn if (list(shown), list(of)) != (seeds, cells)]
    level = statistics.level_of_look(len(seeds), sealed["looks"], earlier)
    family = len([name for name in sealed["arms"] if name != study.base])
    by_arm = decide(sealed, study.base, outcomes, refusals, level)
    each = statistics.FOR_MEANS * level / max(family, len(arms))  # that of an arm's interval
    for name in fit:
        by_arm[name]["beyond_this_text"] = _beyond(study, name, by_arm[name]["seeds"], each)
    verdicts = {
        "question": sealed["question"],
        "prediction": sealed["prediction"],
        "metric": sealed["metric"],
        "larger_is_better": sealed["larger_is_better"],
        "margin": sealed["margin"],
        "base": study.base,
        "seal": study.record["seal"],
        "exploratory": study.record["exploratory"],
        "seeds": seeds,
        "look": len(earlier) + 1,
        "level": level,
        "contrasts": max(family, len(arms)),
        "tuned": bool(sealed["tuning"]),
        "values": {name: _summary(outcomes[name]) for name in study.arms},
        "arms": {name: by_arm[name] for name in arms},
        "also": {
            name: _evaluated_otherwise(study, key_of(changes), level)
            for name, changes in sealed.get("also", {}).items()
        },
        **taken_apart(study),
    }
    if fit and any(value["n"] for value in verdicts["values"].values()):
        words = {name: arm["words"] for name, arm in by_arm.items()}
        look = {"seeds": seeds, "cells": cells, "look": len(earlier) + 1, "level": level}
        study.add_look({**look, "verdicts": words})
    replace(study.path, "verdicts.json", json.dumps(verdicts, indent=1) + "\n")
    return verdicts


def decide(
    sealed: Mapping[str, Any],
    base: str,
    outcomes: Mapping[str, dict[int, Outcome]],
    refusals: Mapping[str, list[str]],
    level: float,
) -> dict[str, dict[str, Any]]:
    """Returns what is said of each arm, from its scores alone.

    Args:
      sealed: what was asked.
      base: name of the arm that others are compared with.
      outcomes: arm -> seed -> outcome.
      refusals: arm -> why it gets no verdict.
      level: of this look.
    """
    fit = {name: outcomes[name] for name, reasons in refusals.items() if not reasons}
    family = len([name for name in sealed["arms"] if name != base])
    asked = (sealed["margin"], sealed["larger_is_better"], level, family)
    found = {c.arm: as_plain(c) for c in statistics.compare(outcomes[base], fit, *asked)}
    for name, reasons in refusals.items():
        if reasons:
            words = f"refused: {reasons[0]}"
            found[name] = {"arm": name, "verdict": statistics.REFUSED, "words": words}
        else:
            is_identical = found[name]["verdict"] == statistics.IDENTICAL
            if is_identical and _is_perfect(outcomes[name], sealed["metric"]):
                found[name]["words"] = "identical: every answer of both is right"
            found[name]["words"] += "" if sealed["tuning"] else _untuned(found[name]["verdict"])
        found[name]["refusals"] = reasons
    return found


def _is_perfect(outcomes: dict[int, Outcome], metric: str) -> bool:
    """Whether no score could be better, so that equal ones say nothing against the change."""
    return metric.endswith("accuracy") and all(o.value == 1 for o in outcomes.values())


def _untuned(verdict: str) -> str:
    """What limits a verdict between arms that were not tuned."""
    gives_one = verdict in (statistics.BETTER, statistics.WORSE, statistics.SAME)
    limited = gives_one or verdict in (statistics.UNRESOLVED, statistics.UNSTABLE)
    return ", at the base's hyper-parameters" if limited else ""


def _evaluated_otherwise(study: Study, key: str, level: float) -> dict[str, dict[str, Any]]:
    """Arm -> mean of a further evaluation, and the paired difference from the base."""
    sign = 1.0 if study.sealed["larger_is_better"] else -1.0
    scores = {
        arm: {seed: score for seed in study.seeds if (score := _score(study, arm, seed, key))}
        for arm in study.arms
    }
    found = {}
    for arm, by_seed in scores.items():
        base = scores[study.base]
        d = [sign * (by_seed[seed] - base[seed]) for seed in by_seed if seed in base]
        paired = statistics.paired_interval(d or [math.nan], level)
        found[arm] = {
            "mean": float(np.mean(list(by_seed.values()))) if by_seed else None,
            "difference": paired.mean,
            "interval": paired.interval,
        }
    return as_plain(found)


def _score(study: Study, arm: str, seed: int, key: str) -> float | None:
    details = read_details(study.cell(arm, seed))
    return details.get("also", {}).get(key, {}).get(study.metric)


def _outcomes(study: Study, arm: str, metric: str) -> dict[int, Outcome]:
    """Seed -> outcome of the cells that have one: missing and failed cells have none."""
    cells = [study.cell(arm, seed) for seed in study.seeds]
    return {cell.seed: cell.outcome(metric) for cell in cells if cell.state() in (DONE, DIVERGED)}


def _summary(outcomes: dict[int, Outcome]) -> dict[str, Any]:
    values = [o.value for o in outcomes.values() if o.value is not None]
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {
        "n": len(values),
        "mean": float(np.mean(values)) if values else None,
        "deviation": deviation,
        "by_seed": {str(seed): outcome.value for seed, outcome in outcomes.items()},
        "diverged": sum(outcome.diverged for outcome in outcomes.values()),
    }


def _refusals(study: Study, arm: str) -> list[str]:
    """Why an arm gets no verdict beside the base; empty where it may."""
    found = [f"{key} changed after the first cell" for key in study.record["refused"]]
    for name in (arm, study.base):
        refused = study.arms[name].get("tuning", {}).get("refused")
        found += [f"{name}: {refused}"] if refused else []
    cells = {name: [study.cell(name, s) for s in study.seeds] for name in (arm, study.base)}
    states = {name: [cell.state() for cell in group] for name, group in cells.items()}
    for name, group in states.items():
        lost = [state for state in group if state not in (DONE, DIVERGED)]
        if lost:
            told = ", ".join(f"{lost.count(state)} {state}" for state in dict.fromkeys(lost))
            found.append(f"cells of {name!r} are missing: {told}")
    changed = study.arms[arm].get("changes", {})
    done = [
        (RunDirectory(ours.path), RunDirectory(theirs.path))
        for ours, theirs in zip(cells[arm], cells[study.base], strict=True)
        if ours.state() == DONE and theirs.state() == DONE
    ]
    # Within pairs, and between the seeds of the base.
    for pair in [*done, *((theirs, done[0][1]) for _, theirs in done[1:])]:
        found += scored_otherwise(*pair, study.metric, changed)
        found += computed_otherwise(*pair, changed, cells=True)
    return list(dict.fromkeys(found))


# ---------------------------------------------------------------- new text


def _beyond(study: Study, arm: str, seeds: Sequence[int], level: float) -> dict[str, Any] | None:
    """Whether the difference holds for new text too: seeds and sequences crossed."""
    if study.metric not in ("loss", "bits_per_byte", "accuracy") or len(seeds) < 3:
        return None
    rows = []
    for seed in seeds:
        ours = sequences_of(study.cell(arm, seed), study.metric)
        theirs = sequences_of(study.cell(study.base, seed), study.metric)
        if ours is None or theirs is None or ours.shape != theirs.shape:
            return None
        rows.append(ours - theirs)
    if rows[0].size < 2:
        return None
    sign = 1.0 if study.sealed["larger_is_better"] else -1.0
    low, high = statistics.beyond_this_text(sign * np.stack(rows), level)
    return {"interval": [low, high], "holds": bool(low > 0 or high < 0)}


def sequences_of(cell: Cell, metric: str) -> np.ndarray | None:
    """Scores of each test sequence, [q], scaled so that their mean is the metric."""
    path = inside(cell.path, "sequences.npz")
    try:
        with np.load(path) as stored:
            columns = {
                name.removeprefix("test/"): stored[name]
                for name in stored.files
                if name.startswith("test/")
            }
    except (OSError, ValueError):
        return None
    weight = columns["weight"]
    if metric == "accuracy":
        return columns["correct"] / weight.mean()
    if metric == "bits_per_byte":
        return columns["loss"] / math.log(2) / columns["bytes"].mean()
    return columns["loss"] / weight.mean()

"""What studies of the same arms on several data sets say together.

Scores are put in one unit, the way from a guess to a simple method: 0 is the score of the most
frequent token or class, 1 that of the method that a base has to beat.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.studies.asking.gate import METHODS
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.inference.many_tasks import (
    FEWEST,
    FEWEST_CELLS,
    aggregates,
    performance_profile,
    random_effects,
)
from transformer_jax.studies.inference.statistics import FOR_MEANS, read_off
from transformer_jax.studies.inference.words import (
    CANNOT_TELL,
    IDENTICAL,
    NO_VERDICT,
    NOT_PRIMARY,
    REFUSED,
)
from transformer_jax.studies.judging.adequacy import best_and_guess

_THRESHOLDS = 61  # of a performance profile


class Unit(NamedTuple):
    """What scores of one data set are measured in.

    Attributes:
      guess: score of a guess that reads nothing: 0.
      simple: score of the simple method: 1.
      method: its name.
    """

    guess: float
    simple: float
    method: str

    def of(self, score: float) -> float:
        """A score in this unit, larger is better."""
        return (score - self.guess) / (self.simple - self.guess)


def unit_of(study: Study) -> Unit | str:
    """Returns the unit of a study's metric, or why there is none."""
    baselines = study.record.get("baselines") or {}
    gate = baselines.get("gate")
    if gate is None:
        return "no simple method is known there"
    simple = baselines["scores"][gate["method"]]["test"].get(study.metric)
    guess = best_and_guess(baselines["scores"], study.metric)[1]
    if simple is None or guess is None:
        return f"no {study.metric} of {METHODS[gate['method']]} or of a guess is known there"
    if not (simple > guess if study.sealed["larger_is_better"] else simple < guess):
        return f"{METHODS[gate['method']]} is no better than a guess there"
    return Unit(guess, simple, gate["method"])


def judge_suite(studies: Mapping[str, Study]) -> dict[str, Any]:
    """Returns what judged studies, by the name of their data set, say together.

    An arm gets a word where three data sets or more can tell. A
    data set cannot tell where its base has not learned, or where the arm changes nothing; one on
    which runs diverged, or a verdict was refused, takes the word away, since the data sets that
    are left would be those that suit the arm.
    """
    verdicts = {name: study.verdicts() for name, study in studies.items()}
    units = {name: unit_of(study) for name, study in studies.items()}
    first = next(iter(verdicts.values()))
    names = list(dict.fromkeys(arm for judged in verdicts.values() for arm in judged["arms"]))
    return {
        "question": first["question"],
        "base": first["base"],
        "configs": {name: study.record["config_path"] for name, study in studies.items()},
        "data": {name: _data(verdicts[name], units[name]) for name in studies},
        "arms": {arm: _pooled(arm, verdicts, units, len(names)) for arm in names},
    }


def _data(verdicts: Mapping[str, Any], unit: Unit | str) -> dict[str, Any]:
    base = verdicts["values"][verdicts["base"]]["mean"]
    about = {key: verdicts[key] for key in ("metric", "margin", "seeds")} | {"base": base}
    if isinstance(unit, str):
        return about | {"no_unit": unit}
    score = None if base is None else unit.of(base)
    return about | {"unit": unit._asdict(), "score": score}


def _pooled(
    arm: str,
    verdicts: Mapping[str, Mapping[str, Any]],
    units: Mapping[str, Unit | str],
    family: int,
) -> dict[str, Any]:
    rows = {name: judged["arms"][arm] for name, judged in verdicts.items() if arm in judged["arms"]}
    over_all: dict[str, Any] = {"data": {}, "left_out": {}}
    blocked = [NOT_PRIMARY] if any(row["verdict"] == NOT_PRIMARY for row in rows.values()) else []
    for name, row in rows.items():
        unit, words = units[name], row["words"]
        over_all["data"][name] = {key: row.get(key) for key in ("words", "mean", "interval")}
        if any(count for count, _ in row.get("diverged", ())):
            blocked.append(f"some runs on {name} diverged")
        elif row["verdict"] == NOT_PRIMARY:
            continue
        elif row["verdict"] in (REFUSED, NO_VERDICT):
            blocked.append(f"{name}: {words}")
        elif row.get("regrets"):
            blocked.append(f"{name}: what a parabola missed is not in intervals over data sets")
        elif isinstance(unit, str):
            over_all["left_out"][name] = unit
        elif row["verdict"] in (CANNOT_TELL, IDENTICAL):
            over_all["left_out"][name] = words
        else:
            size = abs(unit.simple - unit.guess)
            over_all["data"][name]["effect"] = row["mean"] / size
            over_all["data"][name]["error"] = row["standard_error"] / size
            over_all["data"][name]["differences"] = [d / size for d in row["differences"]]
    kept = {name: row for name, row in over_all["data"].items() if "effect" in row}
    if NOT_PRIMARY in blocked:
        return over_all | {"word": f"{NOT_PRIMARY}: no word"}
    if len(kept) < FEWEST:
        why = f"{len(kept)} data sets can tell, expected {FEWEST} or more"
        return over_all | {"word": f"{NO_VERDICT}: {(blocked or [why])[0]}"}
    level = FOR_MEANS * min(rows[name]["level"] for name in kept) / family
    effects, errors = ([row[key] for row in kept.values()] for key in ("effect", "error"))
    pooled = random_effects(effects, errors, level)
    for row, shrunken, bounds in zip(
        kept.values(), pooled.shrunken, pooled.shrunken_intervals, strict=True
    ):
        row |= {"shrunken": shrunken, "shrunken_interval": bounds}
    margins = [verdicts[name]["margin"] / abs(u.simple - u.guess) for name, u in _of(units, kept)]
    margin = float(np.mean(margins))
    word = read_off(*pooled.interval, float(f"{margin:.2g}"))[1]
    if blocked:
        word = f"{NO_VERDICT}: {blocked[0]}"
    judged = pooled._asdict()
    del judged["shrunken"], judged["shrunken_intervals"]
    about = {"word": word, "margin": margin, "level": level, **judged}
    return over_all | about | _aggregated(arm, verdicts, _of(units, kept))


def _of(units: Mapping[str, Unit | str], kept: Mapping[str, Any]) -> list[tuple[str, Unit]]:
    return [(name, unit) for name, unit in units.items() if name in kept and isinstance(unit, Unit)]


def _aggregated(
    arm: str, verdicts: Mapping[str, Mapping[str, Any]], units: list[tuple[str, Unit]]
) -> dict[str, Any]:
    """Aggregates of scores, of the seeds that all have; {} where there are too few cells."""
    scores = {}
    for which in (arm, verdicts[units[0][0]]["base"]):
        by_seed = [
            {s: unit.of(v) for s, v in verdicts[name]["values"][which]["by_seed"].items()}
            for name, unit in units
        ]
        shared = set.intersection(*(set(seeds) for seeds in by_seed))
        scores[which] = np.array([[row[s] for s in sorted(shared, key=int)] for row in by_seed])
    ours, theirs = scores.values()
    if ours.size < FEWEST_CELLS:
        return {}
    both = np.concatenate([ours, theirs])
    thresholds = np.linspace(float(both.min()), float(both.max()), _THRESHOLDS)
    profiles = {name: performance_profile(its, thresholds).tolist() for name, its in scores.items()}
    return {
        "cells": ours.size,
        "aggregates": aggregates(ours, theirs)._asdict(),
        "profiles": {"thresholds": thresholds.tolist(), "shares": profiles},
    }

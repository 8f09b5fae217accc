"""From a study's cells to its verdicts, and when to refuse one.

The words better, worse, no different, ... are decided in inference/statistics.
"""

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.options.marks import arguments_of_metric
from transformer_jax.options.task_traits import traits_of
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import as_plain, inside, write_json
from transformer_jax.studies.asking.cells import DONE, OUTCOMES, Cell, key_of, read_details
from transformer_jax.studies.asking.register import LOOK, Earlier, Register, pooled
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.inference import statistics
from transformer_jax.studies.inference.new_text import beyond_this_text, by_cluster
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.tuned import Regrets
from transformer_jax.studies.judging.adequacy import cannot_tell, whether_learned
from transformer_jax.studies.judging.breakdowns import taken_apart
from transformer_jax.studies.judging.budgets import over_budgets
from transformer_jax.studies.judging.comparability import (
    RunFacts,
    computed_otherwise,
    scored_otherwise,
)
from transformer_jax.studies.judging.decision import Evidence, decide, family_of, share_of_level
from transformer_jax.studies.judging.trend import trend_of
from transformer_jax.studies.judging.trials import regret_of, trials_behind

_PARTS = 8  # of a text with fewer documents: few and long, so that they are all but independent


def judge_study(study: Study) -> dict[str, Any]:
    """Compares every arm with the base, writes verdicts.json and notes the look.

    Returns:
      What verdicts.json holds.
    """
    sealed, register = study.sealed, Register(study.root)
    arms = [name for name in study.arms if name != study.base]
    outcomes = {name: _outcomes(study, name) for name in study.arms}
    refusals = {name: _refusals(study, name) for name in arms}
    seeds = [seed for seed in study.seeds if seed in outcomes[study.base]]
    cells = sorted(
        part["hash"]
        for arm in study.arms.values()
        for part in (arm, *arm.get("budgets", {}).values())
    )
    drawn = {(tuple(look["seeds"]), tuple(look["cells"])): None for look in study.looks()}
    earlier = [len(shown) for shown, of in drawn if (list(shown), list(of)) != (seeds, cells)]
    scores = Scores(outcomes, refusals, _learned(study), _scores_of_budgets(study))
    same = {name: _computes_the_same(study, name) for name in arms}
    by_arm, level, trend = decided(study, register, scores, seeds, earlier, same)
    family = family_of(sealed, arms)
    for name in arms:
        if not refusals[name]:
            of = max(family, by_arm[name].get("family", 0))
            each = statistics.FOR_MEANS * by_arm[name]["level"] / of  # that of its interval
            own = [seed for seed in by_arm[name]["seeds"] if seed in study.seeds]
            by_arm[name]["beyond_this_text"] = _beyond(study, name, own, each)
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
        "coverage": 1 - statistics.FOR_MEANS * level,
        "contrasts": family,
        "tuned": bool(sealed["tuning"]),
        "learned": scores.learned,
        "values": {name: _summary(outcomes[name]) for name in study.arms},
        "arms": {name: by_arm[name] for name in arms},
        "also": {
            name: _evaluated_otherwise(study, key_of(changes), level)
            for name, changes in sealed.get("also", {}).items()
        },
        **({"budgets": scores.budgets} if scores.budgets else {}),
        **({"trend": trend} if trend else {}),
        **taken_apart(study),
    }
    # Arms that stopped were shown at their own look, and are shown no other.
    shown = [name for name in arms if not refusals[name] and name not in study.stopped]
    if shown and any(value["n"] for value in verdicts["values"].values()):
        words = {name: arm["words"] for name, arm in by_arm.items()}
        look = {"seeds": seeds, "cells": cells, "look": len(earlier) + 1, "level": level}
        verdicts["registered"] = register.note(look_of(study, verdicts))
        study.add_look({**look, "verdicts": words})
    write_json(study.path, "verdicts.json", verdicts)
    return verdicts


class Scores(NamedTuple):
    """What a study is decided from.

    Attributes:
      outcomes: arm -> seed -> outcome.
      refusals: arm -> why it gets no verdict; without the base.
      learned: whether the base has, see adequacy.
      budgets: what shorter budgets are judged by.
    """

    outcomes: Mapping[str, Mapping[int, Outcome]]
    refusals: Mapping[str, list[str]]
    learned: dict[str, Any] | None
    budgets: dict[str, Any]


def decided(
    study: Study,
    register: Register,
    scores: Scores,
    seeds: Sequence[int],
    earlier: Sequence[int],
    computes_the_same: Mapping[str, bool | None],
) -> tuple[dict[str, dict[str, Any]], float, dict[str, Any] | None]:
    """Returns what is said of each arm, the level of this look, and what is said of a trend.

    Args:
      study: whose cells need not be there.
      register: of earlier looks at the same contrasts.
      scores: of all arms.
      seeds: of this look.
      earlier: how many seeds earlier looks of this study had.
      computes_the_same: arm -> see Evidence.
    """
    sealed, contrasts = study.sealed, study.contrasts()
    outcomes, refusals, learned, budgets = scores
    baselines = study.record.get("baselines")
    evidence, told = {}, {}
    hashes = {name: arm["hash"] for name, arm in study.arms.items()}
    for name in refusals:
        looks, told[name] = [], {}
        if name in contrasts:
            its = study.seeds_of(name) if name in study.stopped else seeds
            looks = register.looks(contrasts[name], "same", study.identity, its, hashes)
            related = register.looks(contrasts[name], "related", study.identity)
            told[name] = {"related": [look.told() for look in related]}
        same = computes_the_same[name]
        evidence[name], has_earlier = evidence_of(study, name, outcomes, looks, earlier, same)
        cells = hashes[study.base], hashes[name]
        told[name]["asked_before"] = [
            look.told() | {"counts": look.is_of(cells, sealed.get("target"))}
            for look in (looks if has_earlier else ())
        ]
    by_arm = decide(sealed, evidence, refusals)
    cannot_tell(by_arm, outcomes, sealed, learned, baselines)
    for name, arm in by_arm.items():
        arm |= {"stopped": study.stopped[name]} if name in study.stopped else {}
        arm |= trials_behind(study, name, arm.get("mean")) | told[name]
    over_budgets(by_arm, budgets, sealed, baselines)
    level = statistics.level_of_look(len(seeds), sealed["looks"], earlier) * share_of_level(sealed)
    regrets = {name: regret_of(study, name) for name in study.arms}
    trend = trend_of(sealed, outcomes, refusals, level, regrets, learned, baselines, contrasts)
    return by_arm, level, trend


def evidence_of(
    study: Study,
    arm: str,
    outcomes: Mapping[str, Mapping[int, Outcome]],
    looks: Sequence[Earlier],
    own: Sequence[int],
    computes_the_same: bool | None,
) -> tuple[Evidence, bool]:
    """Returns what an arm is judged by, and whether looks at other data have been there.

    Args:
      study: of which it is.
      arm: its name.
      outcomes: arm -> seed -> outcome.
      looks: at the same contrast, in other studies.
      own: seeds of earlier looks of this study.
      computes_the_same: see Evidence.
    """
    sealed, of = study.sealed, study.seeds_of(arm)
    # An arm that stopped keeps the base that it was judged beside.
    base = {seed: its for seed, its in outcomes[study.base].items() if seed in of}
    hashes = (study.arms[study.base]["hash"], study.arms[arm]["hash"])
    base, its, counts = pooled(looks, base, outcomes[arm], hashes, sealed.get("target"))
    planned, before = sealed["looks"], study.looks_before(arm, own)
    if counts:  # after looks in other studies none is a planned one
        level = statistics.ALPHA / (len(planned) + 1) * 2.0 ** -(len(counts) + len(before))
    else:
        level = statistics.level_of_look(len(base.keys() & its.keys()), planned, before)
    level *= share_of_level(sealed)
    family = max((look.family for look in looks), default=0)
    regrets = Regrets(regret_of(study, study.base), regret_of(study, arm))
    return Evidence(base, its, level, computes_the_same, regrets, family), bool(counts)


def look_of(study: Study, verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a register keeps of verdicts that are shown; an arm that is refused has none."""
    contrasts = study.contrasts()
    return {
        **study.about(LOOK),
        "seeds": verdicts["seeds"],
        "level": verdicts["level"],
        "family": verdicts["contrasts"],
        "target": study.sealed.get("target"),
        "cells": {name: arm["hash"] for name, arm in study.arms.items()},
        "arms": {
            name: {**contrasts[name]._asdict(), "words": arm["words"], "mean": arm.get("mean")}
            for name, arm in verdicts["arms"].items()
            if name in contrasts and not arm["refusals"] and "stopped" not in arm
        },
        "outcomes": {name: value["outcomes"] for name, value in verdicts["values"].items()},
    }


def _scores_of_budgets(study: Study) -> dict[str, Any]:
    """What shorter budgets are judged by, the longest first: updates, outcomes and refusals."""
    scores = {}
    for share in reversed(study.sealed.get("budgets", ())):
        budget = f"{share:g}"
        if all(budget in arm.get("budgets", {}) for arm in study.arms.values()):
            outcomes = {name: _outcomes(study, name, budget) for name in study.arms}
            scores[budget] = {
                "updates": {n: arm["budgets"][budget]["updates"] for n, arm in study.arms.items()},
                "outcomes": {
                    name: {str(seed): list(outcome) for seed, outcome in by_seed.items()}
                    for name, by_seed in outcomes.items()
                },
                "refusals": {
                    name: _refusals(study, name, budget)
                    for name in study.arms
                    if name != study.base
                },
                "learned": _learned(study, budget),
            }
    return scores


def _learned(study: Study, budget: str = "") -> dict[str, Any] | None:
    """The gate and what came of it; None of older studies, and where there is none."""
    gate = study.record.get("baselines", {}).get("gate")
    if gate is None:
        return None
    means = (study.cell(study.base, seed, budget).means() for seed in study.seeds)
    values = [value for mean in means if (value := mean.get(gate["metric"])) is not None]
    return whether_learned(gate, values)


def _evaluated_otherwise(study: Study, key: str, level: float) -> dict[str, dict[str, Any]]:
    """Arm -> scores of a further evaluation, and the paired difference from the base."""
    sign = 1.0 if study.sealed["larger_is_better"] else -1.0
    scores = {
        arm: {s: y for s in study.seeds_of(arm) if (y := _score(study, arm, s, key)) is not None}
        for arm in study.arms
    }
    verdicts = {}
    for arm, by_seed in scores.items():
        base = scores[study.base]
        d = [sign * (by_seed[seed] - base[seed]) for seed in by_seed if seed in base]
        paired = statistics.paired_interval(d or [math.nan], level)
        verdicts[arm] = {
            "mean": float(np.mean(list(by_seed.values()))) if by_seed else None,
            "by_seed": by_seed,
            "difference": paired.mean,
            "interval": paired.interval,
        }
    return as_plain(verdicts)


def _score(study: Study, arm: str, seed: int, key: str) -> float | None:
    details = read_details(study.cell(arm, seed))
    return details.get("also", {}).get(key, {}).get(study.metric)


def _outcomes(study: Study, arm: str, budget: str = "") -> dict[int, Outcome]:
    """Seed -> outcome of the cells that have one: missing and failed cells have none."""
    cells = [study.cell(arm, seed, budget) for seed in study.seeds_of(arm)]
    asked = (study.metric, study.sealed.get("target"))
    return {cell.seed: cell.outcome(*asked) for cell in cells if cell.state() in OUTCOMES}


def _computes_the_same(study: Study, arm: str) -> bool | None:
    """Whether an arm gives every test example the base's loss, in every seed."""
    for seed in study.seeds_of(arm):
        ours, theirs = (losses_of(study.cell(name, seed)) for name in (arm, study.base))
        if ours is None or theirs is None:
            return None
        if not np.array_equal(ours, theirs):
            return False
    return True


def _summary(outcomes: dict[int, Outcome]) -> dict[str, Any]:
    values = [o.value for o in outcomes.values() if o.value is not None]
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return {
        "n": len(values),
        "mean": float(np.mean(values)) if values else None,
        "deviation": deviation,
        "by_seed": {str(seed): outcome.value for seed, outcome in outcomes.items()},
        "outcomes": {str(seed): list(outcome) for seed, outcome in outcomes.items()},
        "diverged": sum(outcome.diverged for outcome in outcomes.values()),
    }


def _refusals(study: Study, arm: str, budget: str = "") -> list[str]:
    """Why an arm gets no verdict beside the base; empty where it may."""
    refusals = [f"{key} changed after the first cell" for key in study.record["refused"]]
    for name in (arm, study.base):
        refused = study.arms[name].get("tuning", {}).get("refused")
        refusals += [f"{name}: {refused}"] if refused else []
    seeds = study.seeds_of(arm)
    cells = {name: [study.cell(name, s, budget) for s in seeds] for name in (arm, study.base)}
    states = {name: [cell.state() for cell in group] for name, group in cells.items()}
    for name, group in states.items():
        lost = [state for state in group if state not in OUTCOMES]
        if lost:
            counts = ", ".join(f"{lost.count(state)} {state}" for state in dict.fromkeys(lost))
            refusals.append(f"cells of {name!r} are missing: {counts}")
        scored = [cell for cell in cells[name] if cell.state() == DONE]
        without = [str(cell.seed) for cell in scored if not _has_score(cell, study.metric)]
        if without:
            refusals.append(f"{name!r} has no {study.metric} for seed {', '.join(without)}")
    changed = study.arms[study.base].get("changes", {}) | study.arms[arm].get("changes", {})
    done = [
        tuple(RunFacts.of(RunDirectory(cell.path)) for cell in pair)
        for pair in zip(cells[arm], cells[study.base], strict=True)
        if all(cell.state() == DONE for cell in pair)
    ]
    by_curve = study.sealed.get("target") is not None
    by_curve |= "curve" in arguments_of_metric(study.metric)
    # Within pairs, and between the seeds of the base.
    for pair in [*done, *((theirs, done[0][1]) for _, theirs in done[1:])]:
        refusals += scored_otherwise(*pair, study.metric, changed)
        refusals += computed_otherwise(*pair, changed, cells=True)
        every = [run.config["evaluation.every"] for run in pair]
        if by_curve and every[0] != every[1]:
            refusals.append(f"curves were looked at every {every[0]} and {every[1]} updates")
    codes = {
        cell.metric_facts().get(study.metric, {}).get("code")
        for group in cells.values()
        for cell in group
        if cell.state() == DONE
    }
    refusals += [f"{study.metric} was measured by other code"] if len(codes) > 1 else []
    return list(dict.fromkeys(refusals))


def _has_score(cell: Cell, metric: str) -> bool:
    value = cell.means().get(metric)
    return value is not None and math.isfinite(value)


# ---------------------------------------------------------------- new text


def _beyond(study: Study, arm: str, seeds: Sequence[int], level: float) -> dict[str, Any] | None:
    """Whether the difference holds for new text too: seeds and clusters of sequences crossed."""
    if study.metric not in ("loss", "bits_per_byte", "accuracy") or len(seeds) < 3:
        return None
    rows = []
    for seed in seeds:
        ours = sequences_of(study.cell(arm, seed), study.metric)
        theirs = sequences_of(study.cell(study.base, seed), study.metric)
        if ours is None or theirs is None or ours.shape != theirs.shape:
            return None
        rows.append(ours - theirs)
    clusters = _clusters_of(study.cell(study.base, seeds[0]))
    d_SQ = by_cluster(np.stack(rows), clusters)
    if d_SQ.shape[1] < 2:
        return None
    sign = 1.0 if study.sealed["larger_is_better"] else -1.0
    low, high = beyond_this_text(sign * d_SQ, level)
    holds = bool(low > 0 or high < 0)
    return {"interval": [low, high], "holds": holds, "clusters": d_SQ.shape[1]}


def _clusters_of(cell: Cell) -> np.ndarray:
    """Which test sequences belong together, [q]: those of a document, or of a part of a long text.

    Windows of one text are neighbours, whose losses go together; sentences and images are not.
    """
    columns = _columns_of(cell) or {}
    count = len(columns["loss"])
    documents = columns.get("cluster", np.zeros(count))
    if not traits_of(RunDirectory(cell.path).config().data.task).running_text:
        return np.arange(count)
    if len(np.unique(documents)) >= _PARTS:
        return documents
    return np.arange(count) * _PARTS // count


def _columns_of(cell: Cell) -> dict[str, np.ndarray] | None:
    """Loss, weight, ... of each test sequence, [q]; None where there are none."""
    path = inside(cell.path, "sequences.npz")
    try:
        with np.load(path) as stored:
            return {
                name.removeprefix("test/"): stored[name]
                for name in stored.files
                if name.startswith("test/")
            }
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return None


def losses_of(cell: Cell) -> np.ndarray | None:
    """The loss of each test sequence, [q]."""
    columns = _columns_of(cell)
    return None if columns is None else columns["loss"]


def sequences_of(cell: Cell, metric: str) -> np.ndarray | None:
    """Scores of each test sequence, [q], scaled so that their mean is the metric."""
    columns = _columns_of(cell)
    if columns is None:
        return None
    weight = columns["weight"]
    if metric == "accuracy":
        return columns["correct"] / weight.mean()
    if metric == "bits_per_byte":
        return columns["loss"] / math.log(2) / columns["bytes"].mean()
    return columns["loss"] / weight.mean()

"""From a study's cells to its verdicts, and when to refuse one.

The words better, worse, no different, ... are decided in inference/statistics.
"""

import math
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.config_files import flatten
from transformer_jax.data.tasks import traits_of
from transformer_jax.metrics import arguments_of_metric
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import inside, write_json
from transformer_jax.studies.asking.cells import DONE, OUTCOMES, Cell
from transformer_jax.studies.asking.register import Register
from transformer_jax.studies.asking.study import Study, now
from transformer_jax.studies.inference import statistics
from transformer_jax.studies.inference.new_text import beyond_this_text, by_cluster
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.judging.adequacy import cannot_tell, whether_learned
from transformer_jax.studies.judging.comparability import (
    RunFacts,
    computed_otherwise,
    scored_otherwise,
)
from transformer_jax.studies.judging.decision import Evidence, decide, family_of

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
    cells = sorted(arm["hash"] for arm in study.arms.values())
    drawn = {(tuple(look["seeds"]), tuple(look["cells"])): None for look in study.looks()}
    earlier = [len(shown) for shown, of in drawn if (list(shown), list(of)) != (seeds, cells)]
    level = statistics.level_of_look(len(seeds), sealed["looks"], earlier)
    evidence, asked_before, contrasts = {}, {}, study.contrasts()
    for name in arms:
        looks = []
        if name in contrasts:
            looks = register.earlier_looks(contrasts[name], study.identity, seeds)
        evidence[name] = Evidence(
            outcomes[study.base],
            outcomes[name],
            level_of_arm(sealed["looks"], len(seeds), earlier, len(looks)),
            _computes_the_same(study, name),
            max((look["families"][contrasts[name]] for look in looks), default=0),
        )
        asked_before[name] = [{"seeds": look["seeds"], "time": look["time"]} for look in looks]
    learned = _learned(study)
    by_arm = decide(sealed, evidence, refusals)
    cannot_tell(by_arm, outcomes, sealed, learned, study.record["baselines"])
    family = family_of(sealed, arms)
    for name, arm in by_arm.items():
        arm["asked_before"] = asked_before[name]
        if not refusals[name]:
            each = statistics.FOR_MEANS * arm["level"] / max(family, arm.get("family", 0))
            arm["beyond_this_text"] = _beyond(study, name, arm["seeds"], each)
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
        "learned": learned,
        "values": {name: _summary(outcomes[name]) for name in study.arms},
        "arms": by_arm,
        "revisions": _revisions(study),
    }
    shown = [name for name in arms if not refusals[name]]
    if shown and any(value["n"] for value in verdicts["values"].values()):
        words = {name: arm["words"] for name, arm in by_arm.items()}
        known = {name: contrasts[name] for name in shown if name in contrasts}
        look = {
            "time": now(),
            "study": study.identity,
            "seeds": seeds,
            "contrasts": known,
            "families": {known[name]: family_shown(sealed, name, arms) for name in known},
            "words": words,
        }
        verdicts["registered"] = register.note(look)
        shown_now = {"seeds": seeds, "cells": cells, "look": len(earlier) + 1, "level": level}
        study.add_look({**shown_now, "verdicts": words})
    write_json(study.path, "verdicts.json", verdicts)
    return verdicts


def family_shown(sealed: Mapping[str, Any], name: str, arms: Sequence[str]) -> int:
    """Returns of how many arms one was chosen that is asked again: of all, if it is not primary."""
    return len(arms) if name not in (sealed["primary"] or [name]) else family_of(sealed, arms)


def level_of_arm(
    planned: Sequence[int], count: int, earlier: Sequence[int], looks_elsewhere: int
) -> float:
    """Returns the level of a look at one arm.

    Args:
      planned: Number of seeds of each planned look.
      count: Seeds of this look.
      earlier: Seeds of earlier looks of this study.
      looks_elsewhere: Looks of other studies at the same contrast, after which no look is a planned
        one: each of them halves the level, and so does each look of this study.
    """
    if looks_elsewhere:
        return statistics.ALPHA / (len(planned) + 1) * 2.0 ** -(looks_elsewhere + len(earlier))
    return statistics.level_of_look(count, planned, earlier)


def _learned(study: Study) -> dict[str, Any] | None:
    """The gate and whether the base passed it; None where there is no gate."""
    gate = study.record["baselines"]["gate"]
    if gate is None:
        return None
    means = (study.cell(study.base, seed).means() for seed in study.seeds)
    values = [value for mean in means if (value := mean.get(gate["metric"])) is not None]
    return whether_learned(gate, values)


def _outcomes(study: Study, arm: str) -> dict[int, Outcome]:
    """Seed -> outcome of the cells that have one: missing and failed cells have none."""
    cells = [study.cell(arm, seed) for seed in study.seeds]
    asked = (study.metric, study.sealed["target"])
    return {cell.seed: cell.outcome(*asked) for cell in cells if cell.state() in OUTCOMES}


def _computes_the_same(study: Study, arm: str) -> bool | None:
    """Whether an arm gives every test example the base's loss, in every seed."""
    for seed in study.seeds:
        ours, theirs = (losses_of(study.cell(name, seed)) for name in (arm, study.base))
        if ours is None or theirs is None:
            return None
        if not np.array_equal(ours, theirs):
            return False
    return True


def _revisions(study: Study) -> int:
    """How many revisions of this package computed the cells."""
    runs = [RunDirectory(cell.path) for cell in study.cells() if cell.state() in OUTCOMES]
    return len({run.manifest().get("code") for run in runs})


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


def _refusals(study: Study, arm: str) -> list[str]:
    """Why an arm gets no verdict beside the base; empty where it may."""
    refusals = [f"{key} changed after the first cell" for key in study.record["refused"]]
    for name in (arm, study.base):
        refused = study.arms[name].get("tuning", {}).get("refused")
        refusals += [f"{name}: {refused}"] if refused else []
    cells = {name: [study.cell(name, s) for s in study.seeds] for name in (arm, study.base)}
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
    by_curve = study.sealed["target"] is not None
    asked = flatten(study.sealed["base_config"])["evaluation.every"]
    by_curve |= "curve" in arguments_of_metric(study.metric)
    # Within pairs, and between the seeds of the base.
    for pair in [*done, *((theirs, done[0][1]) for _, theirs in done[1:])]:
        refusals += scored_otherwise(*pair, study.metric, changed)
        refusals += computed_otherwise(*pair, changed, cells=True)
        every = [run.config["evaluation.every"] for run in pair]
        if by_curve and set(every) != {asked}:
            looked = " and ".join(map(str, dict.fromkeys(every)))
            refusals.append(f"curves were looked at every {looked} updates; asked was {asked}")
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

"""Verdicts from a study's cells, and the reasons to refuse one.

Words such as better or worse are read off an interval, see statistics.read_off; this module
can only withhold a word.
"""

import itertools
import math
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config_files import flatten
from transformer_jax.data.tasks import traits_of
from transformer_jax.metrics import arguments_of_metric
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import as_plain, inside, write_json
from transformer_jax.studies import statistics
from transformer_jax.studies.cells import DONE, OUTCOMES, Cell, deciding, device_of
from transformer_jax.studies.design import FLOORS, METHODS
from transformer_jax.studies.outcomes import (
    BETTER,
    CANNOT_TELL,
    IDENTICAL,
    REFUSED,
    SAME,
    UNRESOLVED,
    UNSTABLE,
    UNTUNED,
    WORSE,
    Outcome,
)
from transformer_jax.studies.statistics import beyond_this_text, by_cluster, paired_t
from transformer_jax.studies.study import Register, Study, now

# ---------------------------------------------------------------- comparable runs

_COUNTS = ("targets", "examples", "bytes", "sentences")
_BYTES_APART = 1e-3  # a share: parts of a text end with a token, elsewhere for two vocabularies
_WINDOWS = {"data.length", "evaluation.stride", "data.separate_documents"}


class RunFacts(NamedTuple):
    """Facts of a run that comparisons need.

    Attributes:
      manifest: manifest.json of the run.
      config: The flat config.
      evaluation: Final scores of each split with their settings; {} before the end.
    """

    manifest: dict[str, Any]
    config: dict[str, Any]
    evaluation: dict[str, Any]

    @classmethod
    def of(cls, directory: RunDirectory) -> "RunFacts":
        """Reads a run."""
        return cls(directory.manifest(), flatten(directory.config()), directory.evaluation())


def scored_otherwise(
    one: RunFacts, other: RunFacts, metric: str, changed: Collection[str] = ()
) -> list[str]:
    """Returns why a difference of two runs' scores would be meaningless.

    `metric` has no split; `changed` are the options in which the runs differ on purpose.
    """
    reasons, runs = [], (one, other)
    facts, configs = [run.manifest["data"] for run in runs], [run.config for run in runs]
    if configs[0]["data.task"] != configs[1]["data.task"]:
        reasons.append("other tasks: their losses are of different things")
    if facts[0].get("sha256") != facts[1].get("sha256"):
        reasons.append("evaluated on other data")
    by_byte = metric == "bits_per_byte"
    has_other_tokens = facts[0].get("tokenizer_sha256") != facts[1].get("tokenizer_sha256")
    if has_other_tokens and not by_byte:
        reasons.append("other tokenizers: only bits_per_byte compares")
    protocols = [run.evaluation.get("test", {}).get("protocol", {}) for run in runs]
    if not all(protocols):  # not finished: how they will be scored
        is_other = facts[0]["counts"] != facts[1]["counts"] and not has_other_tokens
    elif by_byte:
        apart = _BYTES_APART if has_other_tokens else 0.0
        sizes = [protocol.get("bytes") or 0 for protocol in protocols]
        is_other = abs(sizes[0] - sizes[1]) > apart * max(sizes)
    else:
        is_other = any(protocols[0].get(key) != protocols[1].get(key) for key in _COUNTS)
    if is_other:
        reasons.append("other targets are scored")
    windows = [_window(config) for config in configs]
    if windows[0] != windows[1] and not _WINDOWS.intersection(changed):
        reasons.append(f"evaluated otherwise: {'; '.join(windows)}")
    return reasons


def computed_otherwise(
    one: RunFacts, other: RunFacts, changed: Collection[str] = (), cells: bool = False
) -> list[str]:
    """Returns the differences of code, packages and devices between two runs.

    `changed` are the options in which the runs differ on purpose. Cells of one study were found by
    their hash, so only the packages that it covers count.
    """
    manifest, other_manifest = one.manifest, other.manifest
    reasons = []
    if cells:
        packages = [deciding(run)["packages"] for run in (manifest, other_manifest)]
    else:
        packages = [run.get("packages", {}) for run in (manifest, other_manifest)]
        same = "code" if "code" in manifest and "code" in other_manifest else "git"
        if manifest[same] != other_manifest[same]:
            reasons.append("computed by other code")
    if packages[0] != packages[1]:
        reasons.append("other packages")
    if manifest.get("members", 1) != other_manifest.get("members", 1):
        reasons.append("trained with other numbers of members at a time")
    if device_of(manifest["device"]) != device_of(other_manifest["device"]):
        reasons.append("other device")
    if manifest.get("environment", {}) != other_manifest.get("environment", {}):
        reasons.append("other flags of jax or XLA")
    for kind, word in (("initial", "weights behind initial."), ("own_rows", "code of ")):
        both = manifest.get(kind, {}).keys() & other_manifest.get(kind, {}).keys()
        reasons += [
            f"other {word}{key}" for key in both if manifest[kind][key] != other_manifest[kind][key]
        ]
    if manifest.get("legs") != other_manifest.get("legs"):
        reasons.append("one was extended, so its first updates were not of this config")
    if "model.dtype" not in changed and one.config["model.dtype"] != other.config["model.dtype"]:
        reasons.append("other precision")
    return reasons


def among(
    runs: Sequence[RunFacts], differences: Callable[..., list[str]], *arguments: Any
) -> list[str]:
    """Returns the facts in which some run differs from the first, each once."""
    pairs = (differences(other, runs[0], *arguments) for other in runs[1:])
    return list(dict.fromkeys(itertools.chain.from_iterable(pairs)))


def _window(config: dict[str, Any]) -> str:
    length = config["data.length"]
    apart = ", documents apart" if config["data.separate_documents"] else ""
    return f"context {length}, stride {config['evaluation.stride'] or length}{apart}"


# ---------------------------------------------------------------- has the base learned

_ABOUT_MODELS = (BETTER, WORSE, SAME, UNRESOLVED, IDENTICAL)  # words for what was trained
LEVEL = 0.05  # at which a base is above its gate


def passed(values: Sequence[float], score: float, larger_is_better: bool) -> bool:
    """Returns whether the scores of n seeds are better than a fixed one, by a one-sided t test.

    A baseline that is no better than the simple method passes in at most 5 % of looks. The score of
    a single seed is taken as it is.
    """
    gains = (1 if larger_is_better else -1) * (np.asarray(values, float) - score)
    if len(gains) < 2:
        return bool((gains > 0).all() and len(gains))
    mean, _, p = paired_t(gains, float(np.abs(values).max()))
    return bool(mean > 0 and p / 2 <= LEVEL)


def whether_learned(gate: Mapping[str, Any], values: Sequence[float]) -> dict[str, Any]:
    """Returns the gate of gate_of with the baseline's mean, whether it passed, and a sentence.

    `values` are the scores of the baseline's seeds by the gate's metric.
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
    """Returns whether a baseline that did not pass has a better mean than its gate."""
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
    """Returns why a metric leaves no room between two arms, or "".

    Args:
      base: Scores of the baseline's seeds.
      arm: Scores of the arm's seeds.
      best: Best possible score, or None if unknown.
      floor: Score of a guess without input, or None if unknown.
      margin: Smallest difference that matters.
      larger_is_better: Direction of the metric.
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
    """Returns the best possible score of a metric and that of a guess, None if unknown.

    `scores` are those of data/baselines, method -> split -> metric -> score.
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
    """Replaces words in `by_arm` if the baseline has not learned or the metric leaves no room."""
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


# ---------------------------------------------------------------- words of an arm

_RATE = "optimizer.learning_rate"


class Evidence(NamedTuple):
    """Evidence that an arm is judged by.

    Attributes:
      base: Seed -> outcome of the baseline.
      arm: Seed -> outcome of the arm.
      level: Level of this look at the arm.
      computes_the_same: Whether both give every test example the same loss, or None if unknown.
      family: Largest number of contrasts that an earlier study asked together with this one.
    """

    base: Mapping[int, Outcome]
    arm: Mapping[int, Outcome]
    level: float
    computes_the_same: bool | None = None
    family: int = 0


def family_of(sealed: Mapping[str, Any], arms: Sequence[str]) -> int:
    """Returns how many contrasts share a level: primary arms, or all that were asked."""
    sealed_arms = [name for name in sealed["arms"] if name != sealed["base"]]
    return len(sealed["primary"]) or max(len(sealed_arms), len(arms))


def level_of_contrast(sealed: Mapping[str, Any], counts: Sequence[int]) -> float:
    """Returns the level of an arm's interval at the last look; `counts` are seeds per look."""
    level = statistics.level_of_look(counts[-1], sealed["looks"], counts[:-1])
    return statistics.FOR_MEANS * level / max(family_of(sealed, []), 1)


def decide(
    sealed: Mapping[str, Any],
    evidence: Mapping[str, Evidence],
    refusals: Mapping[str, list[str]],
) -> dict[str, dict[str, Any]]:
    """Returns the verdict on each arm from its scores alone; `refusals` say why one gets none."""
    family, verdicts = family_of(sealed, [*evidence]), {}
    for name, (base, arm, level, computes_the_same, before) in evidence.items():
        if refusals[name]:
            words = f"refused: {refusals[name][0]}"
            verdicts[name] = {"arm": name, "verdict": REFUSED, "words": words}
        else:
            (contrast,) = statistics.compare(
                base, {name: arm}, sealed["margin"], sealed["larger_is_better"], level,
                max(family, before), primary=sealed["primary"] or None, target=sealed["target"],
            )  # fmt: skip
            verdicts[name] = as_plain(contrast)
            if contrast.verdict == IDENTICAL:
                if _is_perfect(arm, sealed["metric"]):
                    verdicts[name]["words"] = "identical: every answer of both is right"
                elif computes_the_same is False:
                    words = "refused: the same score in every seed, though the losses differ: the "
                    words += "metric does not tell them apart"
                    verdicts[name] |= {"verdict": REFUSED, "words": words}
            verdicts[name]["words"] += (
                ""
                if sealed["tuning"]
                or _RATE in sealed["arms"].get(name, {})  # an arm may be younger than the seal
                else untuned(verdicts[name]["verdict"])
            )
        verdicts[name] |= {"refusals": refusals[name], "level": level}
        verdicts[name] |= {"family": before} if before > family else {}
    return verdicts


def _is_perfect(outcomes: Mapping[int, Outcome], metric: str) -> bool:
    """Returns whether no score could be better, so that equal scores show no harm."""
    return metric.endswith("accuracy") and all(o.value == 1 for o in outcomes.values())


def untuned(verdict: str) -> str:
    """Returns the remark on a verdict between arms that were not tuned."""
    gives_one = verdict in (BETTER, WORSE, SAME)
    limited = gives_one or verdict in (UNRESOLVED, UNSTABLE)
    return UNTUNED if limited else ""


# ---------------------------------------------------------------- a study

_PARTS = 8  # of a text with fewer documents: few and long, so that they are all but independent


def judge_study(study: Study) -> dict[str, Any]:
    """Compares every arm with the base, writes verdicts.json and records the look.

    Returns:
      The content of verdicts.json.
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
            arm_level = statistics.FOR_MEANS * arm["level"] / max(family, arm.get("family", 0))
            arm["beyond_this_text"] = _beyond(study, name, arm["seeds"], arm_level)
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
    """Returns the number of arms that an arm was chosen from: all, if it is not primary."""
    return len(arms) if name not in (sealed["primary"] or [name]) else family_of(sealed, arms)


def level_of_arm(
    planned: Sequence[int], count: int, earlier: Sequence[int], looks_elsewhere: int
) -> float:
    """Returns the level of a look at one arm, see level_of_look.

    After looks of other studies at the same contrast no look counts as planned: each of them halves
    the level, and so does each earlier look of this study.
    """
    if looks_elsewhere:
        return statistics.ALPHA / (len(planned) + 1) * 2.0 ** -(looks_elsewhere + len(earlier))
    return statistics.level_of_look(count, planned, earlier)


def _learned(study: Study) -> dict[str, Any] | None:
    """Returns the gate and whether the base passed it, or None without a gate."""
    gate = study.record["baselines"]["gate"]
    if gate is None:
        return None
    means = (study.cell(study.base, seed).means() for seed in study.seeds)
    values = [value for mean in means if (value := mean.get(gate["metric"])) is not None]
    return whether_learned(gate, values)


def _outcomes(study: Study, arm: str) -> dict[int, Outcome]:
    """Returns seed -> outcome of the finished cells; missing and failed cells have none."""
    cells = [study.cell(arm, seed) for seed in study.seeds]
    asked = (study.metric, study.sealed["target"])
    return {cell.seed: cell.outcome(*asked) for cell in cells if cell.state() in OUTCOMES}


def _computes_the_same(study: Study, arm: str) -> bool | None:
    """Returns whether an arm gives every test example the base's loss, in every seed."""
    for seed in study.seeds:
        arm_losses, base_losses = (losses_of(study.cell(name, seed)) for name in (arm, study.base))
        if arm_losses is None or base_losses is None:
            return None
        if not np.array_equal(arm_losses, base_losses):
            return False
    return True


def _revisions(study: Study) -> int:
    """Returns how many revisions of this package computed the cells."""
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
    """Returns why an arm gets no verdict; empty if it may get one."""
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
    for pair in [*done, *((other, done[0][1]) for _, other in done[1:])]:
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
    """Tests whether the difference holds for new text too, with seeds and clusters crossed."""
    if study.metric not in ("loss", "bits_per_byte", "accuracy") or len(seeds) < 3:
        return None
    rows = []
    for seed in seeds:
        arm_losses = sequences_of(study.cell(arm, seed), study.metric)
        base_losses = sequences_of(study.cell(study.base, seed), study.metric)
        if arm_losses is None or base_losses is None or arm_losses.shape != base_losses.shape:
            return None
        rows.append(arm_losses - base_losses)
    clusters = _clusters_of(study.cell(study.base, seeds[0]))
    d_SQ = by_cluster(np.stack(rows), clusters)
    if d_SQ.shape[1] < 2:
        return None
    sign = 1.0 if study.sealed["larger_is_better"] else -1.0
    low, high = beyond_this_text(sign * d_SQ, level)
    holds = bool(low > 0 or high < 0)
    return {"interval": [low, high], "holds": holds, "clusters": d_SQ.shape[1]}


def _clusters_of(cell: Cell) -> np.ndarray:
    """Returns the cluster of each test sequence, [q]: its document, or part of a long text.

    Windows of one text are neighbours with correlated losses; sentences and images are not.
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
    """Returns loss, weight, ... of each test sequence, [q], or None."""
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
    """Returns the loss of each test sequence, [q]."""
    columns = _columns_of(cell)
    return None if columns is None else columns["loss"]


def sequences_of(cell: Cell, metric: str) -> np.ndarray | None:
    """Returns scores of each test sequence, [q], scaled so that their mean is the metric."""
    columns = _columns_of(cell)
    if columns is None:
        return None
    weight = columns["weight"]
    if metric == "accuracy":
        return columns["correct"] / weight.mean()
    if metric == "bits_per_byte":
        return columns["loss"] / math.log(2) / columns["bytes"].mean()
    return columns["loss"] / weight.mean()

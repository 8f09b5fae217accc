"""Verdicts on the arms of a study, and reasons to refuse a verdict.

Words such as better or worse are read off an interval by statistics.read_off; this module can only
withhold them. report.judge_and_report is for commands; scores.judge is for scores of other code.
"""

import itertools
import math
import zipfile
import zlib
from collections import Counter
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
from transformer_jax.studies.outcomes import Outcome, Word
from transformer_jax.studies.study import Register, Study, now

_COUNTS = ("targets", "examples", "bytes", "sentences")
_BYTES_APART = 1e-3  # tolerated fraction: splits end with a token, which depends on the vocabulary
_WINDOWS = {"data.length", "evaluation.stride", "data.separate_documents"}


class RunFacts(NamedTuple):
    """Facts about a run that comparisons need.

    Attributes:
      manifest: Content of the run's manifest.json.
      config: The run's flat config.
      evaluation: Final scores of each split with their settings; {} before the run ends.
    """

    manifest: dict[str, Any]
    config: dict[str, Any]
    evaluation: dict[str, Any]

    @classmethod
    def of(cls, directory: RunDirectory) -> "RunFacts":
        """Reads the facts about the run in a directory."""
        return cls(directory.manifest(), flatten(directory.config()), directory.evaluation())


def scored_otherwise(
    one: RunFacts, other: RunFacts, metric: str, changed: Collection[str] = (), split: str = "test"
) -> list[str]:
    """Returns reasons why a difference between two runs' scores on a split would be meaningless.

    `metric` is named without its split; `changed` has the options that differ on purpose.
    """
    by_byte = metric == "bits_per_byte"
    data, other_data = (run.manifest["data"] for run in (one, other))
    protocols = [run.evaluation.get(split, {}).get("protocol", {}) for run in (one, other)]
    has_same_tokens = data.get("tokenizer_sha256") == other_data.get("tokenizer_sha256")
    if not all(protocols):  # not finished: compare the targets that will be scored
        has_other_targets = has_same_tokens and data["counts"] != other_data["counts"]
    elif by_byte:
        tolerance = 0.0 if has_same_tokens else _BYTES_APART
        sizes = [protocol.get("bytes") or 0 for protocol in protocols]
        has_other_targets = abs(sizes[0] - sizes[1]) > tolerance * max(sizes)
    else:
        has_other_targets = any(protocols[0].get(k) != protocols[1].get(k) for k in _COUNTS)
    reasons = []
    if one.config["data.task"] != other.config["data.task"]:
        reasons.append("different tasks: their losses are not comparable")
    if data.get("sha256") != other_data.get("sha256"):
        reasons.append("evaluated on different data")
    if not has_same_tokens and not by_byte:
        reasons.append("different tokenizers: only bits_per_byte is comparable")
    if has_other_targets:
        reasons.append("different targets are scored")
    windows = [_window(run.config) for run in (one, other)]
    if windows[0] != windows[1] and not _WINDOWS.intersection(changed):
        reasons.append(f"evaluated differently: {'; '.join(windows)}")
    return reasons


def _window(config: dict[str, Any]) -> str:
    length = config["data.length"]
    apart = ", documents apart" if config["data.separate_documents"] else ""
    return f"context {length}, stride {config['evaluation.stride'] or length}{apart}"


def computed_otherwise(
    one: RunFacts, other: RunFacts, changed: Collection[str] = (), cells: bool = False
) -> list[str]:
    """Returns the differences between two runs in code, packages and devices.

    `changed` has the options in which the runs differ on purpose. With `cells`, both are cells of
    one study: code does not count, and of the packages only those that the cell hash covers.
    """
    revision = "code" if "code" in one.manifest and "code" in other.manifest else "git"
    compared = []
    for manifest, config, _ in (one, other):
        packages = deciding(manifest)["packages"] if cells else manifest.get("packages", {})
        initial, own = manifest.get("initial", {}), manifest.get("own_rows", {})
        facts = {
            "computed by different code": None if cells else manifest[revision],
            "different packages": packages,
            "trained with different numbers of members at a time": manifest.get("members", 1),
            "different device": device_of(manifest["device"]),
            "different flags of jax or XLA": manifest.get("environment", {}),
            **{f"different weights from initial.{key}": digest for key, digest in initial.items()},
            **{f"different code of {key}": digest for key, digest in own.items()},
            "a run was extended, so its first updates used another config": manifest.get("legs"),
        }
        if "model.dtype" not in changed:
            facts["different precision"] = config["model.dtype"]
        compared.append(facts)
    facts, others = compared
    return [reason for reason in facts if reason in others and facts[reason] != others[reason]]


def among(
    runs: Sequence[RunFacts], differences: Callable[..., list[str]], *arguments: Any
) -> list[str]:
    """Returns the distinct results of `differences` between the first run and each other run."""
    pairs = (differences(run, runs[0], *arguments) for run in runs[1:])
    return list(dict.fromkeys(itertools.chain.from_iterable(pairs)))


def passed(values: Sequence[float], score: float, larger_is_better: bool) -> bool:
    """Returns whether a baseline is better than a simple method, by a one-sided t test.

    `values` are the baseline's scores, one per seed; `score` is that of the simple method. A
    baseline that is no better passes a test with probability 5 % at most; one seed has no test.
    """
    gains = (1 if larger_is_better else -1) * (np.asarray(values, float) - score)
    if len(gains) < 2:
        return bool((gains > 0).all() and len(gains))
    mean, _, p = statistics.paired_t(gains, float(np.abs(values).max()))
    return bool(mean > 0 and p / 2 <= statistics.ALPHA)


def whether_learned(gate: Mapping[str, Any], values: Sequence[float]) -> dict[str, Any]:
    """Returns a gate from gate_of, extended by the base's mean score, the result and a sentence.

    `values` are the base's scores in the gate's metric, one per seed.
    """
    score, larger_is_better = gate["score"], gate["metric"] == "accuracy"
    holds = passed(values, score, larger_is_better)
    mean, sentence = None, "the base has no score"
    if len(values):
        mean = float(np.mean(values))
        is_above = mean > score if larger_is_better else mean < score
        word = "better" if holds else "not surely better" if is_above else "no better"
        sentence = (
            f"the base's {gate['split']}/{gate['metric']} of {mean:.4g} is {word} than "
            f"{score:.4g}, the score of {METHODS[gate['method']]}"
        )
    return {**gate, "base": mean, "passed": holds, "told": sentence}


def at_an_end(
    base: Sequence[float],
    arm: Sequence[float],
    best: float | None,
    floor: float | None,
    margin: float,
    larger_is_better: bool,
) -> str:
    """Returns the reason why two arms score too near one end of a metric to be compared, or "".

    `base` and `arm` are scores over seeds; `best` and `floor` come from best_and_guess.
    """
    if not len(base) or not len(arm):
        return ""
    sign = 1 if larger_is_better else -1
    means = [sign * float(np.mean(values)) for values in (base, arm)]
    if best is not None and min(means) >= sign * best - margin:
        return f"base and arm are both within {margin:g} of {best:.4g}, the best possible score"
    if floor is not None and max(means) <= sign * floor + margin:
        return f"neither base nor arm is {margin:g} better than {floor:.4g}, the score of a guess"
    return ""


def best_and_guess(
    scores: Mapping[str, Mapping[str, Mapping[str, float]]], metric: str
) -> tuple[float | None, float | None]:
    """Returns the best possible test score in a metric and that of a guess, each None if unknown.

    `scores` come from data/baselines, method -> split -> metric -> score.
    """
    best = scores.get("known floor", {}).get("test", {}).get(metric)
    floors = [scores[name]["test"].get(metric) for name in FLOORS if name in scores]
    floor = next((score for score in floors if score is not None), None)
    is_share = metric.endswith("accuracy") or metric.startswith("benchmark")
    return 1.0 if is_share else best, floor


_RATE = "optimizer.learning_rate"


def decide(
    sealed: Mapping[str, Any],
    name: str,
    base: Mapping[int, Outcome],
    arm: Mapping[int, Outcome],
    level: float,
    family: int,
    computes_the_same: bool | None = None,
) -> dict[str, Any]:
    """Returns the verdict on an arm from scores alone.

    `base`, `arm`, `level` and `family` are as in statistics.compare; its other arguments come from
    `sealed`. `computes_the_same`: whether each test example has the same loss; None if unknown.
    """
    (contrast,) = statistics.compare(
        base, {name: arm}, sealed["margin"], sealed["larger_is_better"], level, family,
        primary=sealed["primary"] or None, target=sealed["target"],
    )  # fmt: skip
    verdict = as_plain(contrast)
    if contrast.verdict == Word.IDENTICAL:
        if sealed["metric"].endswith("accuracy") and all(o.value == 1 for o in arm.values()):
            verdict["words"] = "identical: every answer of both is right"
        elif computes_the_same is False:
            verdict["verdict"] = Word.REFUSED
            verdict["words"] = (
                "refused: the same score for every seed though the losses differ: the metric "
                "does not tell base and arm apart"
            )
    is_tuned = sealed["tuning"] or _RATE in sealed["arms"].get(name, {})  # or added after the seal
    if not is_tuned and verdict["verdict"] in {*Word.CLAIMS, Word.UNSTABLE} - {Word.IDENTICAL}:
        verdict["words"] += Word.UNTUNED
    return verdict


def level_of_arm(
    planned: Sequence[int], count: int, earlier: Sequence[int], looks_elsewhere: int
) -> float:
    """Returns the level of a look at one arm; the first three arguments are as in level_of_look.

    `looks_elsewhere` counts the looks of other studies at the same contrast. After any of these, no
    look counts as planned, and each of them and each earlier look of this study halves the level.
    """
    if looks_elsewhere:
        return statistics.ALPHA / (len(planned) + 1) * 2.0 ** -(looks_elsewhere + len(earlier))
    return statistics.level_of_look(count, planned, earlier)


_SHOWN = ("question", "prediction", "metric", "larger_is_better", "margin", "base")  # from the seal


def judge_study(study: Study) -> dict[str, Any]:
    """Compares every arm with the base, records the look, and writes and returns the verdicts."""
    sealed, base, register = study.sealed, study.base, Register(study.root)
    names = [name for name in study.arms if name != base]
    outcomes: dict[str, dict[int, Outcome]] = {name: {} for name in study.arms}
    revisions = set()
    for cell in study.cells():
        if cell.state() in OUTCOMES:
            outcomes[cell.arm][cell.seed] = cell.outcome(study.metric, sealed["target"])
            revisions.add(RunDirectory(cell.path).manifest().get("code"))
    values = {
        name: [o.value for o in by_seed.values() if o.value is not None]
        for name, by_seed in outcomes.items()
    }
    seeds = [seed for seed in study.seeds if seed in outcomes[base]]
    cells = sorted(arm["hash"] for arm in study.arms.values())
    drawn = {(tuple(look["seeds"]), tuple(look["cells"])): None for look in study.looks()}
    earlier = [len(shown) for shown, of in drawn if (list(shown), list(of)) != (seeds, cells)]
    learned, contrasts = None, study.contrasts()
    if (gate := study.record["baselines"]["gate"]) is not None:
        scores = [study.cell(base, seed).means().get(gate["metric"]) for seed in study.seeds]
        learned = whether_learned(gate, [score for score in scores if score is not None])
    # The level is shared by the primary arms or, if none are named, by all arms there ever were.
    family = len(sealed["primary"]) or max(len(sealed["arms"]) - 1, len(names))
    arms: dict[str, dict[str, Any]] = {}
    for name in names:
        looks, before = [], 0
        if name in contrasts:
            looks = register.earlier_looks(contrasts[name], study.identity, seeds)
            before = max((look["families"][contrasts[name]] for look in looks), default=0)
        arm_level = level_of_arm(sealed["looks"], len(seeds), earlier, len(looks))
        facts: dict[str, Any] = {"refusals": _refusals(study, name), "level": arm_level}
        facts |= {"family": before} if before > family else {}
        facts["asked_before"] = [{"seeds": look["seeds"], "time": look["time"]} for look in looks]
        if facts["refusals"]:
            words = f"refused: {facts['refusals'][0]}"
            arms[name] = {"arm": name, "verdict": Word.REFUSED, "words": words, **facts}
            continue
        size = max(family, before)
        pair = outcomes[base], outcomes[name]
        arm = decide(sealed, name, *pair, arm_level, size, _computes_the_same(study, name))
        if arm["verdict"] in Word.CLAIMS and sealed["target"] is None:
            reason = "the base has not learned"
            if learned is None or learned["passed"]:
                ends = best_and_guess(study.record["baselines"]["scores"], study.metric)
                rest = *ends, sealed["margin"], sealed["larger_is_better"]
                reason = at_an_end(values[base], values[name], *rest)
            if reason:
                arm |= {"verdict": Word.CANNOT_TELL, "words": f"{Word.CANNOT_TELL}: {reason}"}
        beyond = _beyond(study, name, arm["seeds"], statistics.FOR_MEANS * arm_level / size)
        arms[name] = {**arm, **facts, "beyond_this_text": beyond}
    level = statistics.level_of_look(len(seeds), sealed["looks"], earlier)
    verdicts = {
        **{key: sealed[key] for key in _SHOWN},
        "seal": study.record["seal"],
        "exploratory": study.record["exploratory"],
        "seeds": seeds,
        "look": len(earlier) + 1,
        "level": level,
        "coverage": 1 - statistics.FOR_MEANS * level,
        "contrasts": family,
        "tuned": bool(sealed["tuning"]),
        "learned": learned,
        "values": {name: _summary(outcomes[name], values[name]) for name in study.arms},
        "arms": arms,
        "revisions": len(revisions),
    }
    shown = [name for name in names if not arms[name]["refusals"]]
    if shown and any(values.values()):
        words = {name: arm["words"] for name, arm in arms.items()}
        known = {name: contrasts[name] for name in shown if name in contrasts}
        # An arm that is not primary counts as chosen from all arms.
        sizes = {
            contrast: family if name in (sealed["primary"] or [name]) else len(names)
            for name, contrast in known.items()
        }
        look = {"study": study.identity, "seeds": seeds, "contrasts": known, "families": sizes}
        verdicts["registered"] = register.note({"time": now(), **look, "words": words})
        shown_now = {"seeds": seeds, "cells": cells, "look": len(earlier) + 1, "level": level}
        study.add_look({**shown_now, "verdicts": words})
    write_json(study.path, "verdicts.json", verdicts)
    return verdicts


def _summary(outcomes: Mapping[int, Outcome], values: Sequence[float]) -> dict[str, Any]:
    return {
        "n": len(values),
        "mean": float(np.mean(values)) if values else None,
        "deviation": float(np.std(values, ddof=1)) if len(values) > 1 else None,
        "by_seed": {str(seed): outcome.value for seed, outcome in outcomes.items()},
        "outcomes": {str(seed): list(outcome) for seed, outcome in outcomes.items()},
        "diverged": sum(outcome.diverged for outcome in outcomes.values()),
    }


def _refusals(study: Study, arm: str) -> list[str]:
    """Returns the reasons why an arm gets no verdict; empty if it can get one."""
    refusals = [f"{key} changed after the first cell" for key in study.record["refused"]]
    names = (arm, study.base)
    for name in names:
        if refused := study.arms[name].get("tuning", {}).get("refused"):
            refusals.append(f"{name}: {refused}")
    cells = {name: [study.cell(name, seed) for seed in study.seeds] for name in names}
    done = {name: [cell for cell in cells[name] if cell.state() == DONE] for name in names}
    for name in names:
        lost = Counter(state for cell in cells[name] if (state := cell.state()) not in OUTCOMES)
        if lost:
            counts = ", ".join(f"{count} {state}" for state, count in lost.items())
            refusals.append(f"cells of {name!r} are missing: {counts}")
        scores = {cell.seed: cell.means().get(study.metric) for cell in done[name]}
        without = [str(s) for s, v in scores.items() if v is None or not math.isfinite(v)]
        if without:
            refusals.append(f"{name!r} has no {study.metric} for seed {', '.join(without)}")
    pairs = [
        tuple(RunFacts.of(RunDirectory(cell.path)) for cell in pair)
        for pair in zip(*cells.values(), strict=True)
        if all(cell.state() == DONE for cell in pair)
    ]
    changed = {key for name in names for key in study.arms[name].get("changes", {})}
    asked = flatten(study.sealed["base_config"])["evaluation.every"]
    needs_curve = study.sealed["target"] is not None
    needs_curve |= "curve" in arguments_of_metric(study.metric)
    # Compared within pairs, and between the seeds of the base.
    for pair in [*pairs, *((base_run, pairs[0][1]) for _, base_run in pairs[1:])]:
        refusals += scored_otherwise(pair[0], pair[1], study.metric, changed)
        refusals += computed_otherwise(*pair, changed, cells=True)
        every = dict.fromkeys(run.config["evaluation.every"] for run in pair)
        if needs_curve and every.keys() != {asked}:
            looked = " and ".join(map(str, every))
            refusals.append(f"curves were measured every {looked} updates instead of {asked}")
    finished = itertools.chain.from_iterable(done.values())
    if len({cell.metric_facts().get(study.metric, {}).get("code") for cell in finished}) > 1:
        refusals.append(f"{study.metric} was measured by different code")
    return list(dict.fromkeys(refusals))


_PARTS = 8  # of a text with fewer documents; few and long, so nearly independent


def _computes_the_same(study: Study, arm: str) -> bool | None:
    """Returns whether an arm and the base give each test example the same loss; None if unknown."""
    for seed in study.seeds:
        columns, base_columns = (_columns_of(study.cell(n, seed)) for n in (arm, study.base))
        if not columns or not base_columns:
            return None
        if not np.array_equal(columns["loss"], base_columns["loss"]):
            return False
    return True


def _beyond(study: Study, arm: str, seeds: Sequence[int], level: float) -> dict[str, Any] | None:
    """Returns the interval of the difference for new text, or None if it cannot be computed.

    Seeds and clusters of test sequences are crossed, as in statistics.beyond_this_text.
    """
    if study.metric not in ("loss", "bits_per_byte", "accuracy") or len(seeds) < 3:
        return None
    rows = []
    for seed in seeds:
        pair = [_columns_of(study.cell(name, seed)) for name in (arm, study.base)]
        if not all(pair) or pair[0]["loss"].shape != pair[1]["loss"].shape:
            return None
        scores, base_scores = (_shares_of(columns, study.metric) for columns in pair)
        rows.append(scores - base_scores)
    d_SQ = statistics.by_cluster(np.stack(rows), _clusters_of(study.cell(study.base, seeds[0])))
    if d_SQ.shape[1] < 2:
        return None
    sign = 1.0 if study.sealed["larger_is_better"] else -1.0
    low, high = statistics.beyond_this_text(sign * d_SQ, level)
    holds = bool(low > 0 or high < 0)
    return {"interval": [low, high], "holds": holds, "clusters": d_SQ.shape[1]}


def _shares_of(columns: Mapping[str, np.ndarray], metric: str) -> np.ndarray:
    """Returns the scores of the test sequences, [q], scaled so that their mean is the metric."""
    if metric == "bits_per_byte":
        return columns["loss"] / math.log(2) / columns["bytes"].mean()
    return columns["correct" if metric == "accuracy" else "loss"] / columns["weight"].mean()


def _clusters_of(cell: Cell) -> np.ndarray:
    """Returns the cluster of each test sequence, [q]: its document, or its part of a long text.

    Neighbouring windows of a text have correlated losses. A sentence or image is its own cluster.
    """
    columns = _columns_of(cell)
    count = len(columns["loss"])
    if not traits_of(RunDirectory(cell.path).config().data.task).running_text:
        return np.arange(count)
    documents = columns.get("cluster", np.zeros(count))
    return documents if len(np.unique(documents)) >= _PARTS else np.arange(count) * _PARTS // count


def _columns_of(cell: Cell) -> dict[str, np.ndarray]:
    """Returns columns such as `loss` and `weight`, [q] over test sequences; {} if unreadable."""
    try:
        with np.load(inside(cell.path, "sequences.npz")) as stored:
            names = [name for name in stored.files if name.startswith("test/")]
            return {name.removeprefix("test/"): stored[name] for name in names}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error):
        return {}

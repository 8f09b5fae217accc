"""What the charts of a report are drawn from."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.options.rule import is_number
from transformer_jax.studies.asking.cells import read_details
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.asking.tuning import tuned_of
from transformer_jax.studies.inference.tuned import expected_best
from transformer_jax.studies.judging.breakdowns import BREAKDOWNS

_FEWEST_VALUES = 3  # of an option, so that a line over it says something


def forest_of(verdicts: Mapping[str, Any], order: Sequence[str]) -> dict[str, Any]:
    """What a forest plot shows: differences of every seed, means, intervals, the margin.

    Args:
      verdicts: metric, margin, base, and arms by name.
      order: of all arms, by which they get their colours.
    """
    rows = []
    for name, arm in verdicts["arms"].items():
        rows.append(
            {
                "name": name,
                "index": order.index(name),
                "mean": arm.get("mean"),
                "differences": arm.get("differences", []),
                "seeds": arm.get("seeds", []),
                "interval": arm.get("interval") or [None, None],
                "words": arm["words"],
            }
        )
    unit = verdicts["metric"].replace("test/", "test ").replace("_", " ")
    return {
        "rows": rows,
        "margin": verdicts["margin"],
        "label": f"difference of {unit} from {verdicts['base']}; right is better",
    }


def sweeps_of(study: Study, verdicts: Mapping[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Returns option -> group -> its arms, for numeric options of which a group has three values.

    A group is what the arms have in common of the other options that arms change, spelled out; ""
    where they change no other.
    """
    base = study.base_config
    arms = {name: its for name, its in study.sealed["arms"].items() if name in verdicts["values"]}
    keys = list(dict.fromkeys(key for changes in arms.values() for key in changes))
    settings = {arm: {k: its.get(k, base.get(k)) for k in keys} for arm, its in arms.items()}
    sweeps: dict[str, dict[str, list[str]]] = {}
    for key in keys:
        groups: dict[str, list[str]] = {}
        for arm, its in settings.items():
            if is_number(its[key]) and verdicts["values"][arm]["mean"] is not None:
                rest = ", ".join(f"{k}={value}" for k, value in its.items() if k != key)
                groups.setdefault(rest, []).append(arm)
        ordered = {
            rest: sorted(names, key=lambda arm: settings[arm][key])
            for rest, names in groups.items()
            if len({settings[arm][key] for arm in names}) >= _FEWEST_VALUES
        }
        sweeps |= {key: ordered} if ordered else {}
    return sweeps


def sweep_charts(study: Study, verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """A chart of the score over each option that is swept, a line a group: mean and range."""
    charts = {}
    base = study.base_config
    for place, (key, groups) in enumerate(sweeps_of(study, verdicts).items()):
        series: list[dict[str, Any]] = []
        for index, (group, arms) in enumerate(groups.items()):
            values = [study.sealed["arms"][arm].get(key, base.get(key)) for arm in arms]
            of_seeds = [
                [v for v in verdicts["values"][arm]["by_seed"].values() if v is not None]
                for arm in arms
            ]
            line = {"name": group or study.metric, "index": index, "x": values}
            ends = {"low": [min(its) for its in of_seeds], "high": [max(its) for its in of_seeds]}
            series.append({**line, "mean": [mean_of(its) for its in of_seeds], **ends})
        label = f"test {study.metric}"
        labels = {"xLabel": key, "yLabel": label, "title": f"{label} over {key}"}
        by_factors = all(x > 0 for line in series for x in line["x"])
        charts[f"sweep-{place}"] = {**labels, "series": series, "logX": by_factors, "points": True}
    return charts


def best_of_sweeps(study: Study, verdicts: Mapping[str, Any]) -> list[str]:
    """Returns the arm with the best mean of each group, a line each."""
    best = max if study.sealed["larger_is_better"] else min
    sentences = []
    for key, groups in sweeps_of(study, verdicts).items():
        for group, arms in groups.items():
            values = {arm: verdicts["values"][arm] for arm in arms}
            means = {arm: v["mean"] for arm, v in values.items() if not v.get("diverged")}
            if not means:
                continue
            first = best(means, key=lambda arm: means[arm])
            where = f" where {group}" if group else ""
            sentences.append(f"{key}{where}: the best mean is that of {first}, {means[first]:.4f}")
    return sentences


def tuning_charts(study: Study) -> dict[str, Any]:
    """A chart for each tuned option of numbers, and one of the expected best of k trials."""
    tuned = {name: its for name, arm in study.arms.items() if (its := tuned_of(arm))}
    if not tuned:
        return {}
    larger, label = study.sealed["larger_is_better"], f"validation split, {study.metric}"
    (share, _), *later = study.sealed["tuning"].get("rungs") or [(1, 0)]
    label += f" at {share:.0%} of the updates" if later else ""
    best, charts = max if larger else min, {}
    first = next(iter(tuned.values()))
    for index, key in enumerate(k for k, value in first.chosen.items() if is_number(value)):
        series = []
        for name, its in tuned.items():
            scores: dict[float, list[float]] = {}
            for (setting, _), score in zip(its.tried, its.first_scores, strict=True):
                scores.setdefault(setting[key], [])
                scores[setting[key]] += [score] if math.isfinite(score) else []
            line = [best(scores[x]) if scores[x] else None for x in sorted(scores)]
            series.append(_line(study, name, sorted(scores), line, line, line))
        labels = {"xLabel": key, "yLabel": label, "title": f"{label} over {key}"}
        by_factors = all(x > 0 for line in series for x in line["x"])
        charts[f"tuned-{index}"] = {**labels, "series": series, "logX": by_factors, "points": True}
    series = []
    for name, its in tuned.items():
        bests = expected_best(its.first_scores, larger)
        low, high = ([m + side * spread for m, spread in bests] for side in (-1, 1))
        trials = list(range(1, len(bests) + 1))
        series.append(_line(study, name, trials, [mean for mean, _ in bests], low, high))
    title = f"expected best, {label}"
    labels = {"xLabel": "trials", "yLabel": title, "title": title}
    return {**charts, "tuned-trials": {**labels, "series": series, "points": True}}


def budget_charts(study: Study, verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """A chart of each arm's difference and interval over the updates; {} without budgets."""
    series = []
    for name, arm in verdicts["arms"].items():
        points = [(study.arms[name]["cost"]["updates"], arm)] if "budgets" in arm else []
        for share, its in arm.get("budgets", {}).items():
            points.append((verdicts["budgets"][share]["updates"][name], its))
        kept = [(x, its) for x, its in sorted(points, key=lambda p: p[0]) if its.get("interval")]
        columns = [[x, its["mean"], *its["interval"]] for x, its in kept]
        if kept:
            series.append(_line(study, name, *map(list, zip(*columns, strict=True))))
    if not series:
        return {}
    label = f"difference of test {study.metric} from {study.base}; up is better"
    labels = {"xLabel": "updates of the run", "yLabel": label, "title": f"{label}, over updates"}
    return {"budgets": {**labels, "series": series, "points": True}}


def multiverse_chart(study: Study) -> dict[str, Any]:
    """A line an arm: its differences from the base under all choices, in order; {} if none."""
    series = []
    for name, its in study.multiverse().get("arms", {}).items():
        finite = sorted(d for d in its["differences"] if d is not None)
        if finite:
            series.append(
                _line(study, name, list(range(1, len(finite) + 1)), finite, finite, finite)
            )
    if not series:
        return {}
    label = f"difference of test {study.metric} from {study.base}; up is better"
    labels = {"xLabel": "specification, by its difference", "yLabel": label}
    return {"multiverse": {**labels, "series": series, "points": True, "title": label}}


def _line(study: Study, arm: str, x: list, mean: list, low: list, high: list) -> dict[str, Any]:
    index = list(study.arms).index(arm)
    return {"name": arm, "index": index, "x": x, "mean": mean, "low": low, "high": high}


def details_of(study: Study) -> dict[str, dict[int, dict]]:
    """Arm -> seed -> what details.json of the cell holds."""
    return {
        arm: {
            s: details for s in study.seeds_of(arm) if (details := read_details(study.cell(arm, s)))
        }
        for arm in study.arms
    }


def by_position_of(study: Study) -> dict[str, Any]:
    """A line an arm over the positions of a window; {} where there are none."""
    series = []
    for arm, seeds in details_of(study).items():
        positions = [d["where"]["position"] for d in seeds.values() if "where" in d]
        if positions:
            values = np.array([means for _, means in positions], float)
            places = [start + 1 for start in positions[0][0]]
            bands = (band.tolist() for band in (values.mean(0), values.min(0), values.max(0)))
            series.append(_line(study, arm, places, *bands))
    if not series:
        return {}
    labels = {"xLabel": "position in the window", "yLabel": "test loss, nats"}
    return {
        "position": {**labels, "series": series, "title": "test loss by position", "logX": True}
    }


def breakdowns_of(study: Study, verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """A chart for each breakdown of the scores, a line an arm; {} where no task has one."""
    charts = {}
    for name, title in BREAKDOWNS.items():
        series = []
        for arm in study.arms:
            breakdown = verdicts[name].get(arm, {})
            numbers = sorted(map(int, breakdown))
            if len(numbers) > 1:
                values = [breakdown[str(number)] for number in numbers]
                means = [float(np.mean(row)) for row in values]
                bounds = [min(row) for row in values], [max(row) for row in values]
                series.append(_line(study, arm, numbers, means, *bounds))
        if series:
            labels = {"xLabel": title.number, "yLabel": title.score, "title": title.title}
            charts[name] = {**labels, "series": series, "points": True}
    return charts


def floor_of(study: Study) -> float | None:
    """The best possible loss, in nats, of a task that knows it."""
    protocols = (study.cell(study.base, s).means().get("protocol", {}) for s in study.seeds)
    return next((p["floor"] for p in protocols if "floor" in p), None)


def mean_of(column: Sequence[float | None]) -> float | None:
    """The mean of what is known; None where nothing is."""
    finite = [value for value in column if value is not None]
    return float(np.mean(finite)) if finite else None

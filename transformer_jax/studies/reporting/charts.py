"""What the charts of a report are drawn from."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.options.rule import is_number
from transformer_jax.studies.asking.cells import read_details
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.asking.tuning import tuned_of
from transformer_jax.studies.inference.tuned import Optimum, expected_best, optimum
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
    arms = {name: its for name, its in study.sealed["arms"].items() if name in verdicts["values"]}
    keys = list(dict.fromkeys(key for changes in arms.values() for key in changes))
    settings = {arm: {k: study.value_of(arm, k) for k in keys} for arm in arms}
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
    charts: dict[str, Any] = {}
    for place, (key, groups) in enumerate(sweeps_of(study, verdicts).items()):
        series: list[dict[str, Any]] = []
        for index, (group, arms) in enumerate(groups.items()):
            values = [study.value_of(arm, key) for arm in arms]
            of_seeds = [
                [v for v in verdicts["values"][arm]["by_seed"].values() if v is not None]
                for arm in arms
            ]
            line = {"name": group or study.metric, "index": index, "x": values}
            ends = {"low": [min(its) for its in of_seeds], "high": [max(its) for its in of_seeds]}
            series.append({**line, "mean": [mean_of(its) for its in of_seeds], **ends})
        label = f"test {study.metric}"
        by_factors = all(x > 0 for line in series for x in line["x"])
        charts |= _chart(f"sweep-{place}", series, key, label, f"{label} over {key}", by_factors)
    return charts


_TOO_FEW = "too few arms that did not diverge, or seeds"


def optimum_of(
    study: Study, verdicts: Mapping[str, Any], key: str, arms: Sequence[str]
) -> Optimum | str:
    """Returns the best value of a swept option, off a parabola, or why there is none.

    Args:
      study: with at least two seeds that all arms have.
      verdicts: its own.
      key: of sweeps_of.
      arms: a group of it.
    """
    arms = [arm for arm in arms if not verdicts["values"][arm].get("diverged")]
    if len(arms) < 3:
        return _TOO_FEW
    of_arm = [verdicts["values"][arm]["by_seed"] for arm in arms]
    seeds = [s for s in of_arm[0] if all(by_seed.get(s) is not None for by_seed in of_arm)]
    values = [study.value_of(arm, key) for arm in arms]
    if len(seeds) < 2:
        return _TOO_FEW
    if len(set(values)) < len(values) or values[0] <= 0:
        return "values that are no factors apart"
    sign = -1 if study.sealed["larger_is_better"] else 1
    return optimum(values, [[sign * by_seed[s] for by_seed in of_arm] for s in seeds])


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
            sentence = f"{key}{where}: the best mean is that of {first}, {means[first]:.4f}"
            best_value = optimum_of(study, verdicts, key, arms)
            told = "" if isinstance(best_value, str) else by_parabola(best_value)
            sentences.append(sentence + told)
    return sentences


def by_parabola(best: Optimum) -> str:
    """What a parabola says of the best value."""
    low, high = best.interval
    return f"; by a parabola {best.at:.3g} is the best value, 95 % [{low:.3g}, {high:.3g}]"


def tuning_charts(study: Study) -> dict[str, Any]:
    """A chart for each tuned option of numbers, and one of the expected best of k trials."""
    tuned = {name: its for name, arm in study.arms.items() if (its := tuned_of(arm))}
    if not tuned:
        return {}
    larger, label = study.sealed["larger_is_better"], f"validation split, {study.metric}"
    (share, _), *later = study.sealed["tuning"].get("rungs") or [(1, 0)]
    label += f" at {share:.0%} of the updates" if later else ""
    best, charts = max if larger else min, {}
    tried = [setting for its in tuned.values() for setting, _ in its.tried]
    of_numbers = [key for key in tried[0] if all(is_number(setting[key]) for setting in tried)]
    for index, key in enumerate(of_numbers):
        series = []
        for name, its in tuned.items():
            scores: dict[float, list[float]] = {}
            for (setting, _), score in zip(its.tried, its.first_scores, strict=True):
                scores.setdefault(setting[key], [])
                scores[setting[key]] += [score] if math.isfinite(score) else []
            line = [best(scores[x]) if scores[x] else None for x in sorted(scores)]
            series.append(_line(study, name, sorted(scores), line, line, line))
        by_factors = all(x > 0 for line in series for x in line["x"])
        charts |= _chart(f"tuned-{index}", series, key, label, f"{label} over {key}", by_factors)
    series = []
    for name, its in tuned.items():
        bests = expected_best(its.first_scores, larger)
        low, high = ([m + side * spread for m, spread in bests] for side in (-1, 1))
        trials = list(range(1, len(bests) + 1))
        series.append(_line(study, name, trials, [mean for mean, _ in bests], low, high))
    title = f"expected best, {label}"
    return charts | _chart("tuned-trials", series, "trials", title, title)


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
    label = f"difference of test {study.metric} from {study.base}; up is better"
    return _chart("budgets", series, "updates of the run", label, f"{label}, over updates")


def multiverse_chart(study: Study) -> dict[str, Any]:
    """A line an arm: its differences from the base under all choices, in order; {} if none."""
    series = []
    for name, its in study.multiverse().get("arms", {}).items():
        finite = sorted(d for d in its["differences"] if is_number(d))
        if finite:
            series.append(
                _line(study, name, list(range(1, len(finite) + 1)), finite, finite, finite)
            )
    label = f"difference of test {study.metric} from {study.base}; up is better"
    return _chart("multiverse", series, "specification, by its difference", label, label)


def _chart(
    name: str,
    series: Sequence[Mapping[str, Any]],
    x_label: str,
    y_label: str,
    title: str,
    by_factors: bool = False,
    points: bool = True,
) -> dict[str, Any]:
    """A chart under its name; {} without lines."""
    labels = {"xLabel": x_label, "yLabel": y_label, "title": title}
    drawn = {**labels, "series": series, "logX": by_factors, "points": points}
    return {name: drawn} if series else {}


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
    labels = ("position in the window", "test loss, nats", "test loss by position")
    return _chart("position", series, *labels, by_factors=True, points=False)


def breakdowns_of(study: Study, verdicts: Mapping[str, Any]) -> dict[str, Any]:
    """A chart for each breakdown of the scores, a line an arm; {} where no task has one."""
    charts: dict[str, Any] = {}
    for name, title in BREAKDOWNS.items():
        series = []
        for arm in study.arms:
            breakdown = verdicts.get(name, {}).get(arm, {})  # older studies have fewer
            numbers = sorted(map(int, breakdown))
            if len(numbers) > 1:
                values = [breakdown[str(number)] for number in numbers]
                means = [float(np.mean(row)) for row in values]
                bounds = [min(row) for row in values], [max(row) for row in values]
                series.append(_line(study, arm, numbers, means, *bounds))
        charts |= _chart(name, series, title.number, title.score, title.title)
    return charts


def floor_of(study: Study) -> float | None:
    """The best possible loss, in nats, of a task that knows it."""
    protocols = (study.cell(study.base, s).means().get("protocol", {}) for s in study.seeds)
    return next((p["floor"] for p in protocols if "floor" in p), None)


def mean_of(column: Sequence[float | None]) -> float | None:
    """The mean of what is known; None where nothing is."""
    finite = [value for value in column if value is not None]
    return float(np.mean(finite)) if finite else None

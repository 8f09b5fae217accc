"""Scores over an option that arms sweep, and the best value of it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.options import is_number
from transformer_jax.studies.statistics import Optimum, optimum
from transformer_jax.studies.study import Study

_FEWEST_VALUES = 3  # of an option, so that a line over it says something


def sweeps_of(study: Study, verdicts: Mapping[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Returns option -> group -> its arms, for numeric options with three values in a group.

    A group is named by the other options that its arms share; "" if arms change no
    other option.
    """
    arms = {
        name: arm_values
        for name, arm_values in study.sealed["arms"].items()
        if name in verdicts["values"]
    }
    keys = list(dict.fromkeys(key for changes in arms.values() for key in changes))
    settings = {arm: {k: study.value_of(arm, k) for k in keys} for arm in arms}
    sweeps: dict[str, dict[str, list[str]]] = {}
    for key in keys:
        groups: dict[str, list[str]] = {}
        for arm, arm_values in settings.items():
            if is_number(arm_values[key]) and verdicts["values"][arm]["mean"] is not None:
                rest = ", ".join(f"{k}={value}" for k, value in arm_values.items() if k != key)
                groups.setdefault(rest, []).append(arm)
        ordered = {
            rest: sorted(names, key=lambda arm: settings[arm][key])
            for rest, names in groups.items()
            if len({settings[arm][key] for arm in names}) >= _FEWEST_VALUES
        }
        sweeps |= {key: ordered} if ordered else {}
    return sweeps


def sweep_charts(study: Study, verdicts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns a chart of the score over each swept option, a line for each group of arms."""
    charts = []
    for key, groups in sweeps_of(study, verdicts).items():
        series: list[dict[str, Any]] = []
        for index, (group, arms) in enumerate(groups.items()):
            values = [study.value_of(arm, key) for arm in arms]
            scores = [
                [v for v in verdicts["values"][arm]["by_seed"].values() if v is not None]
                for arm in arms
            ]
            line = {"name": group or study.metric, "index": index, "x": values}
            ends = {
                "low": [min(step_scores) for step_scores in scores],
                "high": [max(step_scores) for step_scores in scores],
            }
            series.append(
                {**line, "mean": [float(np.mean(step_scores)) for step_scores in scores], **ends}
            )
        by_factors = all(x > 0 for line in series for x in line["x"])
        label = f"test {study.metric}"
        charts.append({"series": series, "xLabel": key, "yLabel": label, "logX": by_factors})
    return charts


_TOO_FEW = "too few arms that did not diverge, or seeds"


def optimum_of(
    study: Study, verdicts: Mapping[str, Any], key: str, arms: Sequence[str]
) -> Optimum | str:
    """Returns the best value of an option over a group of sweeps_of, or why there is none."""
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
    return optimum(values, np.array([[sign * by_seed[s] for by_seed in of_arm] for s in seeds]))


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
            note = "" if isinstance(best_value, str) else by_parabola(best_value)
            sentences.append(sentence + note)
    return sentences


def by_parabola(best: Optimum) -> str:
    """A parabola's estimate of the best value."""
    low, high = best.interval
    return f"; by a parabola {best.at:.3g} is the best value, 95 % [{low:.3g}, {high:.3g}]"


def floor_of(study: Study) -> float | None:
    """Returns the best possible loss in nats, if the task knows it."""
    protocols = (study.cell(study.base, s).means().get("protocol", {}) for s in study.seeds)
    return next((p["floor"] for p in protocols if "floor" in p), None)

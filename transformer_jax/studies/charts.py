"""Scores as a function of an option that the arms sweep, and the option's best value."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.options import is_number
from transformer_jax.studies.statistics import Optimum, optimum
from transformer_jax.studies.study import Study

_FEWEST_VALUES = 3  # of an option, for a line over it to be informative


def sweeps_of(study: Study, verdicts: Mapping[str, Any]) -> dict[str, dict[str, list[str]]]:
    """Returns, for each swept option and each group, the names of the arms in order of its value.

    A swept option is numeric and has three or more values in a group. A group holds arms that agree
    in all other changed options and is named after these; "" if there are none.
    """
    known = {name: value for name, value in verdicts["values"].items() if value["mean"] is not None}
    sealed = {arm: v for arm, v in study.sealed["arms"].items() if arm in verdicts["values"]}
    keys = list(dict.fromkeys(key for changes in sealed.values() for key in changes))
    settings = {arm: {key: study.value_of(arm, key) for key in keys} for arm in sealed}
    sweeps: dict[str, dict[str, list[str]]] = {}
    for key in keys:
        groups: dict[str, list[str]] = {}
        for arm, options in settings.items():
            if is_number(options[key]) and arm in known:
                rest = ", ".join(f"{k}={value}" for k, value in options.items() if k != key)
                groups.setdefault(rest, []).append(arm)
        ordered = {
            rest: sorted(arms, key=lambda arm: settings[arm][key])
            for rest, arms in groups.items()
            if len({settings[arm][key] for arm in arms}) >= _FEWEST_VALUES
        }
        sweeps |= {key: ordered} if ordered else {}
    return sweeps


def sweep_lines(study: Study, verdicts: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Returns, for each swept option, a line of scores over its values per group of arms.

    A line has a `name`, the option's values `x`, and the `mean`, `low` and `high` of their scores.
    """
    lines: dict[str, list[dict[str, Any]]] = {}
    for key, groups in sweeps_of(study, verdicts).items():
        for group, arms in groups.items():
            by_arm = [verdicts["values"][arm]["by_seed"].values() for arm in arms]
            scores = [[score for score in by_seed if score is not None] for by_seed in by_arm]
            line = {"name": group or study.metric, "x": [study.value_of(arm, key) for arm in arms]}
            line["mean"] = [float(np.mean(of_arm)) for of_arm in scores]
            line |= {"low": [*map(min, scores)], "high": [*map(max, scores)]}
            lines.setdefault(key, []).append(line)
    return lines


def optimum_of(
    study: Study, verdicts: Mapping[str, Any], key: str, arms: Sequence[str]
) -> Optimum | str:
    """Returns the best value of the option `key`, or the reason why there is none.

    `arms` is a group from sweeps_of.
    """
    arms = [arm for arm in arms if not verdicts["values"][arm].get("diverged")]
    by_arm = [verdicts["values"][arm]["by_seed"] for arm in arms]
    seeds = [s for s in by_arm[0] if all(v.get(s) is not None for v in by_arm)] if arms else []
    if len(arms) < _FEWEST_VALUES or len(seeds) < 2:
        return "too few seeds, or too few arms that did not diverge"
    values = [study.value_of(arm, key) for arm in arms]
    if len(set(values)) < len(values) or values[0] <= 0:
        return "not known, since the values are not distinct and positive"
    sign = -1 if study.sealed["larger_is_better"] else 1
    return optimum(values, np.array([[sign * by_seed[s] for by_seed in by_arm] for s in seeds]))


def best_of_sweeps(study: Study, verdicts: Mapping[str, Any]) -> list[str]:
    """Returns a sentence for each swept option and group, naming the arm with the best mean."""
    best = max if study.sealed["larger_is_better"] else min
    sentences = []
    for key, groups in sweeps_of(study, verdicts).items():
        for group, arms in groups.items():
            values = {arm: verdicts["values"][arm] for arm in arms}
            means = {arm: v["mean"] for arm, v in values.items() if not v.get("diverged")}
            if not means:
                continue
            first = best(means, key=means.__getitem__)
            where = f" where {group}" if group else ""
            sentence = f"{key}{where}: the best mean is that of {first}, {means[first]:.4f}"
            found = optimum_of(study, verdicts, key, arms)
            if not isinstance(found, str):
                low, high = found.interval
                sentence += f"; by a parabola {found.at:.3g} is the best value, "
                sentence += f"95 % [{low:.3g}, {high:.3g}]"
            sentences.append(sentence)
    return sentences

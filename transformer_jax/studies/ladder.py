"""The same contrast at several scales: whether an effect holds, shrinks, grows or flips.

Each rung is a study of its own, with the same arms and seeds and one option of the base at another
value. A seed's differences over the rungs give that seed's slope and that seed's forecast of the
largest rung from the smaller ones; means over seeds of either get paired intervals as verdicts do.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.errors import InvalidInput
from transformer_jax.studies import statistics
from transformer_jax.studies.arms import parse_arm
from transformer_jax.studies.design import Design, load_design
from transformer_jax.studies.study import Study, as_plain
from transformer_jax.studies.tables import as_markdown, signed, spell, spell_interval
from transformer_jax.training.config import flatten, load_config
from transformer_jax.training.runs import replace

HOLDS, GROWS, SHRINKS, FLIPS = "holds", "grows", "shrinks", "flips"
SIGN, NONE = "keeps its sign", "unresolved"
_FEWEST = 3


class Ladder(NamedTuple):
    """Designs by the value of one option.

    Attributes:
      key: of the config.
      rungs: value -> design, ascending.
    """

    key: str
    rungs: dict[float, Design]


def load_ladder(
    text: str,
    path: str,
    overrides: Mapping[str, str],
    arms: Sequence[str] = (),
    drops: Sequence[str] = (),
) -> Ladder:
    """Reads `KEY=VALUE,VALUE,VALUE`: numbers, ascending, three or more.

    Args:
      text: of `--ladder`.
      path: of the study's config file.
      overrides: of the base, full key -> text.
      arms: texts of `--arm`.
      drops: names of `--drop`.
    Raises:
      InvalidInput: it is something else, or an arm sets the key itself.
    """
    points = parse_arm(text, flatten(load_config(path, overrides)), whole_keys=True)
    keys = {key for point in points.values() for key in point}
    values = [value for point in points.values() for value in point.values()]
    if len(keys) != 1 or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise InvalidInput(f"--ladder={text}: expected one KEY=NUMBER,NUMBER,NUMBER")
    if len(values) < _FEWEST or sorted(set(values)) != values or not values[0] > 0:
        raise InvalidInput(
            f"--ladder={text}: expected {_FEWEST} or more numbers > 0, ascending: the smaller ones "
            "forecast the largest"
        )
    (key,) = keys
    rungs = {v: load_design(path, {**overrides, key: str(v)}, arms, drops) for v in values}
    for name, changes in rungs[values[0]].arms.items():
        if key in changes:
            raise InvalidInput(f"--ladder={text}: arm {name!r} sets {key} itself")
    return Ladder(key, rungs)


def rung_path(workdir: str | Path, key: str, value: float) -> Path:
    """Returns the directory of a rung's study."""
    return Path(workdir) / f"{key}={value:g}"


def judge_ladder(workdir: str | Path, key: str, values: Sequence[float]) -> dict[str, Any]:
    """Compares the rungs' verdicts and writes ladder.json and ladder.md.

    Args:
      workdir: of the ladder.
      key: of the config.
      values: of the rungs, ascending; their studies are judged.
    Returns:
      What ladder.json holds.
    """
    workdir = Path(workdir)
    verdicts = [Study(rung_path(workdir, key, value)).verdicts() for value in values]
    first = verdicts[0]
    found = {
        "question": first["question"],
        "key": key,
        "values": list(values),
        "metric": first["metric"],
        "margin": first["margin"],
        "base": first["base"],
        "scores": [v["values"][v["base"]]["mean"] for v in verdicts],
        "forecast_of_score": _of_scores(values, [v["values"][v["base"]] for v in verdicts]),
        "arms": {
            arm: over_scales(
                values,
                [_differences(v["arms"][arm]) for v in verdicts],
                first["margin"],
                len(first["arms"]),
                min(v["level"] for v in verdicts),
            )
            if not any(v["values"][n]["diverged"] for v in verdicts for n in (arm, v["base"]))
            else {"word": f"{NONE}: some runs diverged", "seeds": []}
            for arm in first["arms"]
        },
    }
    replace(workdir / "ladder.json", json.dumps(as_plain(found), indent=1) + "\n")
    replace(workdir / "ladder.md", as_text(found))
    return found


def _differences(arm: Mapping[str, Any]) -> dict[int, float]:
    return dict(zip(arm.get("seeds", ()), arm.get("differences", ()), strict=False))


def over_scales(
    values: Sequence[float],
    differences: Sequence[Mapping[int, float]],
    margin: float,
    family: int = 1,
    level: float = 0.05,
) -> dict[str, Any]:
    """Says what becomes of an effect with scale.

    In this order: unresolved, if fewer than 3 seeds have all rungs; flips, if the intervals of the
    smallest and the largest rung exclude 0 on opposite sides; grows or shrinks, if the slope's
    interval excludes 0 and makes more than the margin over the ladder, by which end is larger;
    holds, if every rung's interval lies within the margin, or all exclude 0 on one side and the
    change over the ladder is surely less than the margin or half the mean effect; keeps its sign,
    if only the former is sure; else unresolved.

    Args:
      values: of the rungs, ascending.
      differences: seed -> difference from the base, + is better, of each rung.
      margin: the smallest difference that matters.
      family: arms that are looked at together; intervals are simultaneous over them.
      level: of all of them.
    Returns:
      word; means, intervals (of each rung), slope (per doubling of the value), slope_interval;
      forecast (of the largest rung, by each seed's line through the smaller ones over log value),
      forecast_interval, missed_by and missed_interval (largest rung less forecast).
    """
    seeds = sorted(set.intersection(*(set(rung) for rung in differences)))
    if len(seeds) < _FEWEST:
        return {"word": NONE, "seeds": seeds}
    d_RS = np.array([[rung[seed] for seed in seeds] for rung in differences])
    x_R = np.log2(np.asarray(values, float))
    bound = level / family
    rungs = [_interval(row, bound) for row in d_RS]
    slope_S = np.polyfit(x_R, d_RS, 1)[0]
    forecast_S = np.polyval(np.polyfit(x_R[:-1], d_RS[:-1], 1), x_R[-1])
    slope, missed = _interval(slope_S, bound), _interval(d_RS[-1] - forecast_S, bound)
    return {
        "word": _word(d_RS.mean(1), rungs, slope, float(x_R[-1] - x_R[0]), margin),
        "seeds": seeds,
        "means": d_RS.mean(1).tolist(),
        "intervals": rungs,
        "slope": float(slope_S.mean()),
        "slope_interval": slope,
        "forecast": float(forecast_S.mean()),
        "forecast_interval": _interval(forecast_S, bound),
        "missed_by": float((d_RS[-1] - forecast_S).mean()),
        "missed_interval": missed,
    }


def _word(
    means: np.ndarray,
    rungs: Sequence[tuple[float, float]],
    slope: tuple[float, float],
    doublings: float,
    margin: float,
) -> str:
    sides = [1 if low > 0 else -1 if high < 0 else 0 for low, high in rungs]
    if sides[0] * sides[-1] < 0:
        return FLIPS
    low, high = (bound * doublings for bound in slope)
    if (low > 0 or high < 0) and abs(low + high) / 2 > margin:
        return GROWS if abs(means[-1]) > abs(means[0]) else SHRINKS
    alike = set(sides) in ({1}, {-1})
    little = max(-low, high) < max(margin, abs(means.mean()) / 2)
    if all(-margin < low and high < margin for low, high in rungs) or (alike and little):
        return HOLDS
    return SIGN if alike else NONE


def _interval(samples: np.ndarray, level: float) -> tuple[float, float]:
    mean, error, _ = map(float, statistics.paired_t(samples))
    return statistics.interval(mean, error, len(samples), level)


def _of_scores(values: Sequence[float], scores: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Forecast of the base's own score at the largest rung: a power law through the smaller ones.

    Kaplan et al. 2020, arXiv:2001.08361, equation 1.1, without a floor: log score is a line over
    log value. {} where a score is not positive or too few seeds have all rungs.
    """
    by_seed = [{s: v for s, v in rung["by_seed"].items() if v} for rung in scores]
    seeds = sorted(set.intersection(*(set(rung) for rung in by_seed)))
    if len(seeds) < _FEWEST or min(min(rung.values()) for rung in by_seed) <= 0:
        return {}
    logs_RS = np.log([[rung[seed] for seed in seeds] for rung in by_seed])
    x_R = np.log2(np.asarray(values, float))
    forecast_S = np.exp(np.polyval(np.polyfit(x_R[:-1], logs_RS[:-1], 1), x_R[-1]))
    seen_S = np.exp(logs_RS[-1])
    return {
        "forecast": float(forecast_S.mean()),
        "interval": _interval(forecast_S, 0.05),
        "seen": float(seen_S.mean()),
        "missed_interval": _interval(seen_S - forecast_S, 0.05),
    }


def as_text(found: Mapping[str, Any]) -> str:
    """The ladder as Markdown: a row an arm and rung, and the word for each arm."""
    rows, lines = [], []
    for arm, told in found["arms"].items():
        lines.append(f"- **{arm}: {told['word']}**{_told(told)}")
        if "means" in told:
            rungs = zip(found["values"], told["means"], told["intervals"], strict=True)
            rows += [[arm, f"{v:g}", signed(m), spell_interval(i)] for v, m, i in rungs]
    heads = ["arm", found["key"], f"{found['metric']}, difference", "interval"]
    scores = ", ".join(
        f"{spell(score)} at {value:g}"
        for score, value in zip(found["scores"], found["values"], strict=True)
    )
    about = [f"The base, {found['base']}: {scores}."]
    law = found["forecast_of_score"]
    if law:
        about.append(
            f"A power law through the smaller ones forecasts {spell(law['forecast'])} "
            f"{spell_interval(law['interval'])} at {found['values'][-1]:g}; it was "
            f"{spell(law['seen'])}."
        )
    head = f"# {found['question']}\n\nOver {found['key']}; + is better than {found['base']}.\n"
    return "\n".join([head, *lines, "", as_markdown(heads, rows), " ".join(about), ""])


def _told(told: Mapping[str, Any]) -> str:
    if not math.isfinite(told.get("slope", math.nan)):
        return f" ({len(told['seeds'])} seeds have all rungs)"
    return (
        f": {signed(told['slope'])} {spell_interval(told['slope_interval'])} per doubling; the "
        f"smaller rungs forecast {signed(told['forecast'])} "
        f"{spell_interval(told['forecast_interval'])} for the largest, it was "
        f"{signed(told['means'][-1])}"
    )

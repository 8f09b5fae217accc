"""What becomes of an effect with scale, or over several draws of the splits.

A seed's differences over the rungs of a ladder give that seed's slope and that seed's forecast of
the largest rung from the smaller ones; means over seeds of either get paired intervals. A line over
log scale is tested before its slope gives a word.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import stats

from transformer_jax.studies.inference import statistics
from transformer_jax.studies.inference.new_text import beyond_this_text

HOLDS, GROWS, SHRINKS, FLIPS = "holds", "grows", "shrinks", "flips"
TURNS, SIGN, NONE = "not monotone", "keeps its sign", "unresolved"
FEWEST = 3  # rungs, and seeds that have all of them


def over_scales(
    values: Sequence[float],
    differences: Sequence[Mapping[int, float]],
    margin: float,
    family: int = 1,
    level: float = 0.05,
) -> dict[str, Any]:
    """Says what becomes of an effect with scale.

    In this order: unresolved, if fewer than 3 seeds have all rungs; flips, if the intervals of the
    smallest and the largest rung exclude 0 on opposite sides; not monotone, if some larger rung's
    interval lies above a smaller one's and some below; grows or shrinks, by which end is larger, if
    the slope's interval excludes 0 and makes more than the margin over the ladder, or, where a line
    does not fit, if the ends' intervals lie apart and their means by more than the margin; holds,
    if every rung's interval lies within the margin, or all exclude 0 on one side and the change
    over the ladder (by the line or, where none fits, from the lowest to the highest bound) is less
    than the margin or half the mean effect; keeps its sign, if only the former is sure; else
    unresolved.

    Args:
      values: of the rungs, ascending: parameters, say.
      differences: seed -> difference from the base, + is better, of each rung.
      margin: the smallest difference that matters.
      family: arms that are looked at together; intervals are simultaneous over them, over the
        rungs and the slope.
      level: of all of them.
    Returns:
      word; means, intervals (of each rung), slope (per doubling of the value), slope_interval;
      line_p (that a line describes the means over log value);
      forecast (of the largest rung, by each seed's line through the smaller ones over log value),
      forecast_interval, missed_by and missed_interval (largest rung less forecast).
    """
    seeds = sorted(set.intersection(*(set(rung) for rung in differences)))
    if len(seeds) < FEWEST:
        return {"word": NONE, "seeds": seeds}
    d_RS = np.array([[rung[seed] for seed in seeds] for rung in differences])
    x_R = np.log2(np.asarray(values, float))
    bound = level / family / (len(values) + 1)
    rungs = [_interval(row, bound) for row in d_RS]
    line = np.polyval(np.polyfit(x_R, d_RS.mean(1), 1), x_R)
    line_p = lack_of_fit_p(d_RS, line) or 0.0
    slope_S = np.polyfit(x_R, d_RS, 1)[0]
    forecast_S = _on_lines(x_R, d_RS[:-1])
    slope = _interval(slope_S, bound)
    missed = _interval(d_RS[-1] - forecast_S, level / family)
    return {
        "word": _word(
            d_RS.mean(1), rungs, slope, float(x_R[-1] - x_R[0]), margin, line_p > level / family
        ),
        "seeds": seeds,
        "means": d_RS.mean(1).tolist(),
        "intervals": rungs,
        "slope": float(slope_S.mean()),
        "slope_interval": slope,
        "line_p": line_p,
        "level": bound,
        "forecast": float(forecast_S.mean()),
        "forecast_interval": _interval(forecast_S, level / family),
        "missed_by": float((d_RS[-1] - forecast_S).mean()),
        "missed_interval": missed,
    }


def _on_lines(x: np.ndarray, smaller: np.ndarray) -> np.ndarray:
    """Each seed's line through its smaller rungs [R - 1, S], at the last x of [R]: [S]."""
    return np.polyval(np.polyfit(x[:-1], smaller, 1), x[-1])


def forecast_of_differences(
    values: Sequence[float], smaller: Sequence[Mapping[int, float]], level: float
) -> dict[str, Any]:
    """Forecasts an effect at the largest rung from the smaller ones alone, as over_scales does.

    Args:
      values: of all rungs, ascending.
      smaller: seed -> difference from the base, of each but the largest.
      level: 1 minus the coverage of the interval.
    Returns:
      forecast and interval; {} where too few seeds have all rungs.
    """
    seeds = sorted(set.intersection(*(set(rung) for rung in smaller)))
    if len(seeds) < FEWEST:
        return {}
    d_RS = np.array([[rung[seed] for seed in seeds] for rung in smaller])
    forecast_S = _on_lines(np.log2(np.asarray(values, float)), d_RS)
    return {"forecast": float(forecast_S.mean()), "interval": _interval(forecast_S, level)}


def over_splits(
    differences: Sequence[Mapping[int, float]],
    margin: float,
    family: int = 1,
    level: float = 0.05,
) -> dict[str, Any]:
    """Says whether an effect is one for other seeds and other splits of the same data.

    Seeds and splits are crossed, see beyond_this_text; the word is read off the interval of their
    joint mean.

    Args:
      differences: seed -> difference from the base, + is better, of each split.
      margin: the smallest difference that matters.
      family: arms that are looked at together.
      level: of all of them.
    Returns:
      word, seeds; means and intervals (of each split alone); mean, interval and level (over both).
    """
    seeds = sorted(set.intersection(*(set(split) for split in differences)))
    if len(seeds) < FEWEST:
        return {"word": NONE, "seeds": seeds}
    d_RS = np.array([[split[seed] for seed in seeds] for split in differences])
    low, high = beyond_this_text(d_RS.T, level / family)
    return {
        "word": statistics.read_off(low, high, margin)[1],
        "seeds": seeds,
        "means": d_RS.mean(1).tolist(),
        "intervals": [_interval(row, level / family / len(d_RS)) for row in d_RS],
        "mean": float(d_RS.mean()),
        "interval": (low, high),
        "level": level / family,
    }


def _word(
    means: np.ndarray,
    rungs: Sequence[tuple[float, float]],
    slope: tuple[float, float],
    doublings: float,
    margin: float,
    is_a_line: bool,
) -> str:
    sides = [1 if low > 0 else -1 if high < 0 else 0 for low, high in rungs]
    if sides[0] * sides[-1] < 0:
        return FLIPS
    if turns(rungs):
        return TURNS
    low, high = (bound * doublings for bound in slope)
    change = abs(means[-1] - means[0])
    if is_a_line:
        is_sure, change = low > 0 or high < 0, abs(low + high) / 2
    else:
        is_sure = rungs[0][1] < rungs[-1][0] or rungs[-1][1] < rungs[0][0]
    if is_sure and change > margin:
        return GROWS if abs(means[-1]) > abs(means[0]) else SHRINKS
    alike = set(sides) in ({1}, {-1})
    most = max(-low, high) if is_a_line else max(r[1] for r in rungs) - min(r[0] for r in rungs)
    little = most < max(margin, abs(means.mean()) / 2)
    if all(-margin < low and high < margin for low, high in rungs) or (alike and little):
        return HOLDS
    return SIGN if alike else NONE


def turns(rungs: Sequence[Sequence[float]]) -> bool:
    """Whether intervals of ascending rungs show a rise and a fall: pairs of them that lie apart."""
    pairs = list(itertools.combinations(rungs, 2))
    rises = any(before[1] < after[0] for before, after in pairs)
    return rises and any(after[1] < before[0] for before, after in pairs)


def lack_of_fit_p(differences: np.ndarray, fitted: np.ndarray, numbers: int = 2) -> float | None:
    """Returns the p that the means of rungs lie on a curve: F over rungs within seeds.

    Args:
      differences: [R, S], of each rung and seed.
      fitted: [R], the curve at each rung.
      numbers: that were fitted; 2 of a line. None where there are no more rungs than that.
    """
    rungs, seeds = differences.shape
    freedom = (rungs - numbers, (rungs - 1) * (seeds - 1))
    if freedom[0] < 1:
        return None
    means = differences.mean(1)
    left = differences - means[:, None] - differences.mean(0) + differences.mean()
    lack = seeds * ((means - fitted) ** 2).sum() / freedom[0]
    noise = (left**2).sum() / freedom[1]
    largest = np.abs(differences).max()
    if lack <= (1e-9 * largest) ** 2:
        return 1.0
    return float(stats.f.sf(lack / noise, *freedom)) if noise else 0.0


def _interval(samples: np.ndarray, level: float) -> tuple[float, float]:
    return statistics.paired_interval(samples, level).interval


def forecast_of_scores(
    values: Sequence[float], scores: Sequence[Mapping[int, float | None]]
) -> dict[str, Any]:
    """Forecasts the base's own score at the largest rung: a power law through the smaller ones.

    Kaplan et al. 2020, arXiv:2001.08361, equation 1.1, without a floor: log score is a line over
    log value. {} where a score is not positive or too few seeds have all rungs.

    Args:
      values: of all rungs, ascending.
      scores: seed -> score, of all rungs; or of all but the largest, which is then not compared.
    """
    by_seed = [
        {seed: value for seed, value in rung.items() if value is not None} for rung in scores
    ]
    seeds = sorted(set.intersection(*(set(rung) for rung in by_seed)))
    if len(seeds) < FEWEST or min(min(rung.values()) for rung in by_seed) <= 0:
        return {}
    logs_RS = np.log([[rung[seed] for seed in seeds] for rung in by_seed])
    x_R = np.log2(np.asarray(values, float))
    forecast_S = np.exp(_on_lines(x_R, logs_RS[: len(x_R) - 1]))
    forecast = {"forecast": float(forecast_S.mean()), "interval": _interval(forecast_S, 0.05)}
    if len(logs_RS) < len(x_R):
        return forecast
    seen_S = np.exp(logs_RS[-1])
    return {
        **forecast,
        "seen": float(seen_S.mean()),
        "missed_interval": _interval(seen_S - forecast_S, 0.05),
    }

"""What becomes of an effect with scale: it holds, shrinks, grows or flips, and what was forecast.

A seed's differences over the rungs of a ladder give that seed's slope and that seed's forecast of
the largest rung from the smaller ones; means over seeds of either get paired intervals.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from transformer_jax.studies.inference import statistics

HOLDS, GROWS, SHRINKS, FLIPS = "holds", "grows", "shrinks", "flips"
SIGN, NONE = "keeps its sign", "unresolved"
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
    if len(seeds) < FEWEST:
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
    return statistics.paired_interval(samples, level).interval


def forecast_of_scores(
    values: Sequence[float], scores: Sequence[Mapping[int, float | None]]
) -> dict[str, Any]:
    """Forecasts the base's own score at the largest rung: a power law through the smaller ones.

    Kaplan et al. 2020, arXiv:2001.08361, equation 1.1, without a floor: log score is a line over
    log value. {} where a score is not positive or too few seeds have all rungs.
    """
    by_seed = [{seed: value for seed, value in rung.items() if value} for rung in scores]
    seeds = sorted(set.intersection(*(set(rung) for rung in by_seed)))
    if len(seeds) < FEWEST or min(min(rung.values()) for rung in by_seed) <= 0:
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

"""The best value of an option, from a parabola over its logarithm."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

_WIDEST = 50.0  # the logarithm of a factor; a wider interval says nothing, and has no float64


class Optimum(NamedTuple):
    """The best value of an option.

    Attributes:
      at: The value.
      interval: Confidence interval of the best value; an end beyond the values that were tried is
        an extrapolation.
    """

    at: float
    interval: tuple[float, float]


def lowest_point(values: Sequence[float], losses: Sequence[float]) -> float | None:
    """Returns where a parabola through the best value and its two neighbours is lowest.

    The parabola is laid over the logarithm of the values. Near an optimum the loss is quadratic in
    the logarithm of a learning rate, so that grids with the optimum on and between their values
    give the same answer up to noise.

    Args:
      values: Grid of V >= 3 positive values, ascending.
      losses: Mean loss at each of them, [V]; infinite where a run diverged.

    Returns:
      The value; None if the best one is the first or the last of the grid.
    """
    y_V = np.asarray(losses, float)
    best = int(y_V.argmin())
    if not 0 < best < len(y_V) - 1 or not math.isfinite(y_V[best]):
        return None
    worst = y_V[np.isfinite(y_V)].max()  # a diverged neighbour would hide all curvature
    y_3 = np.minimum(y_V[best - 1 : best + 2], worst)
    x_3 = np.log(values[best - 1 : best + 2])
    if np.ptp(y_3) == 0:  # both neighbours diverged
        return float(values[best])
    c, b, _ = np.polyfit(x_3 - x_3[1], y_3, 2)
    return math.exp(x_3[1] - b / (2 * c)) if c > 0 else float(values[best])


def optimum(values: Sequence[float], losses: np.ndarray, level: float = 0.05) -> Optimum | str:
    """Returns the lowest point of a parabola over the logarithm, with Fieller's interval.

    The parabola goes through the best value and its neighbours (the three at that end, if the first
    or the last is the best). The slope b + 2 c x of the means is 0 at the lowest point x; the
    interval holds every x at which the slope differs from 0 by less than t standard errors.

    Args:
      values: Grid of V >= 3 positive values, ascending.
      losses: [S, V] of S >= 2 seeds, smaller is better.
      level: 1 minus the coverage.

    Returns:
      The optimum, or a sentence saying why there is none.
    """
    y_SV = np.asarray(losses, float)
    first = min(max(int(y_SV.mean(0).argmin()) - 1, 0), len(values) - 3)
    y_SV, middle = y_SV[:, first : first + 3], math.log(values[first + 1])
    x_V = np.log(values[first : first + 3]) - middle
    to_coefficients = np.linalg.inv(np.vander(x_V, 3))[:2]  # rows c, b
    c, b = to_coefficients @ y_SV.mean(0)
    if not (c > 0 and x_V[0] <= -b / (2 * c) <= x_V[2]):
        return "none between the arms"
    residuals = y_SV - y_SV.mean(0) - y_SV.mean(1, keepdims=True) + y_SV.mean()
    freedom = 2 * (len(y_SV) - 1)
    variance = float((residuals**2).sum()) / freedom / len(y_SV)
    squared_t = float(stats.t.ppf(1 - level / 2, freedom)) ** 2
    (cc, cb), (_, bb) = squared_t * variance * to_coefficients @ to_coefficients.T
    of_square, of_x = 4 * (c * c - cc), 4 * (b * c - cb)
    if not of_square > 0:
        return "the curvature is not certain"
    root = math.sqrt(max(of_x**2 - 4 * of_square * (b * b - bb), 0.0))
    at, (low, high) = -b / (2 * c), [(side * root - of_x) / (2 * of_square) for side in (-1, 1)]
    if max(-low, high) > _WIDEST:
        return "the curvature is not certain"
    return Optimum(math.exp(middle + at), (math.exp(middle + low), math.exp(middle + high)))


def moved(before: Optimum, after: Optimum) -> Optimum:
    """Returns the factor by which an optimum moved, with the MOVER interval of both.

    Zou and Donner 2008, Statistics in Medicine 27, 1693-1702.
    """
    (at, (low, high)), (was, (was_low, was_high)) = (
        (math.log(its.at), [math.log(end) for end in its.interval]) for its in (after, before)
    )
    way = at - was
    ends = (
        way - math.hypot(at - low, was_high - was),
        way + math.hypot(high - at, was - was_low),
    )
    return Optimum(math.exp(way), (math.exp(ends[0]), math.exp(ends[1])))

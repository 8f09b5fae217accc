"""How much of the base's compute an arm is worth, from the scores of both over several scales.

Scores of base and arm follow power laws with one floor (Hoffmann et al. 2022, equation 2, with one
of its terms; Kaplan et al. 2020, equation 1.1, where the floor is 0):

  base  L(x) = E + A x^-a          arm  L(x) = E + B x^-b

The arm's multiplier at x is the m with base(m x) = arm(x): 1.5 means that the base needs one and a
half times as much to score as the arm does.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

from transformer_jax.studies.inference.scales import lack_of_fit_p

FEWEST = 3  # rungs, and seeds
_FEWEST_FOR_A_FLOOR = 4  # rungs; with fewer it is 0
_RESAMPLED = 400


class Laws(NamedTuple):
    """Power laws of base and arm over x divided by `unit`.

    Attributes:
      floor: E, of both.
      base: log A and a.
      arm: log B and b.
      unit: a middle x, so that numbers are near 1.
    """

    floor: float
    base: tuple[float, float]
    arm: tuple[float, float]
    unit: float

    def score(self, which: str, x: np.ndarray | float) -> np.ndarray:
        """What `base` or `arm` score at x."""
        log_scale, power = getattr(self, which)
        return self.floor + np.exp(log_scale - power * np.log(np.asarray(x) / self.unit))

    def log_multiplier(self, x: float) -> float:
        """Log m, where base(m x) = arm(x)."""
        log_a, a = self.base
        above = math.log(max(float(self.score("arm", x)) - self.floor, 1e-300))
        return (log_a - above) / a - math.log(x / self.unit)


class Multiplier(NamedTuple):
    """What an arm is worth.

    Attributes:
      largest: multiplier at the arm's largest x.
      interval: of that.
      smallest: at its smallest x.
      change: how many times larger it is at the largest than at the smallest.
      change_interval: of that.
      floor: E of the laws.
      fit_p: that both laws describe the means: F over rungs within seeds; None where nothing is
        left to test it by.
      extrapolated: whether the base was never trained as large as the arm is worth.
    """

    largest: float
    interval: tuple[float, float]
    smallest: float
    change: float
    change_interval: tuple[float, float]
    floor: float
    fit_p: float | None
    extrapolated: bool


def multiplier_of(
    base_x: np.ndarray,
    arm_x: np.ndarray,
    base: np.ndarray,
    arm: np.ndarray,
    level: float = 0.05,
    at: float | None = None,
) -> Multiplier | None:
    """Compares an arm with its base over scales.

    Intervals are t intervals of the logarithm; its standard error is that of a bootstrap over
    seeds, which are drawn for both and all rungs together.

    Args:
      base_x: [R], parameters, tokens or operations of the base at each rung, ascending.
      arm_x: the same of the arm.
      base: [R, S], its scores by rung and seed, > 0, smaller is better.
      arm: the same, of the same seeds.
      level: 1 minus the coverage of the intervals.
      at: x of the arm at which it is compared; its largest if not given.
    Returns:
      The multiplier; None where there are too few rungs or seeds, or the base does not get better.
    """
    rungs, seeds = base.shape
    has_floor = rungs >= _FEWEST_FOR_A_FLOOR
    largest = float(arm_x[-1]) if at is None else at
    if rungs < FEWEST - (at is not None) or seeds < FEWEST or min(base.min(), arm.min()) <= 0:
        return None
    laws = fitted(base_x, arm_x, base.mean(1), arm.mean(1), has_floor)
    if laws is None:
        return None
    random = np.random.default_rng(0)
    estimates = []
    for drawn in random.integers(seeds, size=(_RESAMPLED, seeds)):
        means = (base[:, drawn].mean(1), arm[:, drawn].mean(1))
        again = fitted(base_x, arm_x, *means, has_floor, start=laws)
        if again is not None:
            estimates.append([again.log_multiplier(x) for x in (largest, float(arm_x[0]))])
    ends = np.array([laws.log_multiplier(x) for x in (largest, float(arm_x[0]))])
    if len(estimates) < 0.9 * _RESAMPLED:
        return None  # the base hardly gets better: many of its bootstrap samples do not

    def bounds(value: float, samples: np.ndarray) -> tuple[float, float]:
        # A bootstrap's variance is that of n, where the mean's is of n - 1.
        error = float(samples.std(ddof=1)) * math.sqrt(seeds / (seeds - 1))
        half = float(stats.t.ppf(1 - level / 2, seeds - 1)) * error
        return _exp(value - half), _exp(value + half)

    samples, change = np.array(estimates), float(ends[0] - ends[1])
    forecast = np.concatenate([laws.score("base", base_x), laws.score("arm", arm_x)])
    return Multiplier(
        largest=_exp(ends[0]),
        interval=bounds(ends[0], samples[:, 0]),
        smallest=_exp(ends[1]),
        change=_exp(change),
        change_interval=bounds(change, samples[:, 0] - samples[:, 1]),
        floor=laws.floor,
        fit_p=lack_of_fit_p(np.concatenate([base, arm]), forecast, 5 if has_floor else 4),
        extrapolated=bool(_exp(ends[0]) * largest > base_x[-1] * (1 + 1e-6)),
    )


def _exp(value: float) -> float:
    return math.exp(min(value, 700.0))


def fitted(
    base_x: np.ndarray,
    arm_x: np.ndarray,
    base: np.ndarray,
    arm: np.ndarray,
    has_floor: bool,
    start: Laws | None = None,
) -> Laws | None:
    """Fits both laws by least squares of the scores; None where the base does not get better.

    Args:
      base_x: [R].
      arm_x: [R].
      base: [R], means over seeds.
      arm: [R].
      has_floor: whether E is fitted; else it is 0.
      start: where to begin; from several floors if not given.
    """
    unit = float(np.exp(np.log(base_x).mean()))
    u, w = np.log(base_x / unit), np.log(arm_x / unit)
    lowest = float(min(base.min(), arm.min()))

    def off(parameters: np.ndarray) -> np.ndarray:
        floor = parameters[4] if has_floor else 0.0
        ours = floor + np.exp(parameters[0] - parameters[1] * u) - base
        return np.concatenate([ours, floor + np.exp(parameters[2] - parameters[3] * w) - arm])

    def lines(floor: float) -> list[float]:
        (a, log_a), (b, log_b) = (
            np.polyfit(x, np.log(score - floor), 1) for x, score in ((u, base), (w, arm))
        )
        return [log_a, -a, log_b, -b, *([floor] if has_floor else [])]

    bounds = [(-np.inf, np.inf)] * 4 + [(0.0, 0.999 * lowest)] * has_floor
    begins = [lines(share * lowest) for share in ((0.0, 0.5, 0.9) if has_floor else (0.0,))]
    if start is not None:
        floor = min(start.floor, 0.99 * lowest)
        begins = [[*start.base, *start.arm, *([floor] if has_floor else [])]]
    solve: Callable = optimize.least_squares
    tried = [solve(off, begin, bounds=tuple(zip(*bounds, strict=True))) for begin in begins]
    best = min(tried, key=lambda its: its.cost)
    log_a, a, log_b, b = map(float, best.x[:4])
    floor = float(best.x[4]) if has_floor else 0.0
    return Laws(floor, (log_a, a), (log_b, b), unit) if a > 1e-6 else None

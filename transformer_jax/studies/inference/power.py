"""How many seeds a question needs, and what few seeds can show."""

import math

import numpy as np
from scipy import optimize, stats

ALPHA = 0.05
FEWEST_FOR_EQUIVALENCE = 5
_POWER = 0.8
_MOST_SEEDS = 10_000


def power_of_t(shift: float, freedom: float, level: float) -> float:
    """Returns the power of the paired t test at an effect in units of the standard error."""
    cut = stats.t.ppf(1 - level / 2, freedom)
    upper = stats.nct.sf(cut, freedom, shift)
    lower = stats.nct.cdf(-cut, freedom, shift)
    return float(np.nan_to_num(upper) + np.nan_to_num(lower))


def detectable(count: int, level: float) -> float:
    """Returns the effect, in units of s_d, that the paired t test finds with 80 % power."""
    if count < 2:
        return math.inf
    lack = lambda d: power_of_t(d * math.sqrt(count), count - 1, level) - _POWER  # noqa: E731
    return float(optimize.brentq(lack, 0, 10 / level))


def power_of_equivalence(margin: float, freedom: float, level: float) -> float:
    """Returns the power of two one-sided tests where the effect is 0.

    Integrated over the sample deviation, on which both tests depend; the margin is in units of the
    standard error.
    """
    cut = stats.t.ppf(1 - level, freedom)
    shares = (np.arange(2000) + 0.5) / 2000
    deviation = np.sqrt(stats.chi2.ppf(shares, freedom) / freedom)
    room = margin - cut * deviation
    return float(np.mean(np.where(room > 0, 2 * stats.norm.cdf(room) - 1, 0)))


def seeds_needed(deviation: float, count: int, margin: float, level: float = ALPHA) -> int | None:
    """Returns the smallest number of seeds with 80 % power at the margin; never from the effect.

    The deviation is replaced by its upper bound, s_d sqrt(nu / chi2(.20, nu)). None where that is
    more than anybody runs.

    Args:
      deviation: s_d, of `count` seeds.
      count: seeds so far.
      margin: the smallest difference that matters.
      level: of the contrast's interval, 1 minus its coverage.
    """
    if count < 2 or not deviation > 0:
        return None
    freedom = count - 1
    bound = deviation * math.sqrt(freedom / stats.chi2.ppf(0.2, freedom))

    def suffices(n: int) -> bool:
        error = bound / math.sqrt(n)
        return (
            power_of_t(margin / error, n - 1, level) >= _POWER
            and power_of_equivalence(margin / error, n - 1, level / 2) >= _POWER
        )

    if not suffices(_MOST_SEEDS):
        return None
    low, high = FEWEST_FOR_EQUIVALENCE, FEWEST_FOR_EQUIVALENCE
    while not suffices(high):
        low, high = high, min(2 * high, _MOST_SEEDS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle + 1, high)
    return high

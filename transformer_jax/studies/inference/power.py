"""How many seeds a question needs, and what few seeds can show."""

import math
from collections.abc import Sequence

import numpy as np
from scipy import optimize, stats

from transformer_jax.studies.inference.tuned import widened

ALPHA = 0.05
FEWEST_FOR_EQUIVALENCE = 5
_POWER = 0.8
_MOST_SEEDS = 10_000


def power_of_t(effect: float, count: int, level: float) -> float:
    """Returns the power of the paired t test at an effect in units of s_d."""
    return _power_at(effect * math.sqrt(count), count - 1, level)


def _power_at(shift: float, freedom: float, level: float) -> float:
    """The same at an effect in units of the standard error."""
    cut = stats.t.ppf(1 - level / 2, freedom)
    upper = stats.nct.sf(cut, freedom, shift)
    lower = stats.nct.cdf(-cut, freedom, shift)
    return float(np.nan_to_num(upper) + np.nan_to_num(lower))


def detectable(count: int, level: float) -> float:
    """Returns the effect, in units of s_d, that the paired t test finds with 80 % power."""
    if count < 2:
        return math.inf
    lack = lambda effect: power_of_t(effect, count, level) - _POWER  # noqa: E731
    return float(optimize.brentq(lack, 0, 10 / level))


def power_of_equivalence(margin: float, count: int, level: float) -> float:
    """Returns the power of two one-sided tests where the effect is 0; margin in units of s_d.

    Integrated over the sample deviation, on which both tests depend.
    """
    return _equivalence_at(margin * math.sqrt(count), count - 1, level)


def _equivalence_at(margin: float, freedom: float, level: float) -> float:
    """The same with a margin in units of the standard error."""
    cut = stats.t.ppf(1 - level, freedom)
    shares = (np.arange(2000) + 0.5) / 2000
    deviation = np.sqrt(stats.chi2.ppf(shares, freedom) / freedom)
    reach = margin - cut * deviation
    return float(np.mean(np.where(reach > 0, 2 * stats.norm.cdf(reach) - 1, 0)))


def seeds_needed(
    deviation: float,
    count: int,
    margin: float,
    level: float = ALPHA,
    more: Sequence[tuple[float, float]] = (),
) -> int | None:
    """Returns the smallest number of seeds with 80 % power at the margin; never from the effect.

    The deviation is replaced by its upper bound, s_d sqrt(nu / chi2(.20, nu)). None where that is
    more than anybody runs, or where no number helps: what is uncertain beside the seeds stays.

    Args:
      deviation: s_d, of `count` seeds.
      count: seeds so far.
      margin: the smallest difference that matters.
      level: of the contrast's interval, 1 minus its coverage.
      more: (standard error, degrees of freedom) of what is uncertain beside the seeds.
    """
    if count < 2 or not deviation > 0:
        return None
    freedom = count - 1
    bound = deviation * math.sqrt(freedom / stats.chi2.ppf(0.2, freedom))

    def suffices(n: int) -> bool:
        error, freedom, _ = widened(0.0, bound / math.sqrt(n), n - 1, more)
        return (
            _power_at(margin / error, freedom, level) >= _POWER
            and _equivalence_at(margin / error, freedom, level / 2) >= _POWER
        )

    low, high = FEWEST_FOR_EQUIVALENCE, FEWEST_FOR_EQUIVALENCE
    while not suffices(high):
        if high >= _MOST_SEEDS:
            return None
        low, high = high, min(2 * high, _MOST_SEEDS)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if suffices(middle) else (middle + 1, high)
    return high

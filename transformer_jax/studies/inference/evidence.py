"""Evidence that may be looked at after every seed, and a false discovery rate over endless tries.

An e-value is at least 1 / a with probability at most a where the null hypothesis holds, whenever
one chooses to stop collecting (Ramdas et al. 2023, arXiv:2210.01948). Here it is that of a paired t
test, with a normal prior on the effect in deviations and the scale-free one on the deviation (Wang
and Ramdas 2024, arXiv:2310.03722); the hypothesis is that the mean is at most 0.

e-LOND (Xu and Ramdas 2024, arXiv:2311.06412) keeps the t-th confirmed change if its e-value is at
least 1 / (alpha gamma_t (kept so far + 1)), the gammas adding up to 1. Of all that is kept, at most
a share alpha is expected to be false, whatever the order and however tries depend on each other.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special, stats

FDR = 0.05  # share of kept changes that may be expected to be false
PRIOR = 2.0  # variance of the effect, in deviations of a difference, under the prior
SCREENING = 3  # seeds that say whether a change is worth confirming
FEWEST, MOST = 4, 16  # seeds of a confirmation
_FALL = 1.3
_ROUNDING = 1e-9  # of a difference
_FUTILE = 0.2  # e-value below which a confirmation ends


def e_value(differences: Any, prior: float = PRIOR) -> np.ndarray:
    """Returns the evidence that the mean of independent normal differences is above 0.

    Args:
      differences: [..., n], of n seeds, larger is better.
      prior: variance of the effect over the deviation.
    Returns:
      [...], 1 is no evidence; with no seeds 1, and where differences are equal but for rounding:
      seeds that differ in nothing are one.
    """
    d = np.asarray(differences, float)
    n = d.shape[-1]
    if n == 0:
        return np.ones(d.shape[:-1])
    total, mean = (d**2).sum(-1), d.mean(-1)
    shrunk = n / (n + 1 / prior)
    rest = total - shrunk * n * mean**2  # twice the posterior's scale
    with np.errstate(divide="ignore", invalid="ignore"):
        two_sided = -0.5 * np.log1p(n * prior) + n / 2 * np.log(total / rest)
        at = shrunk * mean / np.sqrt(rest / n / (n + 1 / prior))
        log_e = two_sided + np.log(2) + stats.t.logcdf(at, n)
    is_one = (n > 1) & (np.ptp(d, axis=-1) <= _ROUNDING * np.abs(d).max(-1))
    return np.where((total == 0) | is_one, 1.0, np.exp(np.minimum(log_e, 700)))


def anytime_interval(differences: Sequence[float], level: float = 0.05) -> tuple[float, float]:
    """Returns bounds of the mean that hold at whatever number of seeds one stops.

    All means are in it against which neither side has an e-value of 2 / level.

    Args:
      differences: of n seeds.
      level: share of series in which the mean is ever outside.
    """
    d = np.asarray(differences, float)
    if len(d) < 2 or np.ptp(d) == 0:
        return -math.inf, math.inf
    wide = 1e3 * float(np.ptp(d))

    def end(sign: int) -> float:
        def excess(shift: float) -> float:
            return float(np.log(e_value(sign * (d - d.mean()) + shift))) - math.log(2 / level)

        return float(optimize.brentq(excess, 0, wide)) if excess(wide) > 0 else math.inf

    return float(d.mean()) - end(1), float(d.mean()) + end(-1)


def share_of(test: int) -> float:
    """Returns gamma of the t-th confirmation, from 1 on; over all of them they add up to 1.

    Falling as t^-1.3 it still finds effects of 1.5 deviations after hundreds of confirmations,
    where 1 / t^2 does not: see `power`.
    """
    return test**-_FALL / float(special.zeta(_FALL))


def needed(test: int, kept: int) -> float:
    """Returns the e-value from which on the t-th confirmed change is kept.

    Args:
      test: t, from 1 on.
      kept: changes that were kept before.
    """
    return 1 / (FDR * share_of(test) * (kept + 1))


def looks_good(differences: Any) -> bool:
    """Whether a screened change is worth fresh seeds: its mean is a standard error above 0."""
    d = np.asarray(differences, float)
    if len(d) < 2:
        return bool(len(d) and d[0] > 0)
    mean = float(d.mean())
    return mean > 0 and mean >= float(d.std(ddof=1)) / math.sqrt(len(d))


def is_futile(differences: Any) -> bool:
    """Whether a confirmation may as well end: the evidence turned against the change."""
    return len(differences) >= FEWEST and float(e_value(differences)) < _FUTILE


class Series(NamedTuple):
    """What came of simulated tries.

    Attributes:
      power: share of good changes that are kept.
      false: mean share of kept changes that are not good.
      seeds: mean number of seeds of a try, of arm and base together, screening of the base once.
      confirmed: mean number of confirmations.
    """

    power: float
    false: float
    seeds: float
    confirmed: float


def power(
    tries: int,
    effect: float,
    *,
    good: float = 0.1,
    bad: float = 0.3,
    repeats: int = 20,
) -> Series:
    """Simulates series of tries, of which some are good, some bad, and the rest do nothing.

    Args:
      tries: in a series.
      effect: of good and bad changes, in deviations of a paired difference.
      good: share of good changes.
      bad: share of bad ones.
      repeats: series.
    """
    rng = np.random.default_rng(0)
    true, planted, false, seeds, confirmed = 0, 0, 0.0, 0, 0
    for _ in range(repeats):
        kinds = rng.choice([1, 0, -1], size=tries, p=[good, 1 - good - bad, bad])
        kept = wrong = tests = 0
        for kind in kinds:
            seeds += SCREENING
            if not looks_good(rng.normal(kind * effect, 1, SCREENING)):
                continue
            tests += 1
            d = rng.normal(kind * effect, 1, MOST)
            enough = needed(tests, kept)
            count = FEWEST
            while True:
                is_kept = float(e_value(d[:count])) >= enough
                if is_kept or is_futile(d[:count]) or count == MOST:
                    break
                count += 1
            seeds += 2 * count
            kept += is_kept
            wrong += is_kept and kind < 1
        true, planted = true + kept - wrong, planted + int((kinds == 1).sum())
        false, confirmed = false + wrong / max(kept, 1), confirmed + tests
    return Series(
        true / max(planted, 1), false / repeats, seeds / tries / repeats, confirmed / repeats
    )

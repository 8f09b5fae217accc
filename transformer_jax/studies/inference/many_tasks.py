"""An effect over several data sets: its mean, how much it varies; aggregates of scores.

Each data set gives one effect and its standard error over seeds. Data sets are taken as draws of
those that one could have asked: theta_k = mu + u_k, u ~ N(0, tau^2), y_k ~ N(theta_k, v_k).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import optimize, stats

FEWEST = 3  # data sets
FEWEST_CELLS = 20  # data sets times seeds, for aggregates of scores
_RESAMPLED = 2000


class RandomEffects(NamedTuple):
    """What effects on several data sets say together.

    Attributes:
      mean: mu, over all data sets of this kind.
      error: its standard error, of Hartung and Knapp.
      interval: of mu; at least as wide as that of the mean of equal weights.
      prediction: interval of the effect on one more data set.
      deviation: tau, of effects between data sets.
      p_same: of Cochran's Q, that all data sets have one effect.
      shrunken: of each data set, the effect drawn towards mu by how noisy it is.
      shrunken_intervals: of these.
    """

    mean: float
    error: float
    interval: tuple[float, float]
    prediction: tuple[float, float]
    deviation: float
    p_same: float
    shrunken: tuple[float, ...]
    shrunken_intervals: tuple[tuple[float, float], ...]


def random_effects(
    effects: Sequence[float], errors: Sequence[float], level: float = 0.05
) -> RandomEffects:
    """Pools effects by a random-effects model.

    tau^2 by restricted maximum likelihood (Viechtbauer 2005, section 2.5). The interval of mu is
    Hartung and Knapp's (2001), t with K - 1 degrees of freedom, whose variance is no smaller than
    that of known weights (Röver et al. 2015, section 2.4), nor than that of the mean of equal
    weights: with few seeds the weights are noise, and without both floors intervals hold mu too
    rarely (docs/error-rates.md). The prediction interval has K - 2 (Higgins et al. 2009, eq. 12).

    Args:
      effects: y, one a data set, in one unit.
      errors: their standard errors, > 0.
      level: 1 minus the coverage of every interval.
    Raises:
      ValueError: fewer than three data sets, or an error that is not above 0.
    """
    y, v = np.asarray(effects, float), np.square(np.asarray(errors, float))
    if len(y) < FEWEST or not (v > 0).all():
        raise ValueError(f"expected {FEWEST} or more effects with errors > 0, got {effects}")
    tau2 = _restricted_maximum(y, v)
    mean, weights = _mean(y, v, tau2)
    spread = float((weights * (y - mean) ** 2).sum()) / (len(y) - 1)
    error = math.sqrt(max(spread, 1.0) / weights.sum())
    widest = max(error, float(y.std(ddof=1)) / math.sqrt(len(y)))
    quantile = float(stats.t.ppf(1 - level / 2, len(y) - 1))
    ahead = float(stats.t.ppf(1 - level / 2, len(y) - 2)) * math.hypot(widest, math.sqrt(tau2))
    common, alone = _mean(y, v, 0.0)
    kept = tau2 / (tau2 + v)
    shrunken = mean + kept * (y - mean)
    # Of a data set's own effect: what its seeds leave open, and what is open of mu.
    halves = quantile * np.sqrt(kept * v + ((1 - kept) * widest) ** 2)
    return RandomEffects(
        mean=mean,
        error=error,
        interval=(mean - quantile * widest, mean + quantile * widest),
        prediction=(mean - ahead, mean + ahead),
        deviation=math.sqrt(tau2),
        p_same=float(stats.chi2.sf((alone * (y - common) ** 2).sum(), len(y) - 1)),
        shrunken=tuple(map(float, shrunken)),
        shrunken_intervals=tuple(
            (float(low), float(high))
            for low, high in zip(shrunken - halves, shrunken + halves, strict=True)
        ),
    )


def _mean(y: np.ndarray, v: np.ndarray, tau2: float) -> tuple[float, np.ndarray]:
    weights = 1 / (v + tau2)
    return float((weights * y).sum() / weights.sum()), weights


def _restricted_maximum(y: np.ndarray, v: np.ndarray) -> float:
    def minus_log_likelihood(tau2: float) -> float:
        mean, weights = _mean(y, v, tau2)
        squares = (weights * (y - mean) ** 2).sum()
        return 0.5 * float(squares - np.log(weights).sum() + math.log(weights.sum()))

    # It falls from here on: more than all spread there is lies between data sets.
    most = len(y) * float(np.ptp(y)) ** 2 + float(v.max())
    optimum = optimize.minimize_scalar(
        minus_log_likelihood, bounds=(0, most), method="bounded", options={"xatol": 1e-9 * most}
    )
    return float(optimum.x) if optimum.fun < minus_log_likelihood(0.0) else 0.0


# ---------------------------------------------------------------- scores of many cells


class Aggregates(NamedTuple):
    """Scores of arm and base over all data sets and seeds (Agarwal et al. 2021).

    Intervals are percentiles of a bootstrap over seeds within data sets, arm and base together,
    and of 95 %; they describe these data sets, and are no test.

    Attributes:
      arm: interquartile mean of its scores.
      base: the same of the base.
      difference: arm less base.
      interval: of the difference.
      improvement: probability that a run of the arm is better than one of the base, on a data set
        drawn among them.
      improvement_interval: of that.
    """

    arm: float
    base: float
    difference: float
    interval: tuple[float, float]
    improvement: float
    improvement_interval: tuple[float, float]


def aggregates(arm: np.ndarray, base: np.ndarray) -> Aggregates:
    """Aggregates scores, larger is better and in one unit.

    Args:
      arm: [K, n], of K data sets and n seeds.
      base: the same, of the same seeds.
    """
    random, (tasks, seeds) = np.random.default_rng(0), arm.shape
    drawn = random.integers(seeds, size=(_RESAMPLED, tasks, seeds))
    at = (np.arange(tasks)[:, None], drawn)
    differences = interquartile_mean(arm[at]) - interquartile_mean(base[at])
    means = [float(interquartile_mean(scores)) for scores in (arm, base)]
    return Aggregates(
        *means,
        means[0] - means[1],
        _percentiles(differences),
        float(probability_of_improvement(arm, base)),
        _percentiles(probability_of_improvement(arm[at], base[at])),
    )


def _percentiles(samples: np.ndarray) -> tuple[float, float]:
    low, high = np.percentile(samples, (2.5, 97.5))
    return float(low), float(high)


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """The mean of the middle half of all scores of [..., K, n]: [...]."""
    flat = scores.reshape(*scores.shape[:-2], -1)
    return stats.trim_mean(flat, 0.25, axis=-1)


def probability_of_improvement(arm: np.ndarray, base: np.ndarray) -> np.ndarray:
    """The mean over data sets of P(arm > base) + P(arm = base) / 2 over all pairs of runs: [...].

    Args:
      arm: scores, [..., K, n].
      base: the same, [..., K, m].
    """
    d = arm[..., :, None] - base[..., None, :]
    return ((d > 0) + 0.5 * (d == 0)).mean((-3, -2, -1))


def performance_profile(scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The share of runs above each threshold, over data sets of equal weight: [T]."""
    return (scores[..., None] > thresholds).mean((0, 1))

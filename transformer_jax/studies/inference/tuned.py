"""What tuning adds to a comparison: the error of the optimum, and what fewer trials would give."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats


class Refined(NamedTuple):
    """The best value of an option, off a parabola through three values.

    Attributes:
      at: the value; a logarithm where logarithms were given.
      deviation: standard error of `at`.
      missed: root mean square of the score that is lost as `at` is not the optimum.
      freedom: degrees of freedom of the spread that both come from.
      is_inside: whether the parabola has its minimum between the values; else `at` is the middle.
    """

    at: float
    deviation: float
    missed: float
    freedom: int
    is_inside: bool


def parabola(values: Any, losses: Any) -> Refined:
    """Returns the minimum of a parabola, and what it may cost that it is not quite the true one.

    The loss near an optimum x* is c (x - x*)^2 above its own, so a normal error of standard
    deviation v of x costs c v^2 on average and sqrt(3) c v^2 in root mean square. v is that of
    -b / 2c (the delta method); the spread is that of seeds beside each other (seed x value).

    Args:
      values: [3], ascending.
      losses: [S, 3], of S >= 2 seeds, smaller is better; the middle is the best value tried.
    """
    x_V, y_SV = np.asarray(values, float), np.asarray(losses, float)
    seeds, freedom = len(y_SV), 2 * (len(y_SV) - 1)
    beside = y_SV - y_SV.mean(0) - y_SV.mean(1, keepdims=True) + y_SV.mean()
    variance = float((beside**2).sum()) / freedom / seeds  # of a value's mean, beside the others'
    centred = x_V - x_V[1]
    to_coefficients = np.linalg.inv(np.vander(centred, 3))  # rows c, b, a
    c, b, _ = to_coefficients @ y_SV.mean(0)
    reach = float(np.abs(centred).max())
    unclear = math.sqrt(2 * variance)  # of the difference of two values' means
    if not (c > 0 and centred[0] <= -b / (2 * c) <= centred[2]):
        return Refined(float(x_V[1]), reach, unclear, freedom, False)
    slopes = np.array([b / (2 * c**2), -1 / (2 * c)])  # of -b / 2c over c and b
    spread = variance * float((slopes @ to_coefficients[:2] @ to_coefficients[:2].T) @ slopes)
    deviation = min(math.sqrt(spread), reach)
    at, missed = float(x_V[1] - b / (2 * c)), math.sqrt(3) * c * deviation**2
    return Refined(at, deviation, missed, freedom, True)


def widened(
    mean: float, error: float, freedom: float, more: Sequence[tuple[float, float]]
) -> tuple[float, float, float]:
    """Returns standard error, degrees of freedom and two-sided p of a mean with further errors.

    Welch 1947, Biometrika 34, 28-35, and Satterthwaite 1946, Biometrics Bulletin 2, 110-114.

    Args:
      mean: of paired differences.
      error: its standard error.
      freedom: of `error`.
      more: (standard error, degrees of freedom) of what is uncertain beside the seeds.
    """
    parts = [(e**2, f) for e, f in [(error, freedom), *more] if e > 0 and f > 0]
    total = sum(variance for variance, _ in parts)
    if not total > 0:
        return error, freedom, 0.0 if mean else 1.0
    joint = total**2 / sum(variance**2 / f for variance, f in parts)
    return math.sqrt(total), joint, float(2 * stats.t.sf(abs(mean) / math.sqrt(total), joint))


def expected_best(scores: Sequence[float], larger_is_better: bool) -> list[tuple[float, float]]:
    """Returns mean and standard deviation of the best of k of the n scores, for k = 1 ... n.

    Dodge et al. 2019, arXiv:1909.03004, section 3, but over all sets of k different trials, which
    is unbiased (Tang et al. 2020, arXiv:2004.13705, section 3). Over k < n that is what a search
    with so many trials would have given on average.

    Args:
      scores: of n trials; one that is no number counts as the worst.
      larger_is_better: direction.
    """
    sign = 1.0 if larger_is_better else -1.0
    finite = [sign * score for score in scores if math.isfinite(score)]
    if not finite:
        return []
    ascending = np.sort(finite + [min(finite)] * (len(scores) - len(finite)))
    count, bests = len(ascending), []
    for k in range(1, count + 1):
        chances = np.array([math.comb(rank, k - 1) for rank in range(count)], float)
        chances /= math.comb(count, k)
        mean = float(chances @ ascending)
        spread = math.sqrt(max(float(chances @ (ascending - mean) ** 2), 0.0))
        bests.append((sign * mean, spread))
    return bests


def holds_from(
    ours: Sequence[float], theirs: Sequence[float], larger_is_better: bool, sign: float
) -> int | None:
    """Returns from how many trials on the expected best of two arms differs as a mean does.

    Args:
      ours: scores of an arm's trials.
      theirs: the base's.
      larger_is_better: direction.
      sign: of the mean difference, larger is better.
    Returns:
      The smallest k from which on it does; None where it does not even with all trials.
    """
    means = [expected_best(scores, larger_is_better) for scores in (ours, theirs)]
    direction = 1.0 if larger_is_better else -1.0
    agrees = [direction * (a - b) * sign > 0 for (a, _), (b, _) in zip(*means, strict=False)]
    if not agrees or not agrees[-1]:
        return None
    return max((k + 1 for k, same in enumerate(agrees, 1) if not same), default=1)


def sensitivity(losses: Sequence[float], initial: float) -> float:
    """Returns the mean over a grid of min(loss, initial loss) - best loss.

    Wortsman et al. 2023, arXiv:2309.14322, section 2.2. A loss that is no number counts as the
    initial one.
    """
    capped = [min(loss, initial) if math.isfinite(loss) else initial for loss in losses]
    return sum(capped) / len(capped) - min(capped)

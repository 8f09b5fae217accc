"""What tuning adds to a comparison: the regret of a choice, and what fewer trials would give."""

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, special, stats

_NODES = 11  # the logarithm of how many points a regret is integrated over


class Regret(NamedTuple):
    """What of its score an arm loses as what it chose is not its best: never less than nothing.

    By all that its tuning shows it is `mean` T^2, T of Student's t, and `most` at most. The loss
    near an optimum x* is c (x - x*)^2 above its own, (x - x*) over its standard error is Student's,
    and x* lies between the values that the parabola was laid through.

    Attributes:
      mean: c times the squared standard error.
      freedom: degrees of freedom of that.
      most: c times the squared way to the farther neighbour; None: it is not known.
    """

    mean: float
    freedom: float
    most: float | None = None

    def times(self, weight: float) -> "Regret":
        """Returns that of a score that is multiplied."""
        most = None if self.most is None else weight * self.most
        return Regret(weight * self.mean, self.freedom, most)


class Regrets(NamedTuple):
    """Of both sides of a difference: by the base's it is too high, by the arm's too low."""

    base: tuple[Regret, ...] = ()
    arm: tuple[Regret, ...] = ()

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "Regrets":
        """Returns what `plain` gave."""
        return cls(*(tuple(Regret(*its) for its in plain[side]) for side in cls._fields))

    def plain(self) -> dict[str, list]:
        """Returns lists, as files have them."""
        return {side: [list(its) for its in getattr(self, side)] for side in self._fields}


NO_REGRETS = Regrets()


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


def _beside(losses: np.ndarray) -> tuple[float, int]:
    """Variance of the mean of a value beside the others', of [S, 3] losses (seed x value)."""
    residuals = losses - losses.mean(0) - losses.mean(1, keepdims=True) + losses.mean()
    freedom = 2 * (len(losses) - 1)
    return float((residuals**2).sum()) / freedom / len(losses), freedom


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
    variance, freedom = _beside(y_SV)
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


class Optimum(NamedTuple):
    """The best value of an option that is counted in factors.

    Attributes:
      at: the value.
      interval: that holds the best value; ends beyond the values that were tried are extrapolated.
    """

    at: float
    interval: tuple[float, float]


_WIDEST = 50.0  # the logarithm of a factor; a wider interval says nothing, and has no float64


def optimum(values: Sequence[float], losses: Any, level: float = 0.05) -> Optimum | str:
    """Returns the lowest point of a parabola over the logarithm, with Fieller's interval.

    It goes through the best value and its neighbours (three at an end, if the first or the last is
    the best). The slope b + 2 c x of the means is 0 at the lowest point x; the interval holds all x
    where it differs from 0 by less than t standard errors.

    Args:
      values: [V], > 0, ascending; V >= 3.
      losses: [S, V], of S >= 2 seeds, smaller is better.
      level: 1 minus the coverage.
    Returns:
      The optimum, or why there is none.
    """
    y_SV = np.asarray(losses, float)
    first = min(max(int(y_SV.mean(0).argmin()) - 1, 0), len(values) - 3)
    y_SV, middle = y_SV[:, first : first + 3], math.log(values[first + 1])
    x_V = np.log(values[first : first + 3]) - middle
    to_coefficients = np.linalg.inv(np.vander(x_V, 3))[:2]  # rows c, b
    c, b = to_coefficients @ y_SV.mean(0)
    if not (c > 0 and x_V[0] <= -b / (2 * c) <= x_V[2]):
        return "none between the arms"
    variance, freedom = _beside(y_SV)
    squared_t = float(stats.t.ppf(1 - level / 2, freedom)) ** 2
    (cc, cb), (_, bb) = squared_t * variance * to_coefficients @ to_coefficients.T
    of_square, of_x = 4 * (c * c - cc), 4 * (b * c - cb)
    if not of_square > 0:
        return "no curve that is sure"
    root = math.sqrt(max(of_x**2 - 4 * of_square * (b * b - bb), 0.0))
    at, (low, high) = -b / (2 * c), [(side * root - of_x) / (2 * of_square) for side in (-1, 1)]
    if max(-low, high) > _WIDEST:
        return "no curve that is sure"
    return Optimum(math.exp(middle + at), (math.exp(middle + low), math.exp(middle + high)))


def moved(before: Optimum, after: Optimum) -> Optimum:
    """Returns by which factor an optimum moved: MOVER (Zou and Donner 2008), of both intervals."""
    (at, (low, high)), (was, (was_low, was_high)) = (
        (math.log(its.at), [math.log(end) for end in its.interval]) for its in (after, before)
    )
    way = at - was
    ends = (
        way - math.hypot(at - low, was_high - was),
        way + math.hypot(high - at, was - was_low),
    )
    return Optimum(math.exp(way), (math.exp(ends[0]), math.exp(ends[1])))


def with_regrets(
    mean: float, error: float, freedom: float, margin: float, level: float, regrets: Regrets
) -> tuple[float, float, float, float]:
    """Returns the interval of two arms' difference at their own best, and its p.

    It is the one that was seen, with the arm's regret and without the base's. So its lower limit
    needs the base's alone, and its upper one the arm's. Best is what is best in runs as long as
    those that the parabola was read in.

    Args:
      mean: of paired differences, larger is better.
      error: its standard error, > 0.
      freedom: of `error`.
      margin: the smallest difference that matters.
      level: 1 minus the coverage.
      regrets: of base and arm.
    Returns:
      lower and upper limit; p, two-sided, of no difference; one-sided p of a difference of the
      margin or more.
    """
    seeds, below, above = (error, freedom), regrets.base, regrets.arm
    return (
        mean - reach(*seeds, below, level / 2),
        mean + reach(*seeds, above, level / 2),
        min(1.0, 2 * tail(*seeds, below if mean > 0 else above, abs(mean))),
        max(tail(*seeds, below, margin + mean), tail(*seeds, above, margin - mean)),
    )


def reach(error: float, freedom: float, regrets: Sequence[Regret], level: float) -> float:
    """Returns what the error of a mean and regrets together exceed with probability `level`.

    A limit of a generalized confidence interval (Weerahandi 1993, JASA 88, 899-905): the mean and
    each regret are drawn by what was seen of them.

    Args:
      error: standard error of the mean, > 0.
      freedom: of `error`.
      regrets: that move the mean to this side.
      level: of this side alone.
    """
    alone = error * float(stats.t.ppf(1 - level, freedom))
    if not regrets:
        return alone
    excess = lambda way: tail(error, freedom, regrets, way) - level  # noqa: E731
    if excess(alone) <= 0:  # regrets that are dust
        return alone
    far = max(alone, error)
    while excess(far) > 0:
        far *= 4
    return float(optimize.brentq(excess, alone, far, rtol=1e-9))


def tail(error: float, freedom: float, regrets: Sequence[Regret], way: float) -> float:
    """Returns the probability of which `reach` is the inverse: that they exceed a way."""
    lost, weights = _lost(tuple(regrets))
    return float(weights @ special.stdtr(freedom, (lost - way) / error))


@functools.lru_cache(maxsize=64)
def _lost(regrets: tuple[Regret, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Draws of what regrets take together [P], and their weights: of Sobol, more in the tails."""
    even, weights = _points(len(regrets))
    lost = np.zeros(len(even))
    for column, its in enumerate(regrets):
        most = math.inf if its.most is None else its.most
        lost += np.minimum(its.mean * _squares(len(regrets), column, its.freedom), most)
    return lost, weights


@functools.cache
def _points(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Points of a cube [P, count], and their weights."""
    even = stats.qmc.Sobol(max(count, 1), scramble=False).random_base2(_NODES + 2 * (count > 1))
    even = even[:, :count] + 0.5 / len(even)
    weights = np.prod(2 * (1 - even), axis=1)
    return even, weights / weights.sum()


@functools.lru_cache(maxsize=64)
def _squares(count: int, column: int, freedom: float) -> np.ndarray:
    """Squares of Student's t at a column of the points [P]."""
    tails = (1 - _points(count)[0][:, column]) ** 2
    return special.stdtrit(freedom, tails / 2) ** 2  # of both sides


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

"""Statistics for comparing arms over paired seeds; independent of models, files and jax.

Arm and baseline share data order, dropout keys and initial values, so each seed is a replicate.
Let y be the primary metric on the whole evaluation set after the last update. An arm is judged by
d_s = y_arm,s - y_base,s, oriented so that larger is better.

Every verdict about a mean is read off one interval. At a look of level a over m contrasts, this is
mean -+ t(1 - 0.4 a / m, n - 1) SE. In a share 1 - 0.8 a of studies, all m intervals contain their
true effects, and then no verdict is false; the remaining 0.2 a is for divergence.
"""

import bisect
import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import optimize, stats

from transformer_jax.studies.outcomes import Outcome, Word

ALPHA = 0.05
FEWEST_FOR_EQUIVALENCE = 5
_POWER = 0.8
_MOST_SEEDS = 10_000


def power_of_t(shift: float, freedom: float, level: float) -> float:
    """Returns the power of the two-sided paired t test at an effect of `shift` standard errors."""
    cut = stats.t.ppf(1 - level / 2, freedom)
    tails = stats.nct.sf(cut, freedom, shift), stats.nct.cdf(-cut, freedom, shift)
    return float(np.nan_to_num(tails).sum())


def detectable(count: int, level: float) -> float:
    """Returns the effect, in units of s_d, that a paired t test detects with 80 % power."""
    if count < 2:
        return math.inf
    root = math.sqrt(count)
    return float(
        optimize.brentq(lambda d: power_of_t(d * root, count - 1, level) - _POWER, 0, 10 / level)
    )


def power_of_equivalence(margin: float, freedom: float, level: float) -> float:
    """Returns the power of two one-sided tests if the effect is 0.

    The power is an average over the sample deviation; the margin is in standard errors.
    """
    cut = stats.t.ppf(1 - level, freedom)
    quantiles = (np.arange(2000) + 0.5) / 2000
    deviation = np.sqrt(stats.chi2.ppf(quantiles, freedom) / freedom)
    room = margin - cut * deviation
    return float(np.mean(np.where(room > 0, 2 * stats.norm.cdf(room) - 1, 0)))


def seeds_needed(deviation: float, count: int, margin: float, level: float = ALPHA) -> int | None:
    """Returns the smallest number of seeds with 80 % power at the margin, or None above 10,000.

    The observed effect is not used. `deviation`, s_d over `count` seeds, is replaced by its upper
    bound s_d sqrt(nu / chi2(.20, nu)). `level` is 1 minus the coverage of the interval.
    """
    if count < 2 or not deviation > 0:
        return None
    freedom = count - 1
    bound = deviation * math.sqrt(freedom / stats.chi2.ppf(0.2, freedom))

    def suffices(n: int) -> bool:
        shift = margin / (bound / math.sqrt(n))
        return (
            power_of_t(shift, n - 1, level) >= _POWER
            and power_of_equivalence(shift, n - 1, level / 2) >= _POWER
        )

    if not suffices(_MOST_SEEDS):
        return None
    high = FEWEST_FOR_EQUIVALENCE
    while not suffices(high):
        high = min(2 * high, _MOST_SEEDS)
    low = max(high // 2, FEWEST_FOR_EQUIVALENCE)
    return bisect.bisect_left(range(high), True, lo=low, key=suffices)


_WIDEST = 50.0  # logarithm of a factor; a wider interval is useless, and its ends overflow


class Optimum(NamedTuple):
    """The best value of an option, and a confidence interval for it.

    An end of the interval that lies beyond the tried values is extrapolated.
    """

    at: float
    interval: tuple[float, float]


def lowest_point(values: Sequence[float], losses: Sequence[float]) -> float | None:
    """Returns the value at the minimum of a parabola through the best value and its neighbours.

    The parabola is over the logarithm of the values: near an optimum the loss is quadratic in the
    logarithm of a learning rate, so grids that contain or straddle the optimum agree up to noise.

    Args:
      values: Grid of V >= 3 positive values, ascending.
      losses: Mean loss for each value, [V]; infinite if a run diverged.

    Returns:
      The value, or None if the best value is the first or the last of the grid.
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


def optimum(values: Sequence[float], losses: np.ndarray) -> Optimum | str:
    """Returns the value at the minimum of a parabola over its logarithm, with a 95 % interval.

    The parabola goes through the best value and its neighbours (or the three values at that end of
    the grid). The slope b + 2 c x of the means is 0 at the minimum x. Fieller's interval contains
    every x at which the slope differs from 0 by less than t standard errors.

    Args:
      values: Grid of V >= 3 positive values, ascending.
      losses: [S, V] over S >= 2 seeds; smaller is better.

    Returns:
      The optimum, or the reason why there is none, as text.
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
    squared_t = float(stats.t.ppf(1 - ALPHA / 2, freedom)) ** 2
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
    """Returns the factor by which an optimum moved, with a MOVER interval from both intervals.

    Zou and Donner 2008, Statistics in Medicine 27, 1693-1702.
    """
    was, was_low, was_high = map(math.log, (before.at, *before.interval))
    at, low, high = map(math.log, (after.at, *after.interval))
    change = at - was
    least = change - math.hypot(at - low, was_high - was)
    most = change + math.hypot(high - at, was - was_low)
    return Optimum(math.exp(change), (math.exp(least), math.exp(most)))


def beyond_this_text(differences: np.ndarray, level: float = ALPHA) -> tuple[float, float]:
    """Returns a confidence interval for the mean difference on new text and with new seeds.

    Seeds and sequences are crossed. The mean has the variance
    V = (MS_seed + MS_seq - MS_res) / (n q), with Satterthwaite's degrees of freedom (Satterthwaite
    1946, Biometrics Bulletin 2, 110-114). If MS_seed or MS_seq is not above MS_res, its variance
    component counts as 0, and V is the largest mean square divided by n q: a difference of mean
    squares would lose its degrees of freedom.

    Args:
      differences: [n, q], by seed and sequence (a document or a block, never a token), weighted so
        that their mean is the difference in the metric. Sequences must be exchangeable: merge
        neighbours within one text first; see by_cluster.
      level: 1 minus the coverage.
    """
    n, q = differences.shape
    mean = float(differences.mean())
    by_seed, by_sequence = differences.mean(1), differences.mean(0)
    residual = differences - by_seed[:, None] - by_sequence[None] + mean
    freedom = (n - 1, q - 1, (n - 1) * (q - 1))
    ms_residual = (residual**2).sum() / freedom[2]
    squares = (q * by_seed.var(ddof=1), n * by_sequence.var(ddof=1), ms_residual)
    if min(squares[:2]) > ms_residual:
        total = squares[0] + squares[1] - ms_residual
        degrees = total**2 / sum(ms**2 / nu for ms, nu in zip(squares, freedom, strict=True))
    else:
        total, degrees = max(zip(squares, freedom, strict=True))
    return interval(mean, math.sqrt(total / (n * q)), degrees, level)


def by_cluster(differences: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Returns sums over clusters, [n, clusters], scaled so that `differences` keep their mean.

    `differences` are [n, q], and `clusters` has the cluster of each sequence, [q].
    """
    names, members = np.unique(clusters, return_inverse=True)
    sums = differences @ (members[:, None] == np.arange(len(names)))
    return sums * len(names) / len(clusters)


Count = tuple[int, int]  # a number of runs, and their total
_MOST_PARTITIONS = 20_000  # into two groups; if there are more, this many are drawn


class Reached(NamedTuple):
    """The runs of an arm or of the baseline, in order of seed.

    Attributes:
      solved: [n] bool, True if the final score reaches the target.
      updates: [n], the update that first reached the target in training: the last update for a run
        that never did, and infinity for a run that diverged.
    """

    solved: np.ndarray
    updates: np.ndarray

    @property
    def share(self) -> Count:
        """Number of solved runs, and number of all runs."""
        return int(self.solved.sum()), len(self.solved)

    @property
    def median(self) -> float | None:
        """Update by which half of the runs are solved, or None if fewer than half ever are."""
        times, middle = np.sort(self.updates[self.solved]), (len(self.solved) - 1) // 2
        return float(times[middle]) if 0 <= middle < len(times) else None


def reached_by(outcomes: Mapping[int, Outcome], target: float, larger_is_better: bool) -> Reached:
    """Returns the Reached of runs, given as outcomes by seed; a diverged run reaches no target."""
    solved, updates = [], []
    for _, (value, diverged, first, last) in sorted(outcomes.items()):
        if value is None and not diverged:
            continue
        beyond = value is not None and (value >= target if larger_is_better else value <= target)
        solved.append(beyond and not diverged)
        reached = first if solved[-1] and first is not None else last
        updates.append(np.inf if diverged else reached)
    return Reached(np.array(solved, bool), np.array(updates, float))


@functools.lru_cache(maxsize=1024)
def boschloo_p(one: Count, other: Count, alternative: str = "greater") -> float:
    """Returns the p value of Boschloo's exact test for equal probabilities of two Counts.

    The alternative is "greater" (for `one`) or "two-sided". The test is more powerful than
    Fisher's (Boschloo 1970, Statistica Neerlandica 24, 1-35).
    """
    gain = one[0] * other[1] - other[0] * one[1]
    if gain == 0 or (gain < 0 and alternative == "greater"):
        return 1.0
    table = [[one[0], other[0]], [one[1] - one[0], other[1] - other[0]]]
    return float(stats.boschloo_exact(table, alternative=alternative).pvalue)


def log_rank_scores(updates: Any, solved: Any) -> np.ndarray:
    """Returns scores of the runs, [n], whose sum over a group is the log-rank statistic.

    A score is 1 for a solved run, else 0, minus the cumulative hazard over all runs up to the run's
    own time (Nelson and Aalen's estimate). A positive score means solved sooner than usual.
    """
    updates, solved = np.asarray(updates, float), np.asarray(solved, bool)
    times = np.unique(updates[solved])
    hazards = [(solved & (updates == t)).sum() / (updates >= t).sum() for t in times]
    until = [sum(h for t, h in zip(times, hazards, strict=True) if t <= u) for u in updates]
    return solved - np.array(until)


def permutation_p(arm: Any, base: Any) -> float:
    """Returns the two-sided p value of a permutation test that scores do not depend on the group.

    It is exact for few permutations, and 1 if a group has one run or all scores are equal.
    """
    if min(len(arm), len(base)) < 2 or np.ptp([*arm, *base]) == 0:
        return 1.0
    result = stats.permutation_test(
        (np.asarray(arm, float), np.asarray(base, float)),
        lambda one, other, axis: one.mean(axis) - other.mean(axis),
        n_resamples=_MOST_PARTITIONS,
        rng=np.random.default_rng(0),
    )
    return min(1.0, float(result.pvalue))


def clopper_pearson(count: int, trials: int) -> tuple[float, float]:
    """Returns the 95 % Clopper-Pearson interval for a probability, given `count` of `trials`."""
    bounds = stats.binomtest(count, trials).proportion_ci(1 - ALPHA, method="exact")
    return float(bounds.low), float(bounds.high)


FEWEST_FOR_A_VERDICT = 3
_ROUNDING = 16 * np.finfo(float).eps
FOR_MEANS, FOR_DIVERGENCE = 0.8, 0.2  # shares of a look's level


def paired_t(differences: Any, scale: float | None = None) -> tuple[np.ndarray, ...]:
    """Returns mean, standard error and the two-sided p value of a paired t test, [...] each.

    Without any spread, p is 1 if the mean is 0, else 0; for a single difference, p is 1.

    Args:
      differences: [..., n], over n seeds.
      scale: Largest absolute score, which sets the rounding error; None: the largest difference.
    """
    d = np.asarray(differences, float)
    d = np.where(np.isfinite(d), d, np.nan)
    mean, count = d.mean(-1), d.shape[-1]
    if count < 2:
        return mean, np.full(mean.shape, np.nan), np.ones(mean.shape)
    # The rounding error in equal differences, e.g. (k + 1) / N - k / N, is not spread.
    rounding = _ROUNDING * (np.abs(d).max(-1) if scale is None else scale)
    is_dust = np.ptp(d, axis=-1) <= rounding
    error = np.where(is_dust, 0, d.std(-1, ddof=1)) / math.sqrt(count)
    mean = np.where(is_dust & (np.abs(mean) <= rounding), 0, mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stats.t.sf(np.abs(mean / error), count - 1)
    return mean, error, np.where(error == 0, np.where(mean == 0, 1.0, 0.0), p)


def interval(mean: float, error: float, freedom: float, level: float) -> tuple[float, float]:
    """Returns mean -+ t(1 - level / 2, freedom) * error; level is 1 minus the coverage."""
    if not freedom > 0:
        return -math.inf, math.inf
    half = float(stats.t.ppf(1 - level / 2, freedom)) * error
    return mean - half, mean + half


class PairedInterval(NamedTuple):
    """Mean of paired differences, its t interval, and the two-sided p value of a paired t test."""

    mean: float
    interval: tuple[float, float]
    p: float


def paired_interval(differences: Any, level: float) -> PairedInterval:
    """Returns mean, interval and p of [n] paired differences; level is 1 minus the coverage.

    All are nan if a difference is masked or not finite.
    """
    if not 0 < level < 1:
        raise ValueError(f"level: expected a number in (0, 1), got {level}")
    differences = np.ma.filled(np.ma.asarray(differences, float), np.nan)
    if differences.ndim != 1 or not len(differences):
        raise ValueError(f"differences: expected [n], n >= 1, got {list(differences.shape)}")
    mean, error, p = map(float, paired_t(differences))
    return PairedInterval(mean, interval(mean, error, len(differences) - 1, level), p)


def equivalence_p(mean: float, error: float, freedom: float, margin: float) -> float:
    """Returns the larger p of two one-sided tests, against effects below -margin or above margin.

    Schuirmann 1987, J. Pharmacokinetics and Biopharmaceutics 15, 657-680.
    """
    if error == 0:
        return 0.0 if abs(mean) < margin else 1.0
    if not freedom > 0:
        return 1.0
    above = stats.t.sf((mean + margin) / error, freedom)
    below = stats.t.cdf((mean - margin) / error, freedom)
    return float(max(above, below))


def level_of_look(count: int, planned: Sequence[int], earlier: Sequence[int] = ()) -> float:
    """Returns the level of a look at the data.

    This is alpha / (J + 1) for a planned look, and alpha / (J + 1) 2^-j for the j-th unplanned one,
    so that all looks together spend at most alpha.

    Args:
      count: Number of seeds at this look.
      planned: Number of seeds at each of the J planned looks, ascending.
      earlier: Number of seeds at each earlier look. After an unplanned look, or one at different
        runs with the same seeds, no later look counts as planned.
    """
    counts = [*earlier, count]
    as_planned = 0
    while counts[as_planned:] and counts[as_planned] in {*planned} - {*counts[:as_planned]}:
        as_planned += 1
    return ALPHA / (len(planned) + 1) * 2.0 ** (as_planned - len(counts))


class Contrast(NamedTuple):
    """The comparison of one arm with the baseline.

    Attributes:
      arm, seeds, differences, interval, seeds_needed, solved, updates: As in scores.Result. A
        verdict about the mean is read off the interval.
      mean: Mean of the differences, in units of the metric.
      standard_error: s_d / sqrt(n).
      p: p of the paired t test, as min(1, m p / 0.8); at most the level if the interval excludes 0.
      p_equivalence: The same of two one-sided tests: min(1, 2 m p / 0.8), for the margin.
      diverged: (diverged runs, all runs), for the arm and for the baseline.
      p_divergence: p of Boschloo's test for more divergence in the arm, as min(1, m p / 0.2).
      verdict: One of the words in the module `outcomes`.
      words: The verdict in full, e.g. "better by more than 0.01 (few seeds)".
    """

    arm: str
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    standard_error: float
    interval: tuple[float, float]
    p: float
    p_equivalence: float
    diverged: tuple[Count, Count]
    p_divergence: float
    seeds_needed: int | None
    verdict: str
    words: str
    solved: tuple[Count, Count] | None = None
    updates: tuple[float | None, float | None] | None = None


def compare(
    base: Mapping[int, Outcome],
    arms: Mapping[str, Mapping[int, Outcome]],
    margin: float,
    larger_is_better: bool,
    level: float = ALPHA,
    family: int | None = None,
    primary: Collection[str] | None = None,
    target: float | None = None,
) -> list[Contrast]:
    """Compares every arm with the baseline over the seeds that both have.

    The arguments are as in scores.judge, with outcomes by seed. `level` is the level of this look,
    which is shared by the m = `family` planned contrasts; a contrast without data keeps its share.
    """
    asked = [name for name in arms if primary is None or name in primary]
    family = max(family or 0, len(asked), 1)
    contrasts = []
    for name, outcomes in arms.items():
        size = family if name in asked else 1
        contrast = _contrast(name, base, outcomes, margin, larger_is_better, level, size)
        if target is not None:
            runs = [reached_by(group, target, larger_is_better) for group in (outcomes, base)]
            contrast = _to_target(contrast, *runs, level, size)
        if name not in asked:
            words = f"{Word.NOT_PRIMARY}: an interval but no verdict"
            contrast = contrast._replace(verdict=Word.NOT_PRIMARY, words=words)
        contrasts.append(contrast)
    return contrasts


def _contrast(
    name: str,
    base: Mapping[int, Outcome],
    arm: Mapping[int, Outcome],
    margin: float,
    larger_is_better: bool,
    level: float,
    size: int,
) -> Contrast:
    """Compares one arm with the baseline by the mean difference, as one of `size` contrasts."""
    shared = sorted(base.keys() & arm.keys())
    seeds = [seed for seed in shared if _has_score(base[seed]) and _has_score(arm[seed])]
    scores = np.array([[by_seed[seed].value for seed in seeds] for by_seed in (arm, base)], float)
    d = (scores[0] - scores[1]) * (1.0 if larger_is_better else -1.0)
    scale = float(np.abs(scores).max(initial=0.0))
    mean, error, p = map(float, paired_t(d, scale) if seeds else (math.nan, math.nan, 1.0))
    count, runs, share = len(seeds), len(shared), FOR_MEANS / size
    low, high = interval(mean, error, count - 1, share * level)
    gone, base_gone = (sum(by_seed[s].diverged for s in shared) for by_seed in (arm, base))
    p_divergence = min(1.0, boschloo_p((gone, runs), (base_gone, runs)) * size / FOR_DIVERGENCE)
    if gone or base_gone:
        reason = f"{gone} of {runs} runs diverged, {base_gone} of the base"
        verdict, words = Word.NO_VERDICT, f"no verdict on the mean: {reason}"
        if p_divergence <= level:
            verdict, words = Word.UNSTABLE, f"unstable: {reason}"
    elif seeds and not d.any():
        verdict, words = Word.IDENTICAL, "identical: the change did nothing"
    elif count < FEWEST_FOR_A_VERDICT:
        verdict, words = Word.NO_VERDICT, f"no verdict from {count} seed{'s' * (count != 1)}"
    elif error == 0:
        verdict, words = Word.REFUSED, "refused: the same difference in every seed"
    else:
        verdict, words = read_off(low, high, margin)
        words += " (few seeds)" * (count < FEWEST_FOR_EQUIVALENCE)
    return Contrast(
        arm=name,
        seeds=tuple(seeds),
        differences=tuple(d.tolist()),
        mean=mean,
        standard_error=error,
        interval=(low, high),
        p=min(1.0, p / share),
        p_equivalence=min(1.0, 2 * equivalence_p(mean, error, count - 1, margin) / share),
        diverged=((gone, runs), (base_gone, runs)),
        p_divergence=p_divergence,
        seeds_needed=seeds_needed(error * math.sqrt(count), count, margin, share * level),
        verdict=verdict,
        words=words,
    )


def _has_score(outcome: Outcome) -> bool:
    return outcome.value is not None and math.isfinite(outcome.value) and not outcome.diverged


def _to_target(
    contrast: Contrast, arm: Reached, base: Reached, level: float, size: int
) -> Contrast:
    """Returns a contrast judged by the number of runs that reach a target, and by their updates."""
    (solved, runs), (base_solved, base_runs) = arm.share, base.share
    both = Reached(*(np.concatenate(parts) for parts in zip(arm, base, strict=True)))
    gains, base_gains = np.split(log_rank_scores(both.updates, both.solved), [runs])  # + is sooner
    p_sooner = permutation_p(gains, base_gains)
    p_count = boschloo_p(arm.share, base.share, "two-sided")
    p_count, p_sooner = (min(1.0, 2 * p * size / FOR_MEANS) for p in (p_count, p_sooner))
    shown = f"{solved} of {runs} runs solve it, {base_solved} of {base_runs} of the base"
    verdict, words = Word.UNRESOLVED, f"unresolved: {shown}"
    if contrast.verdict == Word.UNSTABLE:
        verdict, words = Word.UNSTABLE, f"{contrast.words}; {shown}"
    elif min(runs, base_runs) < FEWEST_FOR_A_VERDICT:
        verdict, words = Word.NO_VERDICT, f"no verdict from {min(runs, base_runs)} seeds: {shown}"
    elif p_count <= level:
        verdict = Word.BETTER if solved * base_runs > base_solved * runs else Word.WORSE
        words = f"{verdict}: {shown}"
    elif p_sooner <= level:
        verdict, when = (Word.BETTER, "sooner") if gains.mean() > 0 else (Word.WORSE, "later")
        times = ["never" if r.median is None else f"{r.median:,.0f}" for r in (arm, base)]
        words = f"{verdict}: {when}, median {times[0]} updates, base {times[1]}; {shown}"
    # A mean and its interval would describe no run.
    return contrast._replace(
        mean=math.nan,
        standard_error=math.nan,
        interval=(math.nan, math.nan),
        p=min(p_count, p_sooner),
        p_equivalence=1.0,
        seeds_needed=None,
        verdict=verdict,
        words=words,
        solved=(arm.share, base.share),
        updates=(arm.median, base.median),
    )


def read_off(low: float, high: float, margin: float) -> tuple[str, str]:
    """Returns the verdict that the interval (low, high) supports, as one word and in full."""
    if low > 0 or high < 0:
        verdict = Word.BETTER if low > 0 else Word.WORSE
        nearest, farthest = (low, high) if low > 0 else (-high, -low)
        if nearest > margin:
            return verdict, f"{verdict} by more than {margin:g}"
        return verdict, f"{verdict}, negligible" if farthest < margin else verdict
    if -margin < low and high < margin:
        return Word.SAME, f"no different within {margin:g}"
    return Word.UNRESOLVED, "unresolved"

"""How a comparison of arms over paired seeds is decided.

The replicate is the seed. Arm and base share data order, dropout keys and initial values, so what
is judged is d_s = y_arm,s - y_base,s, oriented so that larger is better; y is the primary metric at
the last step over the whole fixed evaluation set. Nothing here knows of models, files or jax.

Every word about a mean is read off one interval. At a look of level a over m contrasts an arm has
the interval mean -+ t(1 - 0.4 a / m, n - 1) SE; all m hold their true effects together in
1 - 0.8 a of all studies, and then no word is false. 0.2 a are for divergence.

Where a target says what is solved and what not, words are about that, see solved.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
from scipy import stats

from transformer_jax.studies.inference import solved
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.power import ALPHA, FEWEST_FOR_EQUIVALENCE, seeds_needed
from transformer_jax.studies.inference.words import (
    BETTER,
    IDENTICAL,
    NO_VERDICT,
    NOT_PRIMARY,
    REFUSED,
    SAME,
    UNRESOLVED,
    UNSTABLE,
    WORSE,
)

FEWEST_FOR_A_VERDICT = 3
_MOST_SIGN_FLIPS = 20  # 2^20 sums at most
_ROUNDING = 16 * np.finfo(float).eps
FOR_MEANS, FOR_DIVERGENCE = 0.8, 0.2  # shares of a look's level


class Contrast(NamedTuple):
    """One arm against the base.

    Attributes:
      arm: its name.
      seeds: that both have a value for.
      differences: d_s of those seeds, larger is better.
      mean: of the differences, in units of the metric.
      standard_error: s_d / sqrt(n).
      interval: simultaneous over all m contrasts, see above; every word is read off it.
      p: paired t test's, min(1, m p / 0.8); at most the level if 0 is not inside.
      p_alone: the same p of this contrast alone, for overviews of many studies.
      p_equivalence: of two one-sided tests, min(1, 2 m p / 0.8); at most the level where the
        interval lies within the margin.
      p_sign_flip: exact, from 6 seeds on, of this contrast alone; a printed check.
      correlation: of arm and base over seeds; what pairing bought.
      diverged: of arm and of base, how many of how many.
      p_divergence: that the arm diverges no more often than the base, of Boschloo's exact test,
        min(1, m p / 0.2).
      seeds_needed: for 80 % power at the margin (and equivalence at 0); None: no number helps.
      verdict: one of the words of this module.
      words: the verdict in full, "better by more than 0.01 (few seeds)".
      p_ranks: where some runs diverged, of a permutation test of ranks, diverged ones last; of this
        contrast alone, beside the mean that is not judged.
      solved: with a target, of arm and of base, how many of how many runs reach it.
      updates: with a target, of arm and of base, the median until it is reached; None where half
        never do.
    """

    arm: str
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    standard_error: float
    interval: tuple[float, float]
    p: float
    p_alone: float
    p_equivalence: float
    p_sign_flip: float | None
    correlation: float
    diverged: tuple[tuple[int, int], tuple[int, int]]
    p_divergence: float
    seeds_needed: int | None
    verdict: str
    words: str
    p_ranks: float | None = None
    solved: tuple[tuple[int, int], tuple[int, int]] | None = None
    updates: tuple[float | None, float | None] | None = None


# ---------------------------------------------------------------- one contrast


def paired_t(
    differences: Any, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns mean, standard error and the two-sided p of the paired t test.

    With no spread at all p is 1 if the mean is 0, and else 0; one difference has p 1.

    Args:
      differences: [..., n], of n seeds.
      scale: the largest score, of which rounding is a part; that of the differences if not given.
    Returns:
      Three arrays [...].
    """
    d = np.asarray(differences, float)
    mean, count = d.mean(-1), d.shape[-1]
    if count < 2:
        return mean, np.full(mean.shape, np.nan), np.ones(mean.shape)
    # What rounding leaves of equal differences, (k + 1) / N - k / N say, is no spread.
    largest = np.abs(d).max(-1) if scale is None else scale
    is_dust = np.ptp(d, axis=-1) <= _ROUNDING * largest
    deviation = np.where(is_dust, 0, d.std(-1, ddof=1))
    mean = np.where(is_dust & (np.abs(mean) <= _ROUNDING * largest), 0, mean)
    error = deviation / math.sqrt(count)
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
    """Mean of paired differences, its t interval, and the two-sided p of the paired t test."""

    mean: float
    interval: tuple[float, float]
    p: float


def paired_interval(differences: Any, level: float) -> PairedInterval:
    """Returns mean, interval and p of [n] paired differences; level is 1 minus the coverage."""
    mean, error, p = map(float, paired_t(differences))
    return PairedInterval(mean, interval(mean, error, len(differences) - 1, level), p)


def welch_t(ours: Any, theirs: Any) -> tuple[float, float, float, float]:
    """Returns difference of means, standard error, two-sided p and degrees of freedom.

    For scores that do not go together in pairs (Welch 1947, Biometrika 34, 28-35).

    Args:
      ours: [n].
      theirs: [q].
    """
    parts = [np.var(scores, ddof=1) / len(scores) for scores in (ours, theirs)]
    mean, error = float(np.mean(ours) - np.mean(theirs)), math.sqrt(sum(parts))
    if error <= _ROUNDING * float(np.abs([*ours, *theirs]).max()):
        return mean, 0.0, 1.0 if mean == 0 else 0.0, math.nan
    shares = zip(parts, (ours, theirs), strict=True)
    freedom = error**4 / sum(part**2 / (len(scores) - 1) for part, scores in shares)
    return mean, error, float(2 * stats.t.sf(abs(mean / error), freedom)), float(freedom)


def equivalence_p(mean: float, error: float, freedom: float, margin: float) -> float:
    """Returns the larger p of two one-sided tests: that the effect is beyond -margin or margin.

    Schuirmann 1987, J. Pharmacokinetics and Biopharmaceutics 15, 657-680.
    """
    if error == 0:
        return 0.0 if abs(mean) < margin else 1.0
    if not freedom > 0:
        return 1.0
    above = stats.t.sf((mean + margin) / error, freedom)
    below = stats.t.cdf((mean - margin) / error, freedom)
    return float(max(above, below))


def sign_flip_p(differences: Sequence[float]) -> float | None:
    """Returns the share of all 2^n sign patterns with a sum as large; None below 6 differences."""
    if not 6 <= len(differences) <= _MOST_SIGN_FLIPS:
        return None
    sums = np.zeros(1)
    for difference in differences:
        sums = np.concatenate([sums + difference, sums - difference])
    rounding = 1e-9 * float(np.abs(differences).sum())  # of the scores, which are larger
    return float((np.abs(sums) >= abs(sums[0]) - rounding).mean())


# ---------------------------------------------------------------- looks


def level_of_look(count: int, planned: Sequence[int], earlier: Sequence[int] = ()) -> float:
    """Returns the level of a look at the data: alpha / (J + 1), or alpha / (J + 1) 2^-j.

    The j-th look that was not planned has the latter, so that all looks together spend at most
    alpha, whatever is done after the planned ones.

    Args:
      count: seeds of this look.
      planned: seeds at each planned look, ascending; J of them.
      earlier: seeds of each look that was shown before. Once one was not planned, or the same seeds
        were drawn anew, no later look is a planned one.
    """
    counts, share = [*earlier, count], ALPHA / (len(planned) + 1)
    as_planned = 0
    while as_planned < len(counts) and (
        counts[as_planned] in planned and counts[as_planned] not in counts[:as_planned]
    ):
        as_planned += 1
    return share * 2.0 ** -(len(counts) - as_planned)


# ---------------------------------------------------------------- a family


def compare(
    base: Mapping[int, Outcome],
    arms: Mapping[str, Mapping[int, Outcome]],
    margin: float,
    larger_is_better: bool,
    level: float = ALPHA,
    family: int | None = None,
    paired: bool = True,
    primary: Collection[str] | None = None,
    target: float | None = None,
) -> list[Contrast]:
    """Compares every arm with the base over the seeds that both have.

    Args:
      base: seed -> outcome.
      arms: name -> seed -> outcome.
      margin: the smallest difference that matters, > 0, in units of the metric.
      larger_is_better: direction of the metric.
      level: of this look, for the whole family.
      family: planned contrasts, m; those without data keep their part of the level.
      paired: whether a seed of the arm goes with the same seed of the base; if not, all seeds of
        both count, by Welch's t.
      primary: arms that the question is about, None: all; others get the interval of one contrast,
        and no words.
      target: score from which on a run has solved it; then words are about that and not the mean.
    """
    asked = [name for name in arms if primary is None or name in primary]
    size = max(family or 0, len(asked), 1)
    sign = 1.0 if larger_is_better else -1.0
    contrasts = []
    for name, outcomes in arms.items():
        is_asked = name in asked
        pair = _Pair(base, outcomes, sign, paired)
        contrast = pair.contrast(name, margin, level, size if is_asked else 1)
        if target is not None:
            runs = [
                solved.reached_by(group, target, larger_is_better) for group in (outcomes, base)
            ]
            contrast = _by_target(contrast, *runs, level, size if is_asked else 1)
        if not is_asked:
            words = f"{NOT_PRIMARY}: an interval and no word"
            contrast = contrast._replace(verdict=NOT_PRIMARY, words=words)
        contrasts.append(contrast)
    return contrasts


def _by_target(
    contrast: Contrast, ours: solved.Reached, theirs: solved.Reached, level: float, size: int
) -> Contrast:
    """The same contrast, judged by how many runs reach a target, and when."""
    counts, medians = (ours.share, theirs.share), (ours.median, theirs.median)
    p_count = solved.difference_of_counts_p(*counts)
    p_sooner, gain = solved.sooner_p(ours, theirs)
    p_alone = min(1.0, 2 * min(p_count, p_sooner))
    p_count, p_sooner = (min(1.0, 2 * p * size / FOR_MEANS) for p in (p_count, p_sooner))
    shown = (
        f"{counts[0][0]} of {counts[0][1]} solve it, of the base {counts[1][0]} of {counts[1][1]}"
    )
    times = [f"{median:,.0f}" if median is not None else "never" for median in medians]
    verdict, words = UNRESOLVED, f"unresolved: {shown}"
    if contrast.verdict == UNSTABLE:
        verdict, words = UNSTABLE, f"{contrast.words}; {shown}"
    elif min(counts[0][1], counts[1][1]) < FEWEST_FOR_A_VERDICT:
        verdict, words = NO_VERDICT, f"no verdict from {min(c[1] for c in counts)} seeds: {shown}"
    elif p_count <= level:
        verdict = BETTER if counts[0][0] * counts[1][1] > counts[1][0] * counts[0][1] else WORSE
        words = f"{verdict}: {shown}"
    elif p_sooner <= level:
        verdict = BETTER if gain > 0 else WORSE
        when = "sooner" if gain > 0 else "later"
        words = f"{verdict}: {when}, median {times[0]} updates, of the base {times[1]}; {shown}"
    # A mean and its interval would describe no run.
    return contrast._replace(
        mean=math.nan, standard_error=math.nan, interval=(math.nan, math.nan),
        p=min(p_count, p_sooner), p_alone=p_alone,
        p_equivalence=1.0, p_sign_flip=None, seeds_needed=None,
        verdict=verdict, words=words, solved=counts, updates=medians,
    )  # fmt: skip


class _Pair:
    """One arm beside the base."""

    def __init__(
        self,
        base: Mapping[int, Outcome],
        outcomes: Mapping[int, Outcome],
        sign: float,
        paired: bool,
    ) -> None:
        if not paired:
            self._take_apart(base, outcomes, sign)
            return
        shared = sorted(base.keys() & outcomes.keys())
        kept = [s for s in shared if _is_number(base[s]) and _is_number(outcomes[s])]
        ours = np.array([outcomes[s].value for s in kept], float)
        theirs = np.array([base[s].value for s in kept], float)
        self.seeds = tuple(kept)
        self.differences = tuple((sign * (ours - theirs)).tolist())
        self.correlation = _correlation(ours, theirs)
        scale = float(np.abs([ours, theirs]).max(initial=0.0))
        tested = paired_t(self.differences, scale) if kept else (math.nan, math.nan, 1.0)
        self.mean, self.error, self.p = map(float, tested)
        self.count, self.freedom = len(kept), len(kept) - 1.0
        self.diverged = (_count_diverged(outcomes, shared), _count_diverged(base, shared))
        self.ranked = [
            [_worst(outcomes[s], sign) for s in shared],
            [_worst(base[s], sign) for s in shared],
        ]

    def _take_apart(
        self, base: Mapping[int, Outcome], outcomes: Mapping[int, Outcome], sign: float
    ) -> None:
        """The same of scores that do not go together by seed."""
        self.seeds, self.differences, self.correlation = (), (), math.nan
        ours, theirs = (
            [sign * cast(float, o.value) for o in group.values() if _is_number(o)]
            for group in (outcomes, base)
        )
        self.count = min(len(ours), len(theirs))
        tested = welch_t(ours, theirs) if self.count > 1 else (math.nan, math.nan, 1.0, 0.0)
        self.mean, self.error, self.p, self.freedom = tested
        self.diverged = (_count_diverged(outcomes, [*outcomes]), _count_diverged(base, [*base]))
        self.ranked = [[_worst(o, sign) for o in group.values()] for group in (outcomes, base)]

    def contrast(self, arm: str, margin: float, level: float, size: int) -> Contrast:
        """What is said of it, as one of `size` contrasts at a look of a level."""
        count, share, deviation = self.count, FOR_MEANS / size, self.error * math.sqrt(self.count)
        mean, p, of_seeds, own = self.mean, self.p, (self.error, self.freedom), share * level
        low, high = interval(mean, *of_seeds, own)
        p_equivalence = equivalence_p(mean, *of_seeds, margin)
        p_divergence = min(1.0, solved.boschloo_p(*self.diverged) * size / FOR_DIVERGENCE)
        verdict, words = self._without_mean(p_divergence <= level)
        p_ranks = solved.ranks_p(*self.ranked) if any(gone for gone, _ in self.diverged) else None
        if not verdict:
            verdict, words = read_off(low, high, margin)
            words += " (few seeds)" * (count < FEWEST_FOR_EQUIVALENCE)
        return Contrast(
            arm=arm,
            seeds=self.seeds,
            differences=self.differences,
            mean=mean,
            standard_error=self.error,
            interval=(low, high),
            p=min(1.0, p / share),
            p_alone=p,
            p_equivalence=min(1.0, 2 * p_equivalence / share),
            p_sign_flip=sign_flip_p(self.differences),
            correlation=self.correlation,
            diverged=self.diverged,
            p_divergence=p_divergence,
            seeds_needed=seeds_needed(deviation, count, margin, own),
            verdict=verdict,
            words=words,
            p_ranks=p_ranks,
        )

    def _without_mean(self, is_unstable: bool) -> tuple[str, str]:
        """What comes before any word about the mean; empty where nothing does."""
        (arm_diverged, trials), (base_diverged, _) = self.diverged
        if self.seeds and not any(self.differences) and not arm_diverged + base_diverged:
            return IDENTICAL, "identical: the change did nothing"
        if arm_diverged or base_diverged:
            words = f"{arm_diverged} of {trials} diverged, of the base {base_diverged}"
            if is_unstable:
                return UNSTABLE, f"unstable: {words}"
            return NO_VERDICT, f"no verdict on the mean: {words}"
        if self.count < FEWEST_FOR_A_VERDICT:
            return NO_VERDICT, f"no verdict from {self.count} seed{'s' * (self.count != 1)}"
        if self.error == 0:
            what = "difference in every seed" if self.seeds else "score in every run of an arm"
            return REFUSED, f"refused: the same {what}"
        return "", ""


def read_off(low: float, high: float, margin: float) -> tuple[str, str]:
    """Returns the word that an interval (low, high) allows, and the verdict in full."""
    if low > 0 or high < 0:
        verdict, nearest, farthest = (BETTER, low, high) if low > 0 else (WORSE, -high, -low)
        if nearest > margin:
            return verdict, f"{verdict} by more than {margin:g}"
        return verdict, f"{verdict}, negligible" if farthest < margin else verdict
    if -margin < low and high < margin:
        return SAME, f"no different within {margin:g}"
    return UNRESOLVED, "unresolved"


def _worst(outcome: Outcome, sign: float) -> float:
    """A score for ranking, larger is better; the worst of all where there is none."""
    return sign * cast(float, outcome.value) if _is_number(outcome) else -math.inf


def _is_number(outcome: Outcome) -> bool:
    return outcome.value is not None and math.isfinite(outcome.value) and not outcome.diverged


def _count_diverged(outcomes: Mapping[int, Outcome], seeds: Sequence[int]) -> tuple[int, int]:
    return sum(outcomes[seed].diverged for seed in seeds), len(seeds)


def _correlation(ours: np.ndarray, theirs: np.ndarray) -> float:
    if len(ours) < 3 or ours.std() == 0 or theirs.std() == 0:
        return math.nan
    return float(np.corrcoef(ours, theirs)[0, 1])

"""How a comparison of arms over paired seeds is decided.

The replicate is the seed. Arm and base share data order, dropout keys and initial values, so what
is judged is d_s = y_arm,s - y_base,s, oriented so that larger is better; y is the primary metric at
the last step over the whole fixed evaluation set. Nothing here knows of models, files or jax.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.power import ALPHA, FEWEST_FOR_EQUIVALENCE, seeds_needed

FEWEST_FOR_A_VERDICT = 3
_MOST_SIGN_FLIPS = 20  # 2^20 sums at most

BETTER, WORSE, SAME = "better", "worse", "no different within the margin"
UNRESOLVED, UNSTABLE, IDENTICAL = "unresolved", "unstable", "identical"
NO_VERDICT, REFUSED = "no verdict", "refused"


class Contrast(NamedTuple):
    """One arm against the base.

    Attributes:
      arm: its name.
      seeds: that both have a value for.
      differences: d_s of those seeds, larger is better.
      mean: of the differences, in units of the metric.
      standard_error: s_d / sqrt(n).
      pointwise: interval at the look's level.
      simultaneous: interval at the look's level over all m contrasts.
      p: two-sided paired t.
      p_holm: adjusted over the family.
      p_sign_flip: exact, from 6 seeds on; a printed check.
      p_equivalence: of two one-sided tests.
      p_equivalence_holm: adjusted over the family.
      correlation: of arm and base over seeds; what pairing bought.
      diverged: of arm and of base, how many of how many.
      p_divergence_holm: Fisher's exact test, adjusted.
      seeds_needed: for 80 % power at the margin (and equivalence at 0).
      verdict: one of the words of this module.
      words: the verdict in full, "better by more than 0.01 (few seeds)".
    """

    arm: str
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    mean: float
    standard_error: float
    pointwise: tuple[float, float]
    simultaneous: tuple[float, float]
    p: float
    p_holm: float
    p_sign_flip: float | None
    p_equivalence: float
    p_equivalence_holm: float
    correlation: float
    diverged: tuple[tuple[int, int], tuple[int, int]]
    p_divergence_holm: float
    seeds_needed: int | None
    verdict: str
    words: str


# ---------------------------------------------------------------- one contrast


def paired_t(differences: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns mean, standard error and the two-sided p of the paired t test.

    With no spread at all p is 1 if the mean is 0, and else 0; one difference has p 1.

    Args:
      differences: [..., n], of n seeds.
    Returns:
      Three arrays [...].
    """
    d = np.asarray(differences, float)
    mean, count = d.mean(-1), d.shape[-1]
    if count < 2:
        return mean, np.full(mean.shape, np.nan), np.ones(mean.shape)
    # What rounding leaves of equal differences is no spread.
    deviation = np.where(np.ptp(d, axis=-1) == 0, 0, d.std(-1, ddof=1))
    error = deviation / math.sqrt(count)
    with np.errstate(divide="ignore", invalid="ignore"):
        p = 2 * stats.t.sf(np.abs(mean / error), count - 1)
    return mean, error, np.where(error == 0, np.where(mean == 0, 1.0, 0.0), p)


def interval(mean: float, error: float, count: int, level: float) -> tuple[float, float]:
    """Returns mean -+ t(1 - level / 2, count - 1) * error; level is 1 minus the coverage."""
    if count < 2:
        return -math.inf, math.inf
    half = float(stats.t.ppf(1 - level / 2, count - 1)) * error
    return mean - half, mean + half


class PairedInterval(NamedTuple):
    """Mean of paired differences, its t interval, and the two-sided p of the paired t test."""

    mean: float
    interval: tuple[float, float]
    p: float


def paired_interval(differences: Any, level: float) -> PairedInterval:
    """Returns mean, interval and p of [n] paired differences; level is 1 minus the coverage."""
    mean, error, p = map(float, paired_t(differences))
    return PairedInterval(mean, interval(mean, error, len(differences), level), p)


def equivalence_p(mean: float, error: float, count: int, margin: float) -> float:
    """Returns the larger p of two one-sided tests: that the effect is beyond -margin or margin.

    Schuirmann 1987, J. Pharmacokinetics and Biopharmaceutics 15, 657-680.
    """
    if count < 2:
        return 1.0
    if error == 0:
        return 0.0 if abs(mean) < margin else 1.0
    above = stats.t.sf((mean + margin) / error, count - 1)
    below = stats.t.cdf((mean - margin) / error, count - 1)
    return float(max(above, below))


def sign_flip_p(differences: Sequence[float]) -> float | None:
    """Returns the share of all 2^n sign patterns with a sum as large; None below 6 differences."""
    d = np.asarray(differences, float)
    if not 6 <= len(d) <= _MOST_SIGN_FLIPS:
        return None
    sums = np.zeros(1)
    for value in d:
        sums = np.concatenate([sums + value, sums - value])
    return float(np.mean(np.abs(sums) >= abs(d.sum()) * (1 - 1e-12)))


def holm(p_values: Any, family: int | None = None) -> np.ndarray:
    """Returns p values adjusted for their number (Holm 1979, Scand. J. Statistics 6, 65-70).

    Args:
      p_values: [..., k], of the family's tests at hand.
      family: size of the planned family; those that are not at hand count as 1.
    """
    p = np.asarray(p_values, float)
    order = np.argsort(p, axis=-1, kind="stable")
    weights = (family or p.shape[-1]) - np.arange(p.shape[-1])
    ranked = np.minimum(np.take_along_axis(p, order, -1) * weights, 1)
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(ranked, axis=-1), -1)
    return adjusted


def benjamini_hochberg(p_values: Sequence[float]) -> list[float]:
    """Returns q values over all studies (Benjamini and Hochberg 1995, JRSS B 57, 289-300)."""
    return [float(q) for q in stats.false_discovery_control(p_values)] if len(p_values) else []


def clopper_pearson(count: int, trials: int, level: float = ALPHA) -> tuple[float, float]:
    """Returns the exact interval of a probability from `count` of `trials`."""
    found = stats.binomtest(count, trials).proportion_ci(1 - level, method="exact")
    return float(found.low), float(found.high)


def fisher_p(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Returns Fisher's exact p that two (count, trials) have one probability."""
    table = [[count, trials - count] for count, trials in (one, other)]
    return float(stats.fisher_exact(table)[1])


# ---------------------------------------------------------------- looks


def level_of_look(count: int, planned: Sequence[int], earlier: Sequence[int] = ()) -> float:
    """Returns the level of a look at the data: alpha / J, or alpha 2^-j where it was not planned.

    Args:
      count: seeds of this look.
      planned: seeds at each planned look, ascending; J of them.
      earlier: seeds of each look that was shown before. Once one was not planned, or the same data
        were drawn anew, no later look is a planned one.
    """
    counts = [*earlier, count]
    as_planned = set(counts) <= set(planned) and len(set(counts)) == len(counts)
    return ALPHA / len(planned) if as_planned else ALPHA * 2.0 ** -len(counts)


# ---------------------------------------------------------------- a family


def compare(
    base: Mapping[int, Outcome],
    arms: Mapping[str, Mapping[int, Outcome]],
    margin: float,
    larger_is_better: bool,
    level: float = ALPHA,
    family: int | None = None,
) -> list[Contrast]:
    """Compares every arm with the base over the seeds that both have.

    Args:
      base: seed -> outcome.
      arms: name -> seed -> outcome.
      margin: the smallest difference that matters, > 0, in units of the metric.
      larger_is_better: direction of the metric.
      level: of this look, for the whole family.
      family: planned contrasts; those without data count as p = 1.
    """
    size = max(family or 0, len(arms))
    sign = 1.0 if larger_is_better else -1.0
    rows = [_Row(name, base, outcomes, sign, margin) for name, outcomes in arms.items()]
    tests = holm([row.in_family[0] for row in rows], size).tolist()
    equivalences = holm([row.in_family[1] for row in rows], size).tolist()
    divergences = holm([row.p_divergence for row in rows], size).tolist()
    return [
        row.contrast(margin, level, size, test, same, split)
        for row, test, same, split in zip(rows, tests, equivalences, divergences, strict=True)
    ]


class _Row:
    """One arm before the family is known."""

    def __init__(
        self,
        arm: str,
        base: Mapping[int, Outcome],
        outcomes: Mapping[int, Outcome],
        sign: float,
        margin: float,
    ) -> None:
        self.arm = arm
        shared = sorted(base.keys() & outcomes.keys())
        kept = [s for s in shared if _is_number(base[s]) and _is_number(outcomes[s])]
        self.seeds = tuple(kept)
        ours = np.array([outcomes[s].value for s in kept], float)
        theirs = np.array([base[s].value for s in kept], float)
        self.differences = tuple((sign * (ours - theirs)).tolist())
        self.correlation = _correlation(ours, theirs)
        tested = paired_t(self.differences) if kept else (math.nan, math.nan, 1.0)
        self.mean, self.error, self.p = map(float, tested)
        self.p_equivalence = equivalence_p(self.mean, self.error, len(kept), margin)
        self.diverged = (_count_diverged(outcomes, shared), _count_diverged(base, shared))
        self.p_divergence = fisher_p(*self.diverged) if shared else 1.0
        # An arm that gets no verdict on its mean makes no room for the others' p values.
        diverged = any(count for count, _ in self.diverged)
        failed = diverged or (self.error == 0 and self.mean != 0)
        self.in_family = (1.0, 1.0) if failed else (self.p, self.p_equivalence)

    def contrast(
        self, margin: float, level: float, size: int, test: float, same: float, split: float
    ) -> Contrast:
        count = len(self.seeds)
        deviation = self.error * math.sqrt(count) if count > 1 else math.nan
        simultaneous = interval(self.mean, self.error, count, level / size)
        equivalence = same <= level and count >= FEWEST_FOR_EQUIVALENCE
        verdict, words = self._verdict(margin, level, test, equivalence, split, simultaneous)
        return Contrast(
            arm=self.arm,
            seeds=self.seeds,
            differences=self.differences,
            mean=self.mean,
            standard_error=self.error,
            pointwise=interval(self.mean, self.error, count, level),
            simultaneous=simultaneous,
            p=self.p,
            p_holm=test,
            p_sign_flip=sign_flip_p(self.differences),
            p_equivalence=self.p_equivalence,
            p_equivalence_holm=same,
            correlation=self.correlation,
            diverged=self.diverged,
            p_divergence_holm=split,
            seeds_needed=seeds_needed(deviation, count, margin, size, level),
            verdict=verdict,
            words=words,
        )

    def _verdict(
        self,
        margin: float,
        level: float,
        test: float,
        equivalence: bool,
        split: float,
        simultaneous: tuple[float, float],
    ) -> tuple[str, str]:
        """The first that applies, in the order that was fixed beforehand."""
        count = len(self.seeds)
        (arm_diverged, trials), (base_diverged, _) = self.diverged
        if count and not any(self.differences) and not arm_diverged + base_diverged:
            return IDENTICAL, "identical: the change did nothing"
        if arm_diverged or base_diverged:
            told = f"{arm_diverged} of {trials} diverged, of the base {base_diverged}"
            if split <= level:
                which = "unstable" if arm_diverged > base_diverged else "the base is unstable"
                return UNSTABLE, f"{which}: {told}"
            return NO_VERDICT, f"no verdict on the mean: {told}"
        if count < FEWEST_FOR_A_VERDICT:
            return NO_VERDICT, f"no verdict from {count} seed{'s' * (count != 1)}"
        if self.error == 0:
            return REFUSED, "refused: the same difference in every seed"
        few = " (few seeds)" if count < FEWEST_FOR_EQUIVALENCE else ""
        if test <= level:
            verdict = BETTER if self.mean > 0 else WORSE
            nearest = simultaneous[0] if self.mean > 0 else -simultaneous[1]
            words = verdict
            if nearest > margin:
                words += f" by more than {margin:g}"
            elif equivalence:
                words += ", negligible"
            return verdict, words + few
        if equivalence:
            return SAME, f"no different within {margin:g}"
        return UNRESOLVED, "unresolved" + few


def _is_number(outcome: Outcome) -> bool:
    return outcome.value is not None and math.isfinite(outcome.value) and not outcome.diverged


def _count_diverged(outcomes: Mapping[int, Outcome], seeds: Sequence[int]) -> tuple[int, int]:
    return sum(outcomes[seed].diverged for seed in seeds), len(seeds)


def _correlation(ours: np.ndarray, theirs: np.ndarray) -> float:
    if len(ours) < 3 or ours.std() == 0 or theirs.std() == 0:
        return math.nan
    return float(np.corrcoef(ours, theirs)[0, 1])


# ---------------------------------------------------------------- beyond this text


def beyond_this_text(differences: np.ndarray, level: float = ALPHA) -> tuple[float, float]:
    """Returns the interval of the mean difference for new text as well as new seeds.

    Seeds and sequences are crossed: V = (MS_seed + MS_seq - MS_res) / (n q), with Satterthwaite's
    degrees of freedom (Satterthwaite 1946, Biometrics Bulletin 2, 110-114).

    Args:
      differences: [n, q], of each seed and each sequence (a document or a block, never a token),
        weighted so that their mean is the difference of the metric.
      level: 1 minus the coverage.
    """
    n, q = differences.shape
    mean = float(differences.mean())
    by_seed, by_sequence = differences.mean(1), differences.mean(0)
    ms_seed = q * by_seed.var(ddof=1)
    ms_sequence = n * by_sequence.var(ddof=1)
    residual = differences - by_seed[:, None] - by_sequence[None] + mean
    freedom = ((n - 1), (q - 1), (n - 1) * (q - 1))
    ms_residual = (residual**2).sum() / freedom[2]
    total = ms_seed + ms_sequence - ms_residual
    if total <= 0:
        total, degrees = ms_residual, freedom[2]
    else:
        squares = (ms_seed**2, ms_sequence**2, ms_residual**2)
        degrees = total**2 / sum(ms / nu for ms, nu in zip(squares, freedom, strict=True))
    half = float(stats.t.ppf(1 - level / 2, degrees)) * math.sqrt(total / (n * q))
    return mean - half, mean + half


def sensitivity(losses: Sequence[float], initial: float) -> float:
    """Returns the mean over a grid of min(loss, initial loss) - best loss.

    Wortsman et al. 2023, arXiv:2309.14322, section 2.2. A loss that is no number counts as the
    initial one.
    """
    capped = [min(loss, initial) if math.isfinite(loss) else initial for loss in losses]
    return float(np.mean(capped) - min(capped))

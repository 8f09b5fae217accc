"""The procedure of every comparison, against scipy and against simulated studies."""

import math

import numpy as np
import pytest
from scipy import stats

from transformer_jax.studies.inference import power
from transformer_jax.studies.inference import statistics as ours
from transformer_jax.studies.inference.outcome import Outcome

STUDIES = 20_000


def outcomes(values, diverged=()):
    return {s: Outcome(None, True) if s in diverged else Outcome(v) for s, v in enumerate(values)}


def verdict(base, arm, margin=0.01, larger=True, level=0.05, family=None):
    (contrast,) = ours.compare(base, {"arm": arm}, margin, larger, level, family)
    return contrast


# ---------------------------------------------------------------- against scipy


def test_paired_t_is_scipys(rng):
    for count in (2, 3, 5, 17):
        a, b = rng.normal(size=(2, 7, count))
        mean, error, p = ours.paired_t(a - b)
        theirs = stats.ttest_rel(a, b, axis=-1)
        np.testing.assert_allclose(p, theirs.pvalue, rtol=1e-10)
        np.testing.assert_allclose(mean / error, theirs.statistic, rtol=1e-10)
        low, high = ours.interval(mean[0], error[0], count, 0.05)
        bounds = stats.ttest_rel(a[0], b[0]).confidence_interval(0.95)
        np.testing.assert_allclose((low, high), bounds, rtol=1e-10)


def test_equal_differences_have_no_spread():
    _, error, p = ours.paired_t([0.1 + 0.2 - 0.3 + 0.1] * 5)
    assert (float(error), float(p)) == (0.0, 0.0)
    assert float(ours.paired_t([0.0] * 5)[2]) == 1.0


def test_sign_flip_is_scipys_permutation_test(rng):
    for count in (6, 9):
        d = rng.normal(0.4, 1, count)
        theirs = stats.permutation_test(
            (d,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=np.inf
        )
        assert ours.sign_flip_p(d) == pytest.approx(theirs.pvalue, abs=1e-12)
    assert ours.sign_flip_p([1, 2, 3, 4, 5]) is None


def test_equivalence_is_two_one_sided_tests_of_scipy(rng):
    d = rng.normal(0.002, 0.01, 8)
    mean, error, _ = map(float, ours.paired_t(d))
    above = stats.ttest_1samp(d, -0.02, alternative="greater").pvalue
    below = stats.ttest_1samp(d, 0.02, alternative="less").pvalue
    assert ours.equivalence_p(mean, error, 8, 0.02) == pytest.approx(max(above, below), rel=1e-10)


def test_holm_by_hand():
    # 0.01 * 4, then 0.02 * 3, then 0.03 * 2 = 0.06 which may not be below, then 0.9
    np.testing.assert_allclose(ours.holm([0.9, 0.02, 0.01, 0.03]), [0.9, 0.06, 0.04, 0.06])
    # Failed arms count as 1: the family of four keeps its size.
    np.testing.assert_allclose(ours.holm([0.02, 0.01], 4), [0.06, 0.04])
    np.testing.assert_allclose(ours.benjamini_hochberg([0.01, 0.04, 0.03]), [0.03, 0.04, 0.04])


def test_power_is_scipys_noncentral_t():
    for effect, count, level in ((1.7, 5, 0.05), (0.6, 12, 0.0125)):
        drawn = np.random.default_rng(0).normal(effect, 1, (200_000, count))
        share = (ours.paired_t(drawn)[2] <= level).mean()
        assert power.power_of_t(effect, count, level) == pytest.approx(share, abs=0.004)


def test_power_of_equivalence_by_simulation():
    for margin, count, level in ((2.0, 6, 0.05), (1.0, 20, 0.0125)):
        d = np.random.default_rng(0).normal(0, 1, (40_000, count))
        mean, error, _ = ours.paired_t(d)
        p = np.maximum(
            stats.t.sf((mean + margin) / error, count - 1),
            stats.t.cdf((mean - margin) / error, count - 1),
        )
        share = (p <= level).mean()
        assert power.power_of_equivalence(margin, count, level) == pytest.approx(share, abs=0.01)


def test_seeds_needed_never_looks_at_the_effect():
    few = power.seeds_needed(0.01, 5, 0.01, 1)
    assert few == power.seeds_needed(0.01, 5, 0.01, 1)
    bound = 0.01 * math.sqrt(4 / stats.chi2.ppf(0.2, 4))
    assert power.power_of_t(0.01 / bound, few, 0.05) >= 0.8
    enough = [
        power.power_of_t(0.01 / bound, few - 1, 0.05) >= 0.8,
        power.power_of_equivalence(0.01 / bound, few - 1, 0.05) >= 0.8,
    ]
    assert not all(enough)
    assert power.seeds_needed(0.01, 5, 0.01, 4) > few
    assert power.seeds_needed(0.0, 5, 0.01, 1) is None
    assert power.seeds_needed(10.0, 5, 1e-4, 1) is None  # more than anybody will run


def test_clopper_pearson_and_fisher():
    low, high = ours.clopper_pearson(2, 5)
    assert stats.binom.sf(1, 5, low) == pytest.approx(0.025)
    assert stats.binom.cdf(2, 5, high) == pytest.approx(0.025)
    assert ours.fisher_p((5, 5), (0, 5)) == pytest.approx(2 / math.comb(10, 5))


def test_sensitivity_by_hand():
    assert ours.sensitivity([2.0, 1.0, 9.0, math.nan], 4.0) == pytest.approx(
        (2 + 1 + 4 + 4) / 4 - 1
    )


# ---------------------------------------------------------------- the order of verdicts


def test_identical_comes_first():
    base = outcomes([1.0, 2.0, 3.0])
    assert verdict(base, base).verdict == ours.IDENTICAL


def test_divergence_suspends_the_mean_and_may_be_unstable():
    base = outcomes([1.0, 2.0, 3.0, 4.0, 5.0])
    one = verdict(base, outcomes([2.0, 3.1, 4.0, 5.2, 6.0], diverged=(1,)))
    assert one.verdict == ours.NO_VERDICT
    assert "1 of 5 diverged" in one.words
    assert one.diverged == ((1, 5), (0, 5))
    every = verdict(base, outcomes([0.0] * 5, diverged=range(5)))
    assert every.verdict == ours.UNSTABLE


def test_better_worse_and_their_margin(rng):
    base = rng.normal(1, 0.01, 8)
    d = np.array([0.02, 0.021, 0.019, 0.0205, 0.0195, 0.02, 0.0202, 0.0198])
    better = verdict(outcomes(base), outcomes(base + d))
    assert (better.verdict, better.words) == (ours.BETTER, "better by more than 0.01")
    worse = verdict(outcomes(base), outcomes(base + d), larger=False)
    assert (worse.verdict, worse.words) == (ours.WORSE, "worse by more than 0.01")
    assert worse.differences == pytest.approx(-d)
    negligible = verdict(outcomes(base), outcomes(base + d / 10))
    assert negligible.words == "better, negligible"
    assert verdict(outcomes(base), outcomes(base + d / 2)).words == "better"


def test_no_different_within_the_margin_and_unresolved():
    base = np.arange(6.0)
    small = np.array([1, -1, 1, -1, 1, -1]) * 0.001
    assert verdict(outcomes(base), outcomes(base + small)).verdict == ours.SAME
    assert verdict(outcomes(base), outcomes(base + 30 * small)).verdict == ours.UNRESOLVED


def test_few_seeds():
    base, d = np.arange(5.0), np.array([0.02, 0.021, 0.019, 0.0205, 0.0195])
    for count in (1, 2):
        short = verdict(outcomes(base[:count]), outcomes((base + d)[:count]))
        assert short.verdict == ours.NO_VERDICT
    assert verdict(outcomes(base[:3]), outcomes((base + d)[:3])).words.endswith("(few seeds)")
    small = np.array([1, -1, 1, -1]) * 1e-5
    equal = verdict(outcomes(base[:4]), outcomes(base[:4] + small))
    assert equal.verdict == ours.UNRESOLVED  # equivalence only from five on


def test_the_same_difference_everywhere_is_refused():
    assert verdict(outcomes([1, 2, 3]), outcomes([1.5, 2.5, 3.5])).verdict == ours.REFUSED


def test_only_shared_seeds_are_paired():
    base, arm = outcomes([1.0, 2.0, 3.0, 4.0]), outcomes([1.1, 2.2, 3.1])
    assert verdict(base, arm).seeds == (0, 1, 2)


def test_levels_of_looks():
    assert ours.level_of_look(5, (5,)) == 0.05
    assert ours.level_of_look(10, (5, 10), (5,)) == 0.025
    assert ours.level_of_look(7, (5,), (5,)) == 0.05 / 4
    assert ours.level_of_look(5, (5,), (3, 4)) == 0.05 / 8  # peeking has its price
    assert ours.level_of_look(5, (5,), (5,)) == 0.05 / 4  # the same seeds, drawn anew


def test_what_gets_no_verdict_makes_no_room_for_others(rng):
    """A constant difference, and survivors of divergence, count as p = 1 in the family."""
    base = rng.normal(0, 0.1, 5)
    d = np.array([0.03, 0.01, 0.05, 0.02, 0.045])
    alone = verdict(outcomes(base), outcomes(base + d), family=2)
    steady = {s: Outcome(v + 0.5) for s, v in enumerate([1.0, 2.0, 3.0, 4.0, 5.0])}
    level = {s: Outcome(v) for s, v in enumerate([1.0, 2.0, 3.0, 4.0, 5.0])}
    assert ours.compare(level, {"a": steady}, 0.01, True)[0].p_holm == 1.0
    gone = outcomes(base + 1 + d / 100, diverged=(2,))
    both = ours.compare(
        outcomes(base), {"gone": gone, "arm": outcomes(base + d)}, 0.01, True
    )  # fmt: skip
    assert both[0].verdict == ours.NO_VERDICT
    assert both[1].p_holm == pytest.approx(alone.p_holm)
    assert both[1].p_holm == pytest.approx(min(1.0, 2 * both[1].p))


# ---------------------------------------------------------------- simulated studies


def draws(kind, shape, rng):
    if kind == "normal":
        return rng.normal(size=shape)
    return rng.standard_t(3, size=shape)


@pytest.mark.parametrize("kind", ["normal", "t3"])
@pytest.mark.parametrize("arms", [1, 4, 8])
@pytest.mark.parametrize("count", [3, 5])
def test_false_positives_of_a_family(kind, arms, count):
    """Arms share the base, whose noise makes their tests dependent, as in a real study."""
    rng = np.random.default_rng(arms)
    base = draws(kind, (STUDIES, 1, count), rng)
    d = draws(kind, (STUDIES, arms, count), rng) - base
    found = (ours.holm(ours.paired_t(d)[2]) <= 0.05).any(-1).mean()
    assert found <= 0.05 + 0.005


def test_looks_keep_the_level():
    """Planned looks at alpha / J, unplanned ones at alpha 2^-j; free looking does not."""
    d = np.random.default_rng(0).normal(size=(STUDIES, 10))
    p = {n: ours.paired_t(d[:, :n])[2] for n in range(3, 11)}
    planned = np.mean((p[5] <= 0.025) | (p[10] <= 0.025))

    def shown(planned):
        levels = [ours.level_of_look(n, planned, range(3, n)) for n in range(3, 11)]
        return np.mean(np.any([p[n] <= a for n, a in zip(range(3, 11), levels, strict=True)], 0))

    unplanned, mixed = shown((99,)), shown((5,))
    free = np.mean(np.any([p[n] <= 0.05 for n in range(3, 11)], 0))
    assert planned <= 0.055
    assert unplanned <= 0.055
    assert mixed <= 0.055
    assert free == pytest.approx(0.17, abs=0.01)


def test_the_bootstrap_over_seeds_would_be_wrong():
    """Why there is none: percentile intervals of few differences are far too short."""
    rng = np.random.default_rng(0)
    # With 3 seeds the interval is their range, which misses 0 where all have one sign: 1/4.
    for count, wrong in ((3, 0.25), (5, 0.15), (8, 0.11)):
        d = rng.normal(size=(2000, count))
        drawn = rng.integers(0, count, (2000, 600, count))
        means = np.take_along_axis(d[:, None], drawn, 2).mean(-1)
        low, high = np.percentile(means, [2.5, 97.5], axis=1)
        assert np.mean((low > 0) | (high < 0)) == pytest.approx(wrong, abs=0.025)


def test_the_t_test_under_strong_skew_is_why_every_seed_is_shown():
    """Differences of an exponential kind: up to 17 % false positives."""
    d = np.random.default_rng(0).lognormal(0, 1, (STUDIES, 5)) - math.exp(0.5)
    assert np.mean(ours.paired_t(d)[2] <= 0.05) == pytest.approx(0.17, abs=0.03)


def test_the_best_of_several_is_biased():
    values = np.random.default_rng(0).normal(size=(STUDIES, 16, 3)).mean(-1)
    for k, bias in ((4, 0.6), (8, 0.8), (16, 1.0)):
        assert values[:, :k].max(1).mean() == pytest.approx(bias, abs=0.05)


@pytest.mark.parametrize("arms", [1, 4, 8])
def test_divergence_of_a_tenth_decides_nothing_falsely(arms):
    """20,000 families: arms with a diverged cell, or whose base has one, count as p = 1."""
    rng = np.random.default_rng(arms)
    base, gone = rng.normal(size=(STUDIES, 1, 5)), rng.random((STUDIES, arms + 1, 5)) < 0.1
    p = ours.paired_t(rng.normal(size=(STUDIES, arms, 5)) - base)[2]
    p = np.where(gone[:, 1:].any(-1) | gone[:, :1].any(-1), 1.0, p)
    assert (ours.holm(p) <= 0.05).any(-1).mean() <= 0.05 + 0.005


def test_the_whole_procedure_is_what_was_simulated():
    """compare() over 150 families of four arms, with divergence, against the arrays above."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        values, gone = rng.normal(size=(5, 5)), rng.random((5, 5)) < 0.1
        cells = [
            outcomes(row, np.flatnonzero(lost)) for row, lost in zip(values, gone, strict=True)
        ]
        found = ours.compare(cells[0], dict(zip("abcd", cells[1:], strict=True)), 0.01, True)
        p = ours.paired_t(values[1:] - values[0])[2]
        p = np.where(gone[1:].any(-1) | gone[0].any(), 1.0, p)
        np.testing.assert_allclose([contrast.p_holm for contrast in found], ours.holm(p))
        for contrast, lost in zip(found, gone[1:], strict=True):
            suspended = lost.any() or gone[0].any()
            decided = contrast.verdict in (ours.BETTER, ours.WORSE)
            assert decided == (not suspended and contrast.p_holm <= 0.05)


def test_new_text_needs_a_wider_interval():
    """Seeds and sequences crossed: the coverage holds for new seeds and new text together."""
    rng, crossed, seeds_only = np.random.default_rng(0), 0, 0
    for _ in range(2000):
        d = (
            rng.normal(0, 1, (5, 1))
            + rng.normal(0, 3, (1, 40))
            + rng.normal(0, 2, (5, 40))
        )  # fmt: skip
        low, high = ours.beyond_this_text(d)
        crossed += low <= 0 <= high
        mean, error, _ = map(float, ours.paired_t(d.mean(1)))
        low, high = ours.interval(mean, error, 5, 0.05)
        seeds_only += low <= 0 <= high
    assert crossed / 2000 == pytest.approx(0.95, abs=0.02)
    assert seeds_only / 2000 < crossed / 2000

"""The procedure of every comparison, against scipy and against simulated studies."""

import math

import numpy as np
import pytest
from scipy import stats

from tests.conftest import a_few_of
from transformer_jax.studies import statistics as ours
from transformer_jax.studies.outcomes import Outcome
from transformer_jax.studies.statistics import beyond_this_text, boschloo_p, by_cluster

STUDIES = 20_000


def outcomes(values, diverged=()):
    return {s: Outcome(None, True) if s in diverged else Outcome(v) for s, v in enumerate(values)}


def verdict(base, arm, margin=0.01, larger=True, level=0.05, family=None):
    """The verdict for scores by seed, or for outcomes."""
    base, arm = (each if isinstance(each, dict) else outcomes(each) for each in (base, arm))
    (contrast,) = ours.compare(base, {"arm": arm}, margin, larger, level, family)
    return contrast


def test_paired_t_is_scipys(rng):
    for count in (2, 3, 5, 17):
        a, b = rng.normal(size=(2, 7, count))
        mean, error, p = ours.paired_t(a - b)
        theirs = stats.ttest_rel(a, b, axis=-1)
        np.testing.assert_allclose(p, theirs.pvalue, rtol=1e-10)
        np.testing.assert_allclose(mean / error, theirs.statistic, rtol=1e-10)
        low, high = ours.interval(mean[0], error[0], count - 1, 0.05)
        bounds = stats.ttest_rel(a[0], b[0]).confidence_interval(0.95)
        np.testing.assert_allclose((low, high), bounds, rtol=1e-10)
    _, error, p = ours.paired_t([0.1 + 0.2 - 0.3 + 0.1] * 5)
    assert (error, p) == (0.0, 0.0), "equal differences have no spread"
    assert ours.paired_t([0.0] * 5)[2] == 1.0
    for wrong in ([1.0, np.inf, 2.0], np.ma.masked_array([1.0, 2.0, 3.0], [0, 0, 1])):
        assert np.isnan([*ours.paired_interval(wrong, 0.05).interval]).all()
    with pytest.raises(ValueError, match=r"differences: expected \[n\], n >= 1, got \[2, 1\]"):
        ours.paired_interval([[1.0], [2.0]], 0.05)


def test_neighbouring_windows_of_a_text_are_put_together():
    """Windows whose losses go together (AR .7) are no independent draws of text."""
    rng, apart, together, studies = np.random.default_rng(0), 0, 0, 400
    parts = np.arange(444) * 8 // 444
    for _ in range(studies):
        text = np.empty(444)
        text[0] = rng.normal()
        for place, draw in enumerate(rng.normal(size=443), 1):
            text[place] = 0.7 * text[place - 1] + 0.51**0.5 * draw
        d = 0.15 * rng.normal(size=(5, 1)) + text + 0.5 * rng.normal(size=(5, 444))
        low, high = beyond_this_text(d)
        apart += low <= 0 <= high
        grouped = by_cluster(d, parts)
        assert grouped.mean() == pytest.approx(d.mean())
        low, high = beyond_this_text(grouped)
        together += low <= 0 <= high
    assert apart / studies < 0.85
    assert together / studies > 0.92


@pytest.mark.parametrize("items", [10, 100, 444, 2117])
def test_one_more_right_answer_in_every_seed_is_no_evidence(items):
    """Rounding errors of (k + 1) / N - k / N are no spread of seeds."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        right = rng.integers(0, items, 5)
        found = verdict(right / items, (right + 1) / items, 0.02)
        assert found.verdict == ours.Word.REFUSED, found
    assert verdict([3 / 9, 4 / 9, 5 / 9], [4 / 9, 5 / 9, 7 / 9], 0.02).verdict != ours.Word.REFUSED


def test_equivalence_is_two_one_sided_tests_of_scipy(rng):
    d = rng.normal(0.002, 0.01, 8)
    mean, error, _ = map(float, ours.paired_t(d))
    above = stats.ttest_1samp(d, -0.02, alternative="greater").pvalue
    below = stats.ttest_1samp(d, 0.02, alternative="less").pvalue
    assert ours.equivalence_p(mean, error, 7, 0.02) == pytest.approx(max(above, below), rel=1e-10)


def test_what_can_be_found_has_the_power_that_is_promised():
    """The numbers of docs/error-rates.md, and the way back."""
    for count, arms, effect in ((3, 1, 5.2), (5, 3, 2.9), (8, 7, 2.0), (16, 1, 0.9)):
        level = 0.8 * ours.level_of_look(count, (count,)) / arms
        found = ours.detectable(count, level)
        assert found == pytest.approx(effect, abs=0.06)
        assert ours.power_of_t(found * math.sqrt(count), count - 1, level) == pytest.approx(0.8)
    assert ours.detectable(1, 0.05) == math.inf


def test_power_is_the_share_of_simulated_studies():
    draw = np.random.default_rng(0).normal
    for effect, count, level in ((1.7, 5, 0.05), (0.6, 12, 0.0125)):
        share = (ours.paired_t(draw(effect, 1, (200_000, count)))[2] <= level).mean()
        power = ours.power_of_t(effect * math.sqrt(count), count - 1, level)
        assert power == pytest.approx(share, abs=0.004)
    for margin, count, level in ((2.0, 6, 0.05), (1.0, 20, 0.0125)):
        mean, error, _ = ours.paired_t(draw(0, 1, (40_000, count)))
        p = stats.t.sf((margin - abs(mean)) / error, count - 1)  # the larger of both sides
        power = ours.power_of_equivalence(margin * math.sqrt(count), count - 1, level)
        assert power == pytest.approx((p <= level).mean(), abs=0.01)


def test_seeds_needed_never_looks_at_the_effect():
    few = ours.seeds_needed(0.01, 5, 0.01)
    bound = 0.01 * math.sqrt(4 / stats.chi2.ppf(0.2, 4))
    assert ours.power_of_t(0.01 / bound * math.sqrt(few), few - 1, 0.05) >= 0.8
    fewer = 0.01 / bound * math.sqrt(few - 1), few - 2
    found, equal = ours.power_of_t(*fewer, 0.05), ours.power_of_equivalence(*fewer, 0.025)
    assert min(found, equal) < 0.8
    assert ours.seeds_needed(0.01, 5, 0.01, 0.01) > few
    assert ours.seeds_needed(0.0, 5, 0.01) is None
    assert ours.seeds_needed(10.0, 5, 1e-4) is None  # more than anybody will run


def test_clopper_pearson_and_boschloo():
    low, high = ours.clopper_pearson(2, 5)
    theirs = stats.binomtest(2, 5).proportion_ci(0.95, "exact")
    assert (low, high) == pytest.approx((theirs.low, theirs.high))
    for one, other in (((5, 5), (0, 5)), ((3, 8), (7, 8)), ((1, 3), (2, 3))):
        table = [[one[0], other[0]], [one[1] - one[0], other[1] - other[0]]]
        expected = stats.boschloo_exact(table).pvalue
        assert boschloo_p(one, other, "two-sided") == pytest.approx(expected)
    assert boschloo_p((2, 4), (3, 6), "two-sided") == 1.0
    assert boschloo_p((5, 5), (0, 5)) == pytest.approx(2.0**-10)
    assert boschloo_p((0, 5), (5, 5)) == 1.0, "only an arm's own divergence is tested"


def test_divergence_suspends_the_mean_and_may_be_unstable():
    base, lost = [1.0, 2.0, 3.0, 4.0, 5.0], outcomes([0.0] * 5, diverged=range(5))
    one = verdict(base, outcomes([2.0, 3.1, 4.0, 5.2, 6.0], diverged=(1,)))
    assert one.verdict == ours.Word.NO_VERDICT
    assert "1 of 5 runs diverged" in one.words
    assert one.diverged == ((1, 5), (0, 5))
    assert verdict(base, lost, level=0.025, family=5).verdict == ours.Word.UNSTABLE
    assert verdict(lost, base).verdict == ours.Word.NO_VERDICT


@pytest.mark.parametrize(
    ("factor", "words"),
    [(1, "better by more than 0.01"), (0.5, "better"), (0.1, "better, negligible")],
)
def test_better_worse_and_their_margin(rng, factor, words):
    base = rng.normal(1, 0.01, 8)
    d = factor * np.array([0.02, 0.021, 0.019, 0.0205, 0.0195, 0.02, 0.0202, 0.0198])
    better, worse = (verdict(base, base + d, larger=larger) for larger in (True, False))
    assert (better.verdict, better.words) == (ours.Word.BETTER, words)
    assert (worse.verdict, worse.words) == (ours.Word.WORSE, words.replace("better", "worse"))
    assert worse.differences == pytest.approx(-d)


def test_no_different_within_the_margin_and_unresolved():
    base, d = np.arange(6.0), np.array([1, -1, 1, -1, 1, -1]) * 0.001
    assert verdict(base, base + d).verdict == ours.Word.SAME
    assert verdict(base, base + 30 * d).verdict == ours.Word.UNRESOLVED


def test_few_seeds():
    base, d = np.arange(5.0), np.array([0.02, 0.021, 0.019, 0.0205, 0.0195])
    for count in (1, 2):
        assert verdict(base[:count], (base + d)[:count]).verdict == ours.Word.NO_VERDICT
    assert verdict(base[:3], (base + d)[:3]).words.endswith("(few seeds)")
    equal = verdict(base[:4], base[:4] + np.array([1, -1, 1, -1]) * 1e-5)
    assert equal.words == "no different within 0.01 (few seeds)"


def test_no_spread_of_differences_is_no_evidence_and_only_shared_seeds_are_paired():
    assert verdict([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]).verdict == ours.Word.IDENTICAL
    assert verdict([1.0, 2.0, 3.0], [1.5, 2.5, 3.5]).verdict == ours.Word.REFUSED
    assert verdict([1.0, 2.0, 3.0, 4.0], [1.1, 2.2, 3.1]).seeds == (0, 1, 2)


def test_levels_of_looks():
    assert ours.level_of_look(5, (5,)) == 0.05 / 2
    assert ours.level_of_look(10, (5, 10), (5,)) == 0.05 / 3
    assert ours.level_of_look(7, (5,), (5,)) == 0.05 / 4
    assert ours.level_of_look(7, (5,), (5, 6)) == 0.05 / 8
    assert ours.level_of_look(5, (5,), (3, 4)) == 0.05 / 16  # peeking has its price
    assert ours.level_of_look(5, (5,), (5,)) == 0.05 / 4  # the same seeds, drawn anew


def test_what_gets_no_verdict_keeps_its_part_of_the_level(rng):
    base = rng.normal(0, 0.1, 5)
    d = np.array([0.03, 0.01, 0.05, 0.02, 0.045])
    alone = verdict(outcomes(base), outcomes(base + d), family=2)
    gone = outcomes(base + 1 + d / 100, diverged=(2,))
    both = ours.compare(outcomes(base), {"gone": gone, "arm": outcomes(base + d)}, 0.01, True)
    assert both[0].verdict == ours.Word.NO_VERDICT
    assert both[1] == alone._replace(arm="arm")
    alone = stats.ttest_1samp(both[1].differences, 0).pvalue
    assert both[1].p == pytest.approx(min(1.0, 2 * alone / 0.8))


def draws(kind, shape, rng):
    if kind == "normal":
        return rng.normal(size=shape)
    if kind == "contaminated":
        return np.where(rng.random(shape) < 0.1, rng.normal(0, 10, shape), rng.normal(size=shape))
    return rng.standard_t(3, size=shape)


def intervals(d, arms, level=0.05):
    """Bounds [studies, arms] of differences [studies, arms, n], as every word is read off."""
    mean, error, _ = ours.paired_t(d)
    half = stats.t.ppf(1 - 0.4 * level / arms, d.shape[-1] - 1) * error
    return mean - half, mean + half


def drawn_families(kind, arms, count, shifts=0.0):
    """Arms share the base, whose noise makes their tests dependent, as in a real study."""
    rng = np.random.default_rng(arms)
    d = draws(kind, (STUDIES, arms, count), rng) - draws(kind, (STUDIES, 1, count), rng)
    return d + np.asarray(shifts)[..., None]


@pytest.mark.parametrize("kind", ["normal", "t3", "contaminated"])
@pytest.mark.parametrize("arms", a_few_of((1, 4, 8), (1, 8)))
@pytest.mark.parametrize("count", a_few_of((3, 5, 8, 16), (3, 16)))
def test_all_intervals_of_a_family_hold_their_effects(kind, arms, count):
    low, high = intervals(drawn_families(kind, arms, count), arms)
    assert ((low > 0) | (high < 0)).any(-1).mean() <= 0.04 + 0.004


@pytest.mark.parametrize("arms", [2, 4, 8])
@pytest.mark.parametrize("count", [5, 8])
def test_no_more_than_one_study_in_twenty_has_any_false_word(arms, count):
    """Half of the arms at exactly 0, half at exactly the margin, five deviations of a difference."""
    margin = 5 * math.sqrt(2)
    at_margin = np.arange(arms) % 2 == 1
    low, high = intervals(drawn_families("normal", arms, count, margin * at_margin), arms)
    better, worse = low > 0, high < 0
    false = np.where(
        at_margin, worse | (low > margin) | ((-margin < low) & (high < margin)), better | worse
    )
    assert false.any(-1).mean() <= 0.05


@pytest.fixture
def no_need_of_seeds(monkeypatch):
    """No number of seeds is searched if none is looked at: it takes most of the time."""
    monkeypatch.setattr(ours, "seeds_needed", lambda *_: None)


@pytest.mark.usefixtures("no_need_of_seeds")
def test_no_word_contradicts_the_interval_beside_it():
    """compare() over 120 families with effects of all sizes: words, p values and intervals agree."""
    rng, seen = np.random.default_rng(0), set()
    for _ in range(120):
        arms, count = rng.choice([1, 4, 8]), rng.choice([3, 5, 8])
        margin = float(rng.choice([0.3, 1.5, 6.0]))
        level = float(rng.choice([0.05, 0.025, 0.05 / 16]))
        effects = rng.choice([0.0, 0.5, 1.5, -1.5, 6.0, -6.0], arms)
        values = rng.normal(size=(arms + 1, count)) * rng.choice([0.05, 1.0])
        cells = {str(a): outcomes(values[a + 1] + effects[a]) for a in range(arms)}
        for found in ours.compare(outcomes(values[0]), cells, margin, True, level):
            low, high = found.interval
            seen.add(found.words.removesuffix(" (few seeds)").split(" by ")[0].split(" within")[0])
            bounds = intervals(np.array(found.differences)[None, None], arms, level)
            np.testing.assert_allclose(found.interval, np.ravel(bounds))
            assert (found.p <= level) == (low > 0 or high < 0)
            assert (found.p_equivalence <= level) == (-margin < low and high < margin)
            assert (found.verdict == ours.Word.BETTER) == (low > 0)
            assert (found.verdict == ours.Word.WORSE) == (high < 0)
            assert ("by more than" in found.words) == (low > margin or high < -margin)
            inside = -margin < low and high < margin
            assert (found.verdict == ours.Word.SAME) == (inside and low <= 0 <= high)
            assert ("negligible" in found.words) == (inside and not low <= 0 <= high)
    assert seen == {"better", "better, negligible", "worse", "worse, negligible", "no different",
                    "unresolved"}  # fmt: skip


@pytest.mark.parametrize(
    ("planned", "shown"),
    [
        ((5, 10), (5, 10)),
        ((4, 8, 12, 16), (4, 8, 12, 16)),
        ((5,), (5, 10, 20, 40, 80)),
        ((3,), (3, 30, 300)),
        ((8,), (8, 16, 32)),
        ((5, 10), (5, 10, 20, 40, 80)),
        ((5,), (5, 6, 7, 8, 9, 10)),
        ((99,), tuple(range(3, 11))),
    ],
)
def test_looks_together_keep_the_level(planned, shown):
    """Also where each look doubles the seeds, and looks are the more independent for it."""
    d = np.random.default_rng(0).normal(size=(STUDIES, max(shown)))
    found = np.zeros(STUDIES, bool)
    for index, count in enumerate(shown):
        level = ours.level_of_look(count, planned, shown[:index])
        found |= ours.paired_t(d[:, :count])[2] <= 0.8 * level
    assert found.mean() <= 0.05
    if len(shown) == 8:
        free = np.any([ours.paired_t(d[:, :n])[2] <= 0.05 for n in shown], 0).mean()
        assert free == pytest.approx(0.17, abs=0.01), "looking freely does not keep it"


@pytest.mark.parametrize("arms", [1, 4, 8])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_arms_that_diverge_as_often_as_the_base_are_hardly_called_unstable(arms, share):
    gone = np.random.default_rng(arms).binomial(8, share, (2000, arms + 1))
    said = [
        min(boschloo_p((int(k), 8), (int(row[0]), 8)) for k in row[1:]) <= 0.01 / arms
        for row in gone
    ]
    assert np.mean(said) <= 0.01 + 0.005


@pytest.mark.usefixtures("no_need_of_seeds")
def test_divergence_suspends_every_word_on_a_mean():
    """compare() over 150 families of four arms, a tenth of whose cells diverge."""
    rng = np.random.default_rng(0)
    for _ in range(150):
        values, gone = rng.normal(size=(5, 5)), rng.random((5, 5)) < 0.1
        cells = [outcomes(row, np.flatnonzero(out)) for row, out in zip(values, gone, strict=True)]
        found = ours.compare(cells[0], dict(zip("abcd", cells[1:], strict=True)), 0.01, True)
        for contrast, lost in zip(found, gone[1:], strict=True):
            suspended = lost.any() or gone[0].any()
            low, high = contrast.interval
            decided = contrast.verdict in (ours.Word.BETTER, ours.Word.WORSE)
            assert decided == (not suspended and (low > 0 or high < 0))


def test_new_text_needs_a_wider_interval():
    """Seeds and sequences crossed: the coverage holds for new seeds and new text together."""
    rng, crossed, seeds_only = np.random.default_rng(0), 0, 0
    for _ in range(2000):
        d = (
            rng.normal(0, 1, (5, 1))
            + rng.normal(0, 3, (1, 40))
            + rng.normal(0, 2, (5, 40))
        )  # fmt: skip
        low, high = beyond_this_text(d)
        crossed += low <= 0 <= high
        mean, error, _ = map(float, ours.paired_t(d.mean(1)))
        low, high = ours.interval(mean, error, 4, 0.05)
        seeds_only += low <= 0 <= high
    assert crossed / 2000 == pytest.approx(0.95, abs=0.02)
    assert seeds_only / 2000 < crossed / 2000

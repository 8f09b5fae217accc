"""Solved or not: counts, updates until then, and ranks where some runs diverged."""

import itertools
import re

import numpy as np
import pytest
from scipy import stats

import transformer_jax
from transformer_jax.studies import figures, statistics
from transformer_jax.studies.outcomes import Outcome

ASKED = {"base": "base", "margin": 0.01, "larger_is_better": True, "target": 0.99}


def runs(updates, last=1000):
    """Outcomes by seed; None never solves it."""
    return {
        seed: Outcome(0.4, False, None, last) if at is None else Outcome(1.0, False, at, last)
        for seed, at in enumerate(updates)
    }


def compared(base, arm, level=0.025, family=1):
    (found,) = statistics.compare(base, {"arm": arm}, 0.01, True, level, family, target=0.99)
    return found


def judged(arm, base, **more):
    return compared(runs(base), runs(arm), **more)


def test_log_rank_scores_are_scipys_statistic(rng):
    """Their sum over a group is observed less expected, whose variance scipy's statistic divides."""
    for _ in range(5):
        updates = rng.integers(1, 9, 40).astype(float)  # with ties
        done = rng.random(40) < 0.7
        scores = statistics.log_rank_scores(updates, done)
        groups = (stats.CensoredData(u[d], right=u[~d]) for u, d in zip(
            np.split(updates, 2), np.split(done, 2), strict=True
        ))  # fmt: skip
        theirs = stats.logrank(*groups)
        difference = scores[:20].sum()
        variance = 0.0
        for time in np.unique(updates[done]):
            at_risk, of_ours = (updates >= time).sum(), (updates[:20] >= time).sum()
            events, share = (done & (updates == time)).sum(), of_ours / at_risk
            if at_risk > 1:
                variance += events * share * (1 - share) * (at_risk - events) / (at_risk - 1)
        assert abs(difference / np.sqrt(variance)) == pytest.approx(abs(theirs.statistic))
        p = statistics.permutation_p(scores[:20], scores[20:])
        assert p == pytest.approx(theirs.pvalue, abs=0.03)


def test_the_permutation_is_over_all_ways_to_part_the_runs(rng):
    one, other = rng.normal(size=4), rng.normal(0.5, 1, size=5)
    both = np.concatenate([one, other])
    seen = one.mean() - other.mean()
    means = np.array([
        both[list(chosen)].mean() - np.delete(both, chosen).mean()
        for chosen in itertools.combinations(range(9), 4)
    ])  # fmt: skip
    tails = [(means >= seen - 1e-12).mean(), (means <= seen + 1e-12).mean()]
    assert statistics.permutation_p(one, other) == pytest.approx(min(1, 2 * min(tails)))
    assert statistics.permutation_p([1, 1], [1, 1, 1]) == 1.0
    assert statistics.permutation_p([1], [2, 3, 4]) == 1.0
    assert statistics.permutation_p([1, 2, 3], [0]) == 1.0


def test_words_are_about_counts_and_updates_and_never_about_a_mean():
    found = judged([300] * 5, [None] * 5)
    assert (found.verdict, found.words) == (
        "better",
        "better: 5 of 5 runs solve it, 0 of 5 of the base",
    )
    assert np.isnan([found.mean, *found.interval]).all()
    assert found.p <= 0.025
    assert judged([None] * 5, [300] * 5).verdict == "worse"
    sooner = judged([100, 110, 120, 130, 140], [500, 510, 520, 530, 540])
    assert sooner.words.startswith("better: sooner, median 120 updates, base 520; 5 of 5")
    later = judged([500, 510, 520, 530, 540], [100, 110, 120, 130, 140])
    assert later.words.startswith("worse: later")
    assert judged([300, None, 310, 320, 330], [300, 305, 310, 320, 330]).verdict == "unresolved"
    assert judged([300] * 2, [None] * 2).verdict == "no verdict"
    assert judged([300] * 5, [None] * 5, family=8).verdict == "unresolved"


def test_a_run_that_diverged_has_not_solved_it_and_is_not_sooner():
    """Runs that diverge early are censored after all others, and instability comes first."""
    base = runs([500] * 5)
    gone = {seed: Outcome(None, True, None, 10) for seed in base}
    found = compared(base, gone)
    assert (found.verdict, found.solved) == ("unstable", ((0, 5), (5, 5)))
    assert found.updates == (None, 500.0)
    assert found.words.startswith("unstable: 5 of 5 runs diverged")
    some = {seed: gone[seed] if seed > 2 else Outcome(1.0, False, 100, 1000) for seed in base}
    assert compared(base, some).verdict == "unresolved"
    nothing = {str(n): base for n in range(10)}
    assert all(c.p == 1 for c in statistics.compare(base, nothing, 0.01, True, target=0.99))


@pytest.mark.thorough
@pytest.mark.parametrize(("count", "arms"), [(3, 1), (5, 1), (5, 4), (8, 1)])
def test_of_arms_like_the_base_few_are_called_better_or_worse(count, arms):
    """6 of 10 runs solve it, after times that are far apart."""
    rng, fooled, studies = np.random.default_rng(0), 0, 150 if count < 8 else 60
    for _ in range(studies):
        groups = [
            [int(rng.exponential(400)) if rng.random() < 0.6 else None for _ in range(count)]
            for _ in range(arms + 1)
        ]
        base, *others = map(runs, groups)
        named = {str(n): other for n, other in enumerate(others)}
        found = statistics.compare(base, named, 0.01, True, 0.05, arms, target=0.99)
        fooled += any(each.verdict in ("better", "worse") for each in found)
    assert fooled / studies <= 0.05 + 2.5 * (0.05 * 0.95 / studies) ** 0.5


def test_the_public_judge_takes_steps():
    rows = [
        {"arm": arm, "seed": seed, "value": value, "step": step}
        for arm, value, step in (("base", 0.4, 1000), ("fast", 1.0, 100))
        for seed in range(5)
    ]
    (found,) = transformer_jax.judge(rows, **ASKED)
    assert (found.word, found.solved, found.updates) == ("better", ((5, 5), (0, 5)), (100.0, None))
    (plain,) = transformer_jax.judge(rows, **ASKED | {"target": None})
    assert (plain.word, plain.solved) == ("refused", None)
    with pytest.raises(transformer_jax.errors.InvalidInput, match="row 11 has no step"):
        transformer_jax.judge([*rows, {"arm": "base", "seed": 9, "value": 1.0}], **ASKED)
    two = [*rows, {"arm": "base", "seed": 9, "value": 1.0, "data_set": "x", "step": 1}]
    two += [{"arm": "base", "seed": 10, "value": 1.0, "data_set": "y", "step": 1}]
    with pytest.raises(transformer_jax.errors.InvalidInput, match="judge one set at a time"):
        transformer_jax.judge(two, **ASKED)


def test_every_run_has_a_mark_in_the_plot_of_updates(tmp_path):
    """Ten runs that solve it, ten that do not and one that diverged, each at its own height."""
    solved = {str(seed): [1.0, False, 200, 5_000] for seed in range(10)}
    not_solved = {str(seed): [0.6, False, None, 5_000] for seed in range(10)}
    outcomes = {"base": solved, "arm": not_solved | {"10": [None, True, None, 300]}}
    svg = figures.draw_updates(tmp_path, outcomes, 0.99, larger_is_better=True).decode()
    assert (tmp_path / "updates.svg").read_bytes() == svg.encode()
    assert all(word in svg for word in (">base<", ">arm<", "until 0.99 is reached"))
    marks = re.findall(r'x="([\d.]+)" y="([\d.]+)" style="fill-opacity: 0; stroke: (#\w+)"', svg)
    reached = {(x, float(y)) for x, y, colour in marks[:-2] if colour == "#1f77b4"}
    crosses = {(x, float(y)) for x, y, colour in marks[:-2] if colour == "#666666"}
    assert (len(reached), len(crosses)) == (10, 11)  # the last two marks are the legend's
    assert max(y for _, y in reached) < min(y for _, y in crosses)  # rows do not overlap

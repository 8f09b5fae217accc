"""What an arm is worth in the base's compute: laws whose truth is known, and forecasts."""

import numpy as np
import pytest
from scipy import optimize

from tests.conftest import TINY, attempt, refused
from transformer_jax.errors import InvalidInput
from transformer_jax.studies.asking.design import load_design
from transformer_jax.studies.asking.ladder import ladder_of
from transformer_jax.studies.inference import multipliers
from transformer_jax.studies.inference.multipliers import fitted, multiplier_of
from transformer_jax.studies.judging.ladder import multipliers as of_verdicts
from transformer_jax.studies.judging.ladder import shared_axes


@pytest.fixture(autouse=True)
def few_resampled(monkeypatch):
    monkeypatch.setattr(multipliers, "_RESAMPLED", 60)


def law(x, floor=1.4, scale=1.5, power=0.25):
    return floor + scale * x**-power


def scores(rng, x, worth=1.0, floor=1.4, spread=0.003, seeds=5):
    """[R, S], of arms whose every x is worth so many times as much."""
    shared = spread * rng.normal(size=seeds)
    return law(x * worth, floor)[:, None] + shared + spread * rng.normal(size=(len(x), seeds))


X = 4.0 ** np.arange(5)


def test_an_arm_is_worth_what_the_base_needs_to_score_as_it():
    base, arm = (np.repeat(law(X * m)[:, None], 4, 1) for m in (1.0, 1.7))
    found = multiplier_of(X, X, base, arm)
    assert found.largest == pytest.approx(1.7, rel=1e-4)
    assert found.smallest == pytest.approx(1.7, rel=1e-3)
    assert found.change == pytest.approx(1, rel=1e-3)
    assert found.floor == pytest.approx(1.4, abs=1e-3)
    assert found.extrapolated
    # The same scores with half of the operations are worth twice as much.
    assert multiplier_of(X, X / 2, base, arm).largest == pytest.approx(3.4, rel=1e-4)
    assert multiplier_of(X, X, arm, base).largest == pytest.approx(1 / 1.7, rel=1e-4)
    assert not multiplier_of(X, X, arm, base).extrapolated


def test_a_worth_that_grows_is_seen_to():
    base, arm = law(X), 1.4 + 1.5 * X**-0.3
    found = multiplier_of(X, X, np.repeat(base[:, None], 4, 1), np.repeat(arm[:, None], 4, 1))
    assert found.largest == pytest.approx((X[-1] ** 0.3) ** 4 / X[-1], rel=1e-3)
    assert found.smallest == pytest.approx(1, rel=1e-3)
    assert found.change > 1
    assert found.change_interval[0] > 1


def test_the_base_s_law_is_that_of_curve_fit(rng):
    base = scores(rng, X).mean(1)
    told, _ = optimize.curve_fit(
        lambda x, floor, scale, power: floor + scale * x**-power, X, base, p0=(1, 1, 0.3)
    )
    arm = law(X, *told)  # on that law itself, so that both laws have its floor
    found = fitted(X, X, base, arm, has_floor=True)
    assert found.score("base", X) == pytest.approx(law(X, *told), abs=2e-5)
    assert found.floor == pytest.approx(told[0], abs=2e-3)


@pytest.mark.thorough
@pytest.mark.parametrize(("rungs", "floor"), [(3, 0.0), (5, 1.0)])
def test_intervals_of_multipliers_cover_where_the_law_holds(rng, rungs, floor):
    x, covered, rejected, draws = X[:rungs], 0, 0, 40
    for _ in range(draws):
        found = multiplier_of(
            x, 1.2 * x, scores(rng, x, floor=floor), scores(rng, 1.2 * x, 1.5, floor)
        )
        covered += found.interval[0] <= 1.5 <= found.interval[1]
        rejected += found.fit_p < 0.05
    assert covered >= 0.85 * draws
    assert rejected <= 0.2 * draws


def test_a_law_that_does_not_fit_is_rejected(rng):
    """Of three rungs no floor can be fitted; where there is one, the law without is wrong."""
    x = X[:3]
    found = multiplier_of(x, x, scores(rng, x, floor=0.5), scores(rng, x, 1.5, floor=0.5))
    assert found.floor == 0
    assert found.fit_p < 0.01
    hump = scores(rng, X) + np.array([0, 0.1, 0, -0.1, 0])[:, None]
    assert multiplier_of(X, X, hump, scores(rng, X)).fit_p < 0.01


def test_where_there_is_no_law_there_is_no_multiplier(rng):
    base = scores(rng, X)
    assert multiplier_of(X, X, base[:, :2], base[:, :2]) is None  # too few seeds
    assert multiplier_of(X[:2], X[:2], base[:2], base[:2]) is None  # too few rungs
    assert multiplier_of(X, X, base - 5, base - 5) is None  # not positive
    assert multiplier_of(X, X, base[::-1], base[::-1]) is None  # the base gets worse


def verdicts_of(base, arm, metric="test/loss", larger=False):
    """Of each rung, as far as multipliers read them."""
    return [
        {
            "base": "base", "metric": metric, "larger_is_better": larger,
            "values": {
                name: {"by_seed": {str(s): float(v) for s, v in enumerate(row)}}
                for name, row in (("base", ours), ("arm", theirs))
            },
        }
        for ours, theirs in zip(base, arm, strict=True)
    ]  # fmt: skip


def test_every_axis_that_grows_has_its_multiplier(rng):
    base, arm = scores(rng, X), scores(rng, X, 1.5)
    axes = {"parameters": (X, X), "training operations": (X**2, 1.5 * X**2)}
    found = of_verdicts(verdicts_of(base, arm), "arm", axes, 0.05)
    assert found["parameters"]["largest"] == pytest.approx(1.5, rel=0.2)
    # The law is the same over x^2; an arm that uses half as much again is worth less of it.
    expected = found["parameters"]["largest"] ** 2 / 1.5
    assert found["training operations"]["largest"] == pytest.approx(expected, rel=0.02)
    shares = verdicts_of(1 - base / 4, 1 - arm / 4, "test/accuracy", larger=True)
    of_errors = of_verdicts(shares, "arm", axes, 0.05)
    assert of_errors["parameters"]["largest"] == pytest.approx(
        found["parameters"]["largest"], rel=1e-3
    )
    assert of_verdicts(verdicts_of(base, arm, "test/bleu", larger=True), "arm", axes, 0.05) == {}


def test_the_largest_rung_is_forecast_without_its_scores(rng):
    smaller = verdicts_of(scores(rng, X)[:4], scores(rng, X, 1.5)[:4])
    found = of_verdicts(smaller, "arm", {"parameters": (X, X)}, 0.05)["parameters"]
    low, high = found["interval"]
    assert low < 1.5 < high


def test_axes_are_those_on_which_both_grow():
    def costs(sizes):
        return [{"without_embeddings": n, "counted": 100, "flops": float(n)} for n in sizes]

    found = shared_axes(costs((1, 2, 3)), costs((2, 4, 6)), "tokens")
    assert found == {"parameters": ([1, 2, 3], [2, 4, 6]),
                     "training operations": ([100, 200, 300], [200, 400, 600])}  # fmt: skip
    assert shared_axes(costs((1, 2, 3)), costs((2, 2, 2)), "tokens") == {}


# ---------------------------------------------------------------- ladders


def test_options_that_grow_together():
    design = load_design(TINY, {}, ["model.num_heads=1,2"])
    ladder = ladder_of(["model.width=16,32,64", "training.steps=100,200,400"], design)
    made = [(d.config.model.width, d.config.training.steps) for d in ladder.rungs.values()]
    assert made == [(16, 100), (32, 200), (64, 400)]
    assert (ladder.key, ladder.together) == ("model.width", {"training.steps": [100, 200, 400]})
    assert ladder.rungs[32].overrides["training.steps"] == "200"
    for second in ("training.steps=1,2,3,4", "model.width=8,16,32"):
        with pytest.raises(InvalidInput, match="grow together: each once, 3 values"):
            ladder_of(["model.width=16,32,64", second], design)


def test_a_ladder_that_is_wrong_in_its_second_option_is_refused(tmp_path):
    arm = ("ablate", f"--config={TINY}", "--arm=model.num_heads=1", f"--workdir={tmp_path}")
    ladder = "--ladder=model.width=16,32,64"
    refused(attempt(*arm, ladder, "--ladder=training.stps=1,2,3"), "training.steps")

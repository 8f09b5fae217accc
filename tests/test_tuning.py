"""Tuning: what is tried, halving, a parabola, and what all of it adds to a verdict."""

import itertools
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from configs import tiny
from tests.test_studies import STUDY, study_file
from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import changed
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import as_plain
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.asking.design import load_design
from transformer_jax.studies.asking.settings import first_space, grown, with_middles
from transformer_jax.studies.asking.tuning import Tuned, Tuning, read_tuning, shortened, tuned_of
from transformer_jax.studies.inference import statistics, tuned
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.judging.trials import regret_of
from transformer_jax.studies.running.launch import run
from transformer_jax.studies.running.tuning import Search

CONFIG = tiny.get_config()
RATE, DROPOUT, KIND = "optimizer.learning_rate", "model.dropout_rate", "model.activation"
BETA, CLIP = "optimizer.adamw.b2", "training.clip_norm"


# ---------------------------------------------------------------- trials without training


class _Design(SimpleNamespace):
    """What `tune` asks of a design."""

    def config_of(self, arm, changes=None):
        return changed(self.config, changes or {})


class _Builder:
    def __init__(self, design):
        self.design = design

    def make(self, name, arm, more):
        self.design.config_of(arm, more)
        self.design.refuse(more)
        return SimpleNamespace(name=name, arm=arm, changes=more)


def tuned_by(
    losses,
    arms=("base",),
    larger=False,
    margin=0.01,
    metric="score",
    refuse=lambda _: None,
    **tuning,
):
    """Tunes arms whose validation scores are a function of (arm, changes, seed).

    `refuse` raises InvalidInput where a model cannot be made with some changes.

    Returns:
      arm -> Tuned, and the trials of each call: (names, number of seeds).
    """
    design = _Design(
        config=CONFIG,
        tuning=read_tuning("here", tuning, {}),
        metric=metric,
        margin=margin,
        larger_is_better=larger,
        base=arms[0],
        refuse=refuse,
    )
    task = SimpleNamespace(sizes={"vocab_size": 65})
    ready = {
        name: SimpleNamespace(config=CONFIG, matched={}, prepared=SimpleNamespace(task=task))
        for name in arms
    }
    calls = []

    def run_trials(trials, seeds):
        calls.append((list(trials), len(seeds)))
        return {
            name: [
                loss
                if isinstance(loss := losses(t.arm, t.changes, seed), dict | None)
                else {metric: loss}
                for seed in range(len(seeds))
            ]
            for name, t in trials.items()
        }

    return Search(design, _Builder(design), ready, run_trials).run(), calls


def bowl(optimum, curvature=0.1):
    """A parabola over the logarithm of the rate."""
    return lambda arm, changes, seed: curvature * math.log(changes[RATE] / optimum) ** 2


def test_the_best_of_a_grid_and_what_it_cost():
    grid = {"key": RATE, "grid": (1e-3, 2e-3, 4e-3), "seeds": (7, 8)}
    found, calls = tuned_by(bowl(2e-3), metric="loss", **grid)
    assert found["base"].chosen == {RATE: 2e-3}
    unknown, _ = tuned_by(bowl(2e-3), metric="updates_to_target", **grid)
    assert unknown["base"].sensitivity is None, "a guess has no updates"
    assert (found["base"].runs, len(found["base"].tried), found["base"].refused) == (6, 3, "")
    losses = [0.1 * math.log(2) ** 2, 0.0, 0.1 * math.log(2) ** 2]
    assert found["base"].first_scores == pytest.approx(losses)
    assert found["base"].sensitivity == pytest.approx(sum(losses) / 3)
    assert len(calls) == 1


def test_a_grid_grows_for_all_arms_to_where_one_has_its_optimum():
    def losses(arm, changes, seed):
        return bowl({"base": 2e-3, "other": 9e-3}[arm])(arm, changes, seed)

    found, _ = tuned_by(losses, ("base", "other"), key=RATE, grid=(1e-3, 2e-3, 4e-3), seeds=(7,))
    assert found["other"].chosen[RATE] == pytest.approx(8e-3)
    assert found["other"].refused == found["base"].refused == ""
    assert found["base"].tried[-1][0][RATE] == pytest.approx(16e-3)
    assert found["base"].runs == found["other"].runs == 5


def test_an_optimum_that_stays_at_the_edge_is_refused():
    found, _ = tuned_by(bowl(1.0), key=RATE, grid=(1e-3, 2e-3, 4e-3), seeds=(7,), extensions=1)
    assert found["base"].refused == f"its best {RATE} is at the edge of the grid"


def test_an_optimum_at_the_limit_of_an_option_is_one():
    def losses(arm, changes, seed):
        return changes[DROPOUT]

    found, calls = tuned_by(losses, key=DROPOUT, grid=(0.0, 0.1, 0.2), seeds=(7,))
    assert found["base"].chosen == {DROPOUT: 0.0}
    assert not found["base"].refused
    assert len(calls) == 1


def test_whole_numbers_of_an_option_of_numbers_are_no_integers():
    """Below 1 there is 0.5, and between 1 and 2 a parabola has its middle."""

    def losses(arm, changes, seed, best=0.5):
        return math.log(changes[CLIP] / best) ** 2

    for grid in ((1, 2, 4), (1.0, 2.0, 4.0)):
        found, _ = tuned_by(losses, key=CLIP, grid=grid, seeds=(7,))
        assert found["base"].chosen == {CLIP: 0.5}

    def at_1_4(arm, changes, seed):
        return losses(arm, changes, seed, best=1.4)

    found, _ = tuned_by(at_1_4, key=CLIP, grid=(0.5, 1, 2, 4), seeds=(7, 8), refine=CLIP)
    assert found["base"].chosen[CLIP] == pytest.approx(1.4, rel=1e-2)
    whole = read_tuning("here", {"key": "model.depth", "grid": (1, 2, 3)}, {})
    assert [type(value) for value in whole.options["model.depth"]] == [int] * 3


def test_nothing_grows_to_what_no_model_can_be_made_with():
    """Each option may allow it, and both together not."""

    def losses(arm, changes, seed):
        return -changes["model.num_heads"]

    def refuse(changes):
        if changes["model.num_heads"] > 32:
            raise InvalidInput("num_heads: expected a divisor of width 32")

    grid = {"key": "model.num_heads", "grid": (8, 16, 32), "seeds": (7,)}
    found, calls = tuned_by(losses, refuse=refuse, **grid)
    assert found["base"].chosen == {"model.num_heads": 32}
    assert found["base"].refused
    assert len(calls) == 1


def test_steps_of_a_difference_grow_by_it():
    def losses(arm, changes, seed):
        return (changes[DROPOUT] - 0.42) ** 2

    found, _ = tuned_by(losses, key=DROPOUT, grid=(0.1, 0.2, 0.3), seeds=(7,))
    assert found["base"].chosen[DROPOUT] == pytest.approx(0.4)


def test_several_options_and_choices_are_combined():
    def losses(arm, changes, seed):
        best = 4e-3 if changes[KIND] == "relu" else 1e-3  # one by one, neither would be found
        return bowl(best)(arm, changes, seed) - 0.05 * (changes[KIND] == "relu")

    grid = {RATE: (5e-4, 1e-3, 2e-3, 4e-3, 8e-3), KIND: ("gelu", "relu", "silu")}
    found, calls = tuned_by(losses, options=grid, seeds=(7,))
    assert found["base"].chosen == {RATE: 4e-3, KIND: "relu"}
    assert len(calls[0][0]) == 15
    assert found["base"].sensitivity is None


def test_larger_may_be_better():
    def scores(arm, changes, seed):
        return -bowl(2e-3)(arm, changes, seed)

    found, _ = tuned_by(scores, larger=True, key=RATE, grid=(1e-3, 2e-3, 4e-3), seeds=(7,))
    assert found["base"].chosen == {RATE: 2e-3}
    assert max(found["base"].first_scores) == 0


def test_where_the_metric_ties_the_loss_decides():
    """All answers wrong at every rate: a metric of whole answers says nothing yet."""

    def means(arm, changes, seed):
        return {"score": 0.0, "loss": bowl(4e-3)(arm, changes, seed)}

    found, _ = tuned_by(means, larger=True, key=RATE, grid=(1e-3, 2e-3, 4e-3, 8e-3), seeds=(7,))
    assert found["base"].chosen == {RATE: 4e-3}
    assert not found["base"].refused


def test_a_trial_that_diverged_is_the_worst_and_one_without_outcome_refuses():
    def losses(arm, changes, seed):
        return (
            (math.nan if changes[RATE] > 3e-3 else bowl(9e-4)(arm, changes, seed))
            if (arm == "base" or changes[RATE] < 3e-3)
            else None
        )

    found, _ = tuned_by(
        losses, ("base", "other"), key=RATE, grid=(5e-4, 1e-3, 2e-3, 4e-3), seeds=(7,)
    )
    assert found["base"].chosen == {RATE: 1e-3}
    assert not found["base"].refused
    assert found["other"].refused == "some trials of its tuning have no outcome"


def test_a_metric_without_a_value_is_no_reason_to_end():
    """A run may never reach its target: then it has no number of updates."""

    def means(arm, changes, seed):
        updates = None if changes[RATE] < 1.5e-3 else 1000 * bowl(4e-3)(arm, changes, seed)
        return {"updates_to_target": updates, "loss": bowl(4e-3)(arm, changes, seed)}

    grid = {"key": RATE, "grid": (1e-3, 2e-3, 4e-3, 8e-3), "seeds": (7,)}
    found, _ = tuned_by(means, metric="updates_to_target", **grid)
    assert found["base"].chosen == {RATE: 4e-3}
    assert not found["base"].refused


# ---------------------------------------------------------------- random search


def test_random_settings_are_the_same_for_every_arm_and_cover_the_range():
    options = {RATE: (1e-4, 1e-2), DROPOUT: (0.0, 0.4), "model.num_heads": (1, 8), KIND: ("a", "b")}
    space = first_space(options, 200)
    assert space == first_space(options, 200)
    rates, dropout = (np.array([s[key] for s in space.settings]) for key in (RATE, DROPOUT))
    assert stats.kstest(np.log(rates), stats.uniform(np.log(1e-4), np.log(100)).cdf).pvalue > 0.01
    assert stats.kstest(dropout, stats.uniform(0, 0.4).cdf).pvalue > 0.01
    assert {s["model.num_heads"] for s in space.settings} <= set(range(1, 9))
    assert {s[KIND] for s in space.settings} == {"a", "b"}


def test_a_random_range_grows_by_a_third_with_as_many_trials():
    space = first_space({RATE: (1e-3, 8e-3)}, 6)
    larger = grown(space, RATE, 1, 1)
    assert larger.values[RATE] == pytest.approx((1e-3, 16e-3))
    assert larger.settings[:6] == space.settings
    assert len(larger.settings) == 8
    assert all(8e-3 <= setting[RATE] <= 16e-3 for setting in larger.settings[6:])


def test_a_random_search_finds_its_optimum():
    found, _ = tuned_by(
        bowl(2e-3), options={RATE: (2e-4, 2e-2), KIND: ("gelu", "relu")}, trials=16, seeds=(7,)
    )
    assert found["base"].chosen[RATE] == pytest.approx(2e-3, rel=0.5)
    assert len(found["base"].tried) == 16


# ---------------------------------------------------------------- halving


def test_an_optimum_at_the_limit_of_a_random_range_is_one():
    """The smallest rate that was drawn is no 0, but nothing lies below the range."""

    def losses(arm, changes, seed):
        return changes[DROPOUT]

    found, calls = tuned_by(losses, options={DROPOUT: (0.0, 0.4)}, trials=8, seeds=(7,))
    assert found["base"].chosen[DROPOUT] > 0
    assert not found["base"].refused
    assert len(calls) == 1


def test_the_better_half_goes_on_to_more_updates_and_seeds():
    seen = []

    def losses(arm, changes, seed):
        seen.append((changes[RATE], changes.get("training.steps"), seed))
        # The best at a quarter of the updates is the second in the end.
        shift = 1.6 if changes.get("training.steps", 10_000) < 20 else 1.0
        return bowl(2e-3 * shift)(arm, changes, seed)

    steps = CONFIG.training.steps
    grid = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3)
    rungs = ((0.25, 1), (0.5, 1), (1.0, 2))
    found, calls = tuned_by(losses, key=RATE, grid=grid, seeds=(7, 8), rungs=rungs)
    assert [(len(names), count) for names, count in calls] == [(6, 1), (3, 1), (2, 2)]
    assert {s for _, s, _ in seen} == {round(0.25 * steps), round(0.5 * steps), None}
    assert found["base"].chosen == {RATE: 2e-3}
    assert found["base"].runs == 6 + 3 + 4
    assert [len(scores) for _, scores in found["base"].tried] == [1, 1, 3, 3, 2, 1]


def test_a_shorter_run_has_a_shorter_warm_up():
    flat = {
        "schedule.name": "warmup_cosine",
        "schedule.warmup_cosine.warmup_steps": 100,
        "training.steps": 1000,
    }
    assert shortened(flat, 1.0) == {}
    assert shortened(flat, 0.25) == {
        "training.steps": 250,
        "schedule.warmup_cosine.warmup_steps": 25,
    }
    none = {**flat, "schedule.warmup_cosine.warmup_steps": 0}
    assert shortened(none, 0.25) == {"training.steps": 250}


def test_a_warm_up_that_is_tuned_is_as_much_shorter():
    warm_up, asked = "schedule.warmup_cosine.warmup_steps", []

    def losses(arm, changes, seed):
        asked.append((changes.get("training.steps"), changes[warm_up]))
        return abs(math.log(changes[warm_up] / 20))

    options = {"options": {warm_up: (8, 16, 32)}, "rungs": ((0.25, 1), (1.0, 1)), "seeds": (7,)}
    found, _ = tuned_by(losses, **options)
    brief = round(0.25 * CONFIG.training.steps)
    assert set(asked[:3]) == {(brief, 2), (brief, 4), (brief, 8)}
    assert {(steps, value) for steps, value in asked[3:] if steps is None} <= {
        (None, value) for value in (4, 8, 16, 32, 64)
    }
    assert not found["base"].refused


def test_choices_that_are_tuples_come_back_as_tuples():
    """JSON has lists alone, and an option takes no list."""
    chosen = {"training.frozen": ("positions",), RATE: 1e-3}
    stored = json.loads(json.dumps(as_plain(Tuned(chosen, [], 2))))
    assert tuned_of({"tuning": stored}).chosen == chosen


def test_the_plan_tells_what_halving_costs():
    tuning = Tuning({RATE: (1e-3, 2e-3, 4e-3, 8e-3)}, seeds=(7, 8), rungs=((0.25, 1), (0.5, 2)))
    assert tuning.runs_of_an_arm() == 4 * 0.25 + 2 * 0.5 * 2
    assert "4 at 25% of the updates with 1 seed, then 2 at 50%" in tuning.told()
    drawn = Tuning({RATE: (1e-3, 8e-3)}, trials=8, seeds=(7, 8), rungs=((1.0, 2),), refine=RATE)
    assert drawn.runs_of_an_arm() == 2 * (8 + 2)


# ---------------------------------------------------------------- a parabola


def test_a_parabola_finds_the_optimum_between_the_values():
    def losses(arm, changes, seed):
        return bowl(2.7e-3)(arm, changes, seed) + 0.3 * seed

    grid = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
    found, _ = tuned_by(losses, key=RATE, grid=grid, seeds=(7, 8), refine=RATE)
    assert found["base"].chosen[RATE] == pytest.approx(2.7e-3, rel=1e-3)
    assert found["base"].refined["missed"] == pytest.approx(0, abs=1e-12)  # no noise


def test_a_parabola_is_read_at_the_last_rung_and_moves_to_its_middle():
    def losses(arm, changes, seed):
        is_brief = "training.steps" in changes
        return bowl(9e-3 if is_brief else 1.2e-3)(arm, changes, seed)

    found, calls = tuned_by(
        losses, key=RATE, grid=(5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3), seeds=(7, 8), refine=RATE,
        rungs=((0.25, 1), (1.0, 2)),
    )  # fmt: skip
    assert found["base"].chosen[RATE] == pytest.approx(1.2e-3, rel=2e-3)
    assert [len(names) for names, _ in calls] == [6, 3, 1, 1, 1]  # a step each


def test_a_parabola_beside_a_limit_is_none():
    def losses(arm, changes, seed):
        return changes[DROPOUT]

    found, _ = tuned_by(losses, key=DROPOUT, grid=(0.0, 0.1, 0.2), refine=DROPOUT)
    assert found["base"].chosen == {DROPOUT: 0.0}
    assert found["base"].refined is None
    assert not found["base"].refused


def test_a_parabola_of_a_random_search():
    found, _ = tuned_by(bowl(2e-3), options={RATE: (2e-4, 2e-2)}, trials=8, refine=RATE)
    assert found["base"].chosen[RATE] == pytest.approx(2e-3, rel=1e-2)


def test_a_parabola_of_a_random_search_beside_a_limit():
    """Twice the best is no value of the option; a smaller step is."""

    def losses(arm, changes, seed):
        return (np.log(changes[BETA]) - np.log(0.96)) ** 2

    found, calls = tuned_by(losses, options={BETA: (0.9, 0.999)}, trials=8, refine=BETA)
    assert found["base"].chosen[BETA] == pytest.approx(0.96, rel=1e-2)
    assert all(0 < value < 1 for value in found["base"].refined["between"])
    assert calls


def cliff(optimum, random):
    """A parabola in steps of 2, whose seeds fall apart from 0.8 steps above the optimum on."""

    def losses(arm, changes, seed):
        gap = math.log2(changes[RATE] / optimum)
        beyond = max(gap - 0.8, 0.0)
        return 0.05 * gap**2 + random.normal(0, 0.003) + beyond * (1 + 2 * random.random())

    return losses


def test_steps_are_halved_where_the_next_value_falls_off_a_cliff():
    grid, seeds = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3), (7, 8, 9)
    found, calls = {}, {}
    for halve in (False, True):
        losses = cliff(2e-3, np.random.default_rng(0))
        options = {"key": RATE, "grid": grid, "seeds": seeds, "refine": RATE}
        told, calls[halve] = tuned_by(losses, **options, halve=halve)
        found[halve] = told["base"]
    assert found[1].refined["missed"] < 0.1 * found[0].refined["missed"]
    assert found[1].refined["between"] == [
        pytest.approx(2e-3 * 2**k, rel=1e-3) for k in (-0.5, 0, 0.5)
    ]
    assert found[1].chosen[RATE] == pytest.approx(2e-3, rel=0.1)
    assert found[0].chosen[RATE] < 1.7e-3  # the cliff pulls a parabola to the other side
    assert [len(names) for names, _ in calls[1]] == [5, 2]
    assert found[1].runs == found[0].runs + 6


def test_steps_are_halved_towards_the_best_of_them():
    def losses(arm, changes, seed):
        noise = 0.3 * (seed - 0.5) if changes[RATE] > 3e-3 else 0.0
        return bowl(2.7e-3)(arm, changes, seed) + noise

    grid = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
    found, _ = tuned_by(losses, key=RATE, grid=grid, seeds=(7, 8), refine=RATE, halve=True)
    between = found["base"].refined["between"]
    assert between == [pytest.approx(v, rel=1e-3) for v in (2e-3, 2e-3 * 2**0.5, 4e-3)]


def test_steps_that_are_fine_are_not_halved():
    grid = (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)
    options = {"key": RATE, "grid": grid, "seeds": (7, 8), "refine": RATE, "halve": True}
    calls = {m: len(tuned_by(bowl(2.7e-3), margin=m, **options)[1]) for m in (0.001, 0.1)}
    assert calls == {0.001: 2, 0.1: 1}


def test_whole_numbers_are_halved_while_there_are_others_between():
    assert with_middles((2, 4, 6)) == (2, 3, 4, 5, 6)
    assert with_middles((1, 2, 3)) == ()
    assert with_middles((1, 4, 16)) == (1, 2, 4, 8, 16)
    assert with_middles((0.1, 0.2, 0.3)) == pytest.approx((0.1, 0.15, 0.2, 0.25, 0.3))


def test_the_error_of_the_parabola_is_that_of_least_squares():
    random = np.random.default_rng(0)
    x = np.log([1e-3, 2e-3, 4e-3])
    losses = (
        0.1 * (x - np.log(2.4e-3)) ** 2 + random.normal(0, 0.01, (4, 3)) + [[0.2], [0], [1], [3]]
    )
    found = tuned.parabola(x, losses)
    # The same with a column a seed, where numpy fits a parabola to all points at once.
    rows = [[v * v, v, *np.eye(4)[seed]] for seed in range(4) for v in x]
    design, y = np.array(rows), losses.reshape(-1)
    coefficients, residual, *_ = np.linalg.lstsq(design, y)
    c, b = coefficients[:2]
    variance = float(residual[0]) / (12 - 6)
    covariance = variance * np.linalg.inv(design.T @ design)[:2, :2]
    gradient = np.array([b / (2 * c**2), -1 / (2 * c)])
    assert found.freedom == 6
    assert found.is_inside
    assert found.at == pytest.approx(-b / (2 * c), rel=1e-6)
    assert found.deviation == pytest.approx(math.sqrt(gradient @ covariance @ gradient), rel=1e-4)
    assert found.missed == pytest.approx(math.sqrt(3) * c * found.deviation**2, rel=1e-4)


def test_without_a_minimum_between_the_values_the_middle_stays():
    found = tuned.parabola([0.0, 1.0, 2.0], [[0.1, 0.0, -0.1], [-0.1, 0.0, 0.1]])
    assert (found.at, found.is_inside) == (1.0, False)
    assert found.missed > 0


def test_an_optimum_in_factors_is_held_by_its_interval():
    """Five seeds whose noise is a tenth of what a step of 2 costs; a factor of 2^(1/2) is found."""
    random, x = np.random.default_rng(0), np.log([1e-3, 2e-3, 4e-3, 8e-3])

    def seen(best, noise):
        return tuned.optimum(np.exp(x), (x - math.log(best)) ** 2 + noise)

    exact = seen(2.4e-3, np.zeros((5, 1)))
    assert (exact.at, *exact.interval) == pytest.approx((2.4e-3,) * 3)
    noises = random.normal(0, 0.05, (2, 2000, 5, 4))
    pairs = [(seen(2.4e-3, a), seen(2.4e-3 * 2**0.5, b)) for a, b in zip(*noises, strict=True)]
    held = [a.interval[0] < 2.4e-3 < a.interval[1] for a, _ in pairs]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015)
    ways = [tuned.moved(*pair) for pair in pairs]
    held = [way.interval[0] < 2**0.5 < way.interval[1] for way in ways]
    assert 0.94 < np.mean(held) < 0.99
    assert np.mean([way.interval[0] > 1 for way in ways]) > 0.9
    # Near an arm, and with one arm of much larger noise.
    noise = random.normal(0, 0.1, (2000, 5, 3)) * [1, 1, 3]
    seen_there = [tuned.optimum(np.exp(x[:3]), (x[:3] - math.log(3.5e-3)) ** 2 + n) for n in noise]
    found = [its for its in seen_there if not isinstance(its, str)]
    held = [its.interval[0] < 3.5e-3 < its.interval[1] for its in found]
    assert np.mean(held) > 0.9
    assert seen(7e-3, np.zeros((5, 1))).at == pytest.approx(7e-3)  # though the last value is best
    for beyond in (0.5e-3, 16e-3):
        assert seen(beyond, np.zeros((5, 1))) == "none between the arms"
    flat = [[0.1, 0.0, 0.1, 1], [-0.2, 0.0, 0.3, 1]]
    assert tuned.optimum(np.exp(x), flat) == "no curve that is sure"
    # Fieller's ends grow without bound where the curve is hardly sure, beyond any float64.
    shape, low, high = np.array([[1.0, -2.0, 1.0], [-1.0, 2.0, -1.0]]), 1e-3, 10.0
    for _ in range(60):
        noise = math.sqrt(low * high)
        found = tuned.optimum([1e-3, 2e-3, 4e-3], [1.0, 0.0, 1.0] + noise * shape)
        low, high = (low, noise) if isinstance(found, str) else (noise, high)
    assert 1e-3 < low < high < 10


def _verdicts(curvature, noise, studies, step=0.0, height=0.0, margin=1e-9, effect=0.0, **tuning):
    """Share of studies with a direction, of two arms with an effect at their own best rates.

    Args:
      curvature: cost of a rate that is off by a factor of 2.
      noise: deviation of a seed.
      studies: how many.
      step: factors of 2 above the optimum from which on seeds fall apart.
      height: what they lose on average a factor of 2 further; 0: they do not.
      margin: of the study.
      effect: of the arm.
      **tuning: of the study.
    """
    random, found = np.random.default_rng(1), 0
    options = {"key": RATE, "grid": tuple(1e-3 * 2.0**i for i in range(6)), "seeds": (7, 8)}
    options |= tuning
    for _ in range(studies):
        optimum = {arm: 2.5 + random.uniform(-0.5, 0.5) for arm in ("base", "arm")}

        def loss(arm, changes, seed, optimum=optimum):
            gap = math.log2(changes[RATE] / 1e-3) - optimum[arm]
            fall = height * max(gap - step, 0.0) * 2 * random.random() if height else 0.0
            better = effect if arm == "arm" else 0.0
            return curvature * gap**2 + random.normal(0, noise) + fall - better

        chosen, _ = tuned_by(loss, tuple(optimum), margin=margin, **options)
        base, arm = (
            {seed: Outcome(loss(name, its.chosen, seed)) for seed in range(5)}
            for name, its in chosen.items()
        )
        study = SimpleNamespace(arms={n: {"tuning": as_plain(its)} for n, its in chosen.items()})
        regrets = tuned.Regrets(*(regret_of(study, name) for name in ("base", "arm")))
        (contrast,) = statistics.compare(base, {"a": arm}, margin, False, regrets=regrets)
        found += contrast.verdict in ("better", "worse")
    return found / studies


@pytest.fixture
def cheap_configs(monkeypatch):
    """Options that are not read again for each of thousands of trials, and no count of seeds."""
    monkeypatch.setattr(statistics, "seeds_needed", lambda *_: None)
    flat = {"schedule.name": "constant", "training.steps": 1000}
    monkeypatch.setattr("transformer_jax.studies.running.tuning.flatten", lambda config: flat)
    monkeypatch.setattr(_Design, "config_of", lambda *_: None)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("curvature", "noise", "rungs"),
    [(0.03, 0.003, ()), (0.01, 0.01, ((0.25, 1), (1.0, 2))), (0.1, 0.03, ((0.25, 1), (1.0, 2)))],
)
def test_equal_arms_differ_by_their_grid_and_not_by_their_parabolas(
    cheap_configs, curvature, noise, rungs
):
    # A mean has 0.8 * 0.05 of the level; of 500 studies a standard error is 0.009.
    share = _verdicts(curvature, noise, 500, refine=RATE, rungs=rungs)
    assert share < 0.04 + 3 * 0.009
    halved = _verdicts(curvature, noise, 500, refine=RATE, rungs=rungs, halve=True)
    assert halved < 0.04 + 3 * 0.009


@pytest.mark.thorough
def test_halved_steps_find_what_a_cliff_hides(cheap_configs):
    options = {"step": 0.8, "height": 1.0, "margin": 0.01, "refine": RATE, "seeds": (7, 8, 9)}
    false = _verdicts(0.03, 0.003, 500, **options, halve=True)
    assert false < 0.04 + 3 * 0.009
    found = [_verdicts(0.03, 0.003, 200, **options, effect=0.05, halve=h) for h in (False, True)]
    assert found[0] < 0.6 < 0.9 < found[1]


def test_a_grid_makes_equal_arms_differ(cheap_configs):
    assert _verdicts(0.03, 0.003, 200) > 0.15


# ---------------------------------------------------------------- what the trials say


@pytest.mark.parametrize("larger", [True, False])
def test_the_expected_best_is_the_mean_over_all_sets_of_trials(larger):
    scores = [0.3, 0.9, math.nan, 0.5, 0.7]
    best = max if larger else min
    worst = 0.3 if larger else 0.9
    known = [worst if math.isnan(score) else score for score in scores]
    for k, (mean, spread) in enumerate(tuned.expected_best(scores, larger), 1):
        bests = [best(chosen) for chosen in itertools.combinations(known, k)]
        assert mean == pytest.approx(np.mean(bests))
        assert spread == pytest.approx(np.std(bests), abs=1e-9)
    assert tuned.expected_best([math.nan], larger) == []


def test_from_how_many_trials_a_direction_holds():
    fragile, robust = [1.0, 5.0, 6.0, 7.0], [2.0, 2.1, 2.2, 2.3]  # losses
    assert tuned.holds_from(fragile, robust, False, 1) == 3
    assert tuned.holds_from(fragile, robust, False, -1) is None
    assert tuned.holds_from(robust, [3.0, 3.0, 3.0, 3.0], False, 1) == 1


SURE = (0.004, 4)  # error of a mean, and its degrees of freedom


def test_what_a_mean_and_regrets_exceed_is_what_draws_exceed():
    random, count = np.random.default_rng(0), 1_000_000
    one, other = tuned.Regret(0.001, 2, 0.02), tuned.Regret(0.0005, 4)
    error = SURE[0] * random.standard_t(SURE[1], count)
    capped = np.minimum(one.mean * random.standard_t(2, count) ** 2, one.most)
    for regrets, drawn in (
        ((one,), error + capped),
        ((one, other), error + capped + other.mean * random.standard_t(4, count) ** 2),
    ):
        for level in (0.1, 0.01):
            way = tuned.reach(*SURE, regrets, level)
            assert way == pytest.approx(np.quantile(drawn, 1 - level), rel=0.02)
            assert tuned.tail(*SURE, regrets, way) == pytest.approx(level, rel=1e-6)
    assert tuned.reach(*SURE, (), 0.01) == pytest.approx(0.004 * stats.t.ppf(0.99, 4))
    for dust in (1e-33, 1e-17, 1e-12):  # no more than rounding
        assert tuned.reach(*SURE, (tuned.Regret(dust, 2),), 0.01) == pytest.approx(
            tuned.reach(*SURE, (), 0.01), rel=1e-6
        )
    large = tuned.Regret(10.0, 2)
    assert tuned.reach(1e-6, 4, (large,), 0.01) == pytest.approx(
        10 * stats.f.isf(0.01, 1, 2), rel=0.01
    )


def test_the_base_s_regret_is_on_one_side_and_the_arm_s_on_the_other():
    base = {s: Outcome(1.0 + 0.01 * s) for s in range(5)}
    arm = {s: Outcome(0.95 + 0.011 * s) for s in range(5)}
    of = lambda *sides: statistics.compare(
        base, {"a": arm}, 0.01, False, regrets=tuned.Regrets(*sides)
    )[0]
    large = (tuned.Regret(0.03, 4),)
    sure, below, above, both = of(), of(large), of((), large), of(large, large)
    assert sure.verdict == above.verdict == "better"
    assert below.verdict == both.verdict == "unresolved"
    assert (above.interval[0], below.interval[1]) == pytest.approx(sure.interval)
    assert both.interval == (below.interval[0], above.interval[1])
    assert above.interval[1] > sure.interval[1] + 0.03
    assert (above.p, above.mean, above.standard_error) == pytest.approx(
        (sure.p, sure.mean, sure.standard_error)
    )
    assert sure.p < 0.05 < below.p == both.p
    arm = {s: Outcome(1.0 + 0.011 * s) for s in range(5)}
    assert of().p_equivalence < of((), large).p_equivalence


def test_a_regret_of_a_parabola_ends_at_its_farther_neighbour():
    x = np.log([1e-3, 2e-3, 4e-3])
    noise = [[0.001, 0, -0.001], [-0.001, 0, 0.001]]
    fit = tuned.parabola(x, 0.1 * (x - np.log(2.4e-3)) ** 2 + noise)
    record = {
        "tuning": as_plain(
            Tuned({}, [], 3, refined={"between": [1e-3, 2e-3, 4e-3], **fit._asdict()})
        )
    }
    (regret,) = regret_of(SimpleNamespace(arms={"a": record}), "a")
    assert regret.freedom == 2
    assert regret.mean == pytest.approx(0.1 * fit.deviation**2, rel=1e-3)
    assert regret.most == pytest.approx(0.1 * math.log(2.4) ** 2, rel=1e-3)
    flat = tuned.parabola(x, [[0.1, 0.0, -0.1], [-0.1, 0.0, 0.1]])
    record["tuning"]["refined"] |= flat._asdict()
    (unknown,) = regret_of(SimpleNamespace(arms={"a": record}), "a")
    assert unknown == (flat.missed, 2, None)
    for none in ({"tuning": None}, {}):
        assert regret_of(SimpleNamespace(arms={"a": none}), "a") == ()


@pytest.mark.thorough
@pytest.mark.parametrize("freedom", [2, 4])
@pytest.mark.parametrize("ratio", [0.1, 1.0, 10.0])
def test_a_regret_of_one_arm_alone_gives_no_more_false_words(freedom, ratio):
    """The old procedure, Welch's with regrets as normal errors, said up to eight times as many."""
    random, studies, level = np.random.default_rng(0), 2000, 0.05
    false = 0
    for _ in range(studies):
        error = math.sqrt(random.chisquare(4) / 4)
        regret = tuned.Regret(ratio * random.chisquare(freedom) / freedom, freedom)
        mean = random.normal() + ratio * random.normal() ** 2
        false += tuned.tail(error, 4, (regret,), mean) < level  # beyond `reach`, its inverse
    assert false / studies < level + 3 * math.sqrt(level * (1 - level) / studies)


# ---------------------------------------------------------------- what is declared


@pytest.mark.parametrize(
    ("tuning", "told"),
    [
        ({"options": {RATE: (1e-3, 1e-2)}}, "3 or more"),
        ({"options": {RATE: (1e-3, 1e-2, 2e-2)}, "trials": 8}, "two ends"),
        ({"options": {KIND: ("gelu",)}}, "2 or more choices"),
        ({"options": {KIND: ("gelu", "rely")}}, "rely"),
        ({"options": {}}, "not empty"),
        ({"options": {RATE: (1e-3, 2e-3, 4e-3)}, "key": RATE}, "give either"),
        ({"key": RATE, "grid": (1e-3, 2e-3, 4e-3), "rungs": ((0.5, 1), (0.25, 2))}, "rungs="),
        ({"key": RATE, "grid": (1e-3, 2e-3, 4e-3), "rungs": ((0.5, 1),)}, "with all 2 seeds"),
        ({"key": RATE, "grid": (1e-3, 2e-3, 4e-3), "refine": DROPOUT}, "one of its options"),
        ({"key": RATE, "grid": (1e-3, 2e-3, 4e-3), "refine": RATE, "seeds": (7,)}, "2 or more seeds"),
        ({"key": RATE, "grid": (1e-3, 2e-3, 4e-3), "halve": True}, "halve=True: expected"),
        ({"key": RATE, "grid": (1e-3, 2e-3, 4e-3), "trials": -1}, "trials=-1"),
        ({"key": RATE, "grid": (1e-3, 2e-3, 4e-3), "rung": 1}, "'rung' is unknown"),
        ({"key": RATE, "grid": (1e-3, 2e-3, 4e-3), "seeds": (7, 7)}, "each once"),
        ({"key": RATE, "grid": (1e-3, 2e-3, 4e-3), "seeds": ("a", 7)}, "seeds=.'a', 7.: expected"),
        ({"key": RATE, "grid": (1e-3, 2e-3, 4e-3), "refine": ["a"]}, "names of options"),
        ({"key": None, "grid": (1e-3, 2e-3, 4e-3)}, "names of options"),
    ],
)  # fmt: skip
def test_a_wrong_tuning_is_refused_before_anything_runs(tmp_path, tuning, told):
    with pytest.raises(InvalidInput, match=told) as refused:
        load_design(study_file(tmp_path, tuning=tuning), {})
    assert str(refused.value).count("\n") < 8


def test_a_value_that_no_arm_can_be_trained_with_is_refused(tmp_path):
    tuning = {"options": {"training.accumulation": (1, 2, 3)}}
    with pytest.raises(InvalidInput, match=r"arm 'learned'.*accumulation=3"):
        load_design(study_file(tmp_path, tuning=tuning), {})


def test_one_grid_is_sealed_as_it_always_was(tmp_path):
    tuning = {"key": RATE, "grid": (1e-3, 3e-3, 9e-3), "seeds": (77,), "extensions": 1}
    short = load_design(study_file(tmp_path, tuning=tuning), {})
    assert short.sealed()["tuning"] == json.loads(json.dumps(tuning))
    whole = {"options": {RATE: (1e-3, 3e-3, 9e-3)}, "seeds": (77,), "extensions": 1}
    assert load_design(study_file(tmp_path, tuning=whole), {}).sealed() == short.sealed()
    more = {**whole, "seeds": (77, 78), "refine": RATE}
    assert load_design(study_file(tmp_path, tuning=more), {}).sealed()["tuning"]["refine"] == RATE


def test_older_studies_tell_what_they_tried():
    older = {
        "key": RATE, "values": [1e-3, 2e-3], "scores": [2.0, None], "chosen": 1e-3,
        "sensitivity": 0.5, "trials": 4, "refused": "",
    }  # fmt: skip
    found = tuned_of({"tuning": older})
    assert found.chosen == {RATE: 1e-3}
    assert found.runs == 4
    assert found.first_scores[0] == 2.0
    assert math.isnan(found.first_scores[1])
    assert tuned_of({}) is None


# ---------------------------------------------------------------- a whole study


@pytest.mark.commands
def test_a_study_is_tuned_by_halving_and_a_parabola(tmp_path):
    tuning = {
        "options": {RATE: (4e-3, 8e-3, 16e-3), KIND: ("gelu", "relu")},
        "seeds": (77, 78),
        "rungs": ((0.25, 1), (1.0, 2)),
        "refine": RATE,
    }
    path = study_file(tmp_path, tuning=tuning, looks=(3,), gate=None)
    study = run(load_design(path, {}), tmp_path / "s", range(3), progress=Silent())
    steps = study.base_config["training.steps"]
    for name, arm in study.arms.items():
        its = tuned_of(arm)
        assert its.chosen.keys() == {RATE, KIND}
        assert len(its.tried) >= 6
        assert {k: arm["changes"][k] for k in its.chosen} == its.chosen
        assert RunDirectory(study.cell(name, 0).path).config().training.steps == steps
        if its.refined:
            low, middle, high = its.refined["between"]
            assert low <= its.chosen[RATE] <= high
            assert its.refined["missed"] > 0
    found = study.verdicts()["arms"]["none"]
    assert study.verdicts()["tuned"] is True
    assert found["tuned"]["trials"] == len(its.tried)
    page = (study.path / "report.html").read_text()
    assert "Expected best" in page
    assert "Missed by" in page
    again = run(load_design(path, {}), tmp_path / "s", range(3), progress=Silent())
    assert again.arms == study.arms
    assert again.sealed["prediction"] == STUDY["prediction"]

"""A declared trend: one line over all arms, judged beside them."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from experiments import answers
from tests.test_studies import STUDY, study_file
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.asking.design import load_design
from transformer_jax.studies.asking.expected import how_it_came, read_expected
from transformer_jax.studies.asking.trend import read_trend, weights_of
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.statistics import FOR_MEANS, level_of_look
from transformer_jax.studies.inference.tuned import Regret
from transformer_jax.studies.judging.decision import family_of
from transformer_jax.studies.judging.trend import trend_of
from transformer_jax.studies.reporting import charts, tables
from transformer_jax.studies.reporting.report import write_report
from transformer_jax.studies.running.launch import run

HEADS = {"4": 4, "1": 1, "2": 2, "16": 16}
SEALED = {
    "metric": "test/loss",
    "larger_is_better": False,
    "margin": 0.02,
    "base": "4",
    "base_config": {},  # 4 heads are the default
    "arms": {"4": {}, **{n: {"model.num_heads": int(n)} for n in ("1", "2", "16")}},
    "tuning": {"options": {"optimizer.learning_rate": [1e-3, 2e-3]}},
    "trend": "model.num_heads",
}
LEVEL = 0.025


def scores(slope, seeds=5, noise=0.002):
    """Losses that fall by so much with each doubling of the heads."""
    drawn = np.random.default_rng(0).normal(0, noise, (len(HEADS), seeds))
    return {
        name: 2.0 - slope * math.log2(heads) + 0.01 * np.arange(seeds) + drawn[row]
        for row, (name, heads) in enumerate(HEADS.items())
    }


def outcomes_of(by_arm):
    return {n: {s: Outcome(float(v)) for s, v in enumerate(y)} for n, y in by_arm.items()}


def judged(
    by_arm, sealed=SEALED, refusals=None, regrets=None, learned=None, known=None, arms=HEADS
):
    refusals = {name: (refusals or {}).get(name, []) for name in HEADS}
    return trend_of(sealed, by_arm, refusals, LEVEL, regrets or {}, learned, known, arms)


def test_the_line_and_its_interval_are_scipys():
    by_arm = scores(0.02)
    found = judged(outcomes_of(by_arm))
    x = np.log([HEADS[name] for name in by_arm])
    gains = [
        -stats.linregress(x, column).slope * np.ptp(x)
        for column in np.stack(list(by_arm.values())).T
    ]
    np.testing.assert_allclose(found["differences"], gains, atol=1e-12)
    confidence = 1 - FOR_MEANS * LEVEL / 4  # three arms and the trend
    interval = stats.t.interval(confidence, 4, np.mean(gains), stats.sem(gains))
    np.testing.assert_allclose(found["interval"], interval)
    assert found["p_alone"] == pytest.approx(stats.ttest_1samp(gains, 0).pvalue)
    assert found["words"] == "better by more than 0.02"


@pytest.mark.parametrize(
    ("slope", "verdict"), [(0.02, "better"), (-0.02, "worse"), (0.0, "no different within the m")]
)
def test_what_is_said_of_it(slope, verdict):
    assert judged(outcomes_of(scores(slope)))["verdict"].startswith(verdict)


def test_it_is_one_more_contrast():
    without = {key: value for key, value in SEALED.items() if key != "trend"}
    assert family_of(SEALED, []) == family_of(without, []) + 1 == 4
    assert judged({}, sealed=without) is None


def test_an_arm_that_is_refused_or_diverged_leaves_no_trend():
    by_arm = outcomes_of(scores(0.02))
    assert judged(by_arm, refusals={"2": ["another tokenizer"]})["words"] == (
        "refused: 2: another tokenizer"
    )
    for name in ("16", "4"):  # an arm, the base
        diverged = by_arm | {name: {**by_arm[name], 3: Outcome(None, True)}}
        assert judged(diverged)["words"] == "no verdict: in 1 of 5 seeds an arm diverged"
    del by_arm["1"][0]  # a seed that an arm lacks does not count
    assert judged(by_arm)["seeds"] == [1, 2, 3, 4]


def test_arms_that_changed_after_the_seal_leave_no_trend():
    by_arm = outcomes_of(scores(0.02))
    told = "refused: arms changed after the first cell"
    assert judged(by_arm, arms=["1", "2"])["words"] == told
    without = {name: its for name, its in by_arm.items() if name != "16"}
    assert judged(without)["words"] == told
    assert judged(by_arm | {"32": {}})["verdict"] == "better", "a new arm is none of it"


ACCURACY = {**SEALED, "metric": "test/accuracy", "larger_is_better": True, "base": "16"}
KNOWN = {"scores": {"majority": {"test": {"accuracy": 0.1}}}}


@pytest.mark.parametrize(
    ("means", "words"),
    [
        ((0.5, 0.8, 1.0, 1.0), "better by more than 0.02"),  # the base is best, and at its end
        ((0.1, 0.11, 0.4, 0.6), "better by more than 0.02"),
        ((0.99, 1.0, 1.0, 1.0), "cannot tell: all arms are at one end of the metric"),
        ((0.1, 0.1, 0.11, 0.11), "cannot tell: all arms are at one end of the metric"),
    ],
)
def test_a_trend_is_seen_unless_all_arms_are_at_one_end(means, words):
    dust = np.random.default_rng(1).normal(0, 1e-4, (4, 5))
    by_arm = {n: means[k] - abs(dust[k]) for k, n in enumerate(("1", "2", "4", "16"))}
    assert judged(outcomes_of(by_arm), sealed=ACCURACY, known=KNOWN)["words"] == words


def test_equal_scores_have_no_trend():
    same = {name: np.full(5, 1 / 3) for name in HEADS}
    assert judged(outcomes_of(same))["words"] == "identical: the same score in all arms"


def test_what_tuning_may_miss_widens_it():
    by_arm = outcomes_of(scores(0.02))
    (low, high), large = judged(by_arm)["interval"], (Regret(0.01, 3.0),)
    of_first, of_last = (judged(by_arm, regrets={n: large})["interval"] for n in ("1", "16"))
    # The first value's score counts against what the line gains, the last one's for it.
    assert of_first[0] < low - 0.005
    assert of_first[1] == pytest.approx(high)
    assert of_last[1] > high + 0.005
    assert of_last[0] == pytest.approx(low)


def test_a_base_that_has_not_learned_has_no_trend():
    learned = {"passed": False}
    found = judged(outcomes_of(scores(0.02)), learned=learned, known={"scores": {}})
    assert found["words"] == "cannot tell: the base has not learned"


def test_the_weights_gain_what_a_line_gains():
    weights = weights_of("model.num_heads", SEALED)
    assert sum(weights.values()) == pytest.approx(0)
    line = {name: 3 + 0.5 * math.log2(heads) for name, heads in HEADS.items()}
    assert sum(weights[name] * line[name] for name in line) == pytest.approx(0.5 * 4)


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"target": 1.0}, "a study with a target counts the runs"),
        ({"tuning": {"key": "model.num_heads", "grid": (1, 2)}}, "are tuned or matched by it"),
        ({"match": {"by": "params", "field": "model.num_heads"}}, "are tuned or matched by it"),
    ],
)
def test_a_trend_needs_the_values_that_arms_were_given(more, told):
    arms = {"4": {}, "1": {"model.num_heads": 1}, "2": {"model.num_heads": 2}}
    with pytest.raises(InvalidInput, match=told):
        read_trend("x", "model.num_heads", {"model.num_heads": 4}, arms, "4", more)


ARMS = {str(n): {"model.num_heads": n} for n in (1, 2, 4)}


@pytest.mark.parametrize(
    ("arms", "trend", "told"),
    [
        (ARMS, "model.num_head", "no option; did you mean model.num_heads?"),
        (ARMS, "model.depth", "arm '2' does not set it"),
        ({k: ARMS[k] for k in ("1", "2")}, "model.num_heads", "3 or more numbers > 0"),
        (
            {n: {"model.position": p} for n, p in (("1", "none"), ("2", "rotary"), ("3", "alibi"))},
            "model.position",
            "3 or more numbers > 0 in the arms, got none, rotary, alibi",
        ),
    ],
)
def test_a_trend_that_cannot_be_is_refused(tmp_path, arms, trend, told):
    with pytest.raises(InvalidInput) as refusal:
        load_design(study_file(tmp_path, arms, base="1", trend=trend))
    refused_text = str(refusal.value)
    assert told in refused_text
    assert "get_study(): trend=" in refused_text


@pytest.mark.thorough
def test_a_study_seals_it_judges_it_and_shows_it(tmp_path):
    expected = {"2": (None, -9.0), "trend": (-9.0, 9.0)}
    design = load_design(
        study_file(tmp_path, ARMS, base="1", trend="model.num_heads", expected=expected)
    )
    done = run(design, tmp_path / "runs" / "question", range(3), progress=Silent())
    assert done.sealed["trend"] == "model.num_heads"
    verdicts = done.verdicts()
    losses = np.array([[done.cell(arm, seed).means()["loss"] for seed in range(3)] for arm in ARMS])
    gains = losses[0] - losses[2]  # of a line through three points, evenly apart
    assert verdicts["trend"]["mean"] == pytest.approx(gains.mean())
    assert verdicts["contrasts"] == 3
    assert verdicts["level"] == level_of_look(3, STUDY["looks"], [])
    (told,) = tables.trend_lines(verdicts)
    assert told.startswith("more model.num_heads: ")
    assert told in tables.notes_on(verdicts)
    report = write_report(done).read_text()
    assert "more model.num_heads: " in report
    # A base that has not learned tells nothing of a prediction; another one does.
    (first, _) = tables.expected_of(done.sealed, verdicts)
    assert first == "2: any to -9.0000, found –: not known"
    assert first in report
    arms = {name: {**its, "verdict": "unresolved"} for name, its in verdicts["arms"].items()}
    decided = {"arms": arms, "trend": {**verdicts["trend"], "verdict": "unresolved"}}
    for name in ("unstable", "no verdict"):  # seeds that are left say nothing of the arm
        none = {"arms": {arm: {**its, "verdict": name} for arm, its in arms.items()}}
        assert tables.expected_of(done.sealed, none)[0].endswith("not known")
    first, second = tables.expected_of(done.sealed, decided)
    assert re.fullmatch(r"2: any to -9\.0000, found \[.*\]: not as expected", first)
    assert re.fullmatch(r"trend: -9\.0000 to \+9\.0000, found \[.*\]: as expected", second)
    # The scores over the option, as a line in the report and as a figure for the page.
    (chart,) = charts.sweep_charts(done, verdicts).values()
    assert (chart["xLabel"], chart["logX"]) == ("model.num_heads", True)
    (line,) = chart["series"]
    assert line["x"] == [1, 2, 4]
    np.testing.assert_allclose(line["mean"], losses.mean(1))
    np.testing.assert_allclose([line["low"], line["high"]], [losses.min(1), losses.max(1)])
    best = ["1", "2", "4"][losses.mean(1).argmin()]
    (told,) = charts.best_of_sweeps(done, verdicts)
    assert told.startswith(f"model.num_heads: the best mean is that of {best}, ")
    assert told in report
    assert 'data-chart="sweep-0"' in report
    assert "model.num_heads" in (done.path / "sweep.svg").read_text()
    study = answers.CommittedStudy("question", done.record, verdicts, None)
    assert "more model.num_heads: " in answers.words_of(study)


@pytest.mark.parametrize(
    ("interval", "word"),
    [
        ((0.02, 0.03), "as expected"),
        ((0.01, 0.03), "open"),
        ((0.03, 0.06), "open"),
        ((0.0, 0.06), "open"),
        ((0.051, 0.06), "not as expected"),
        ((-0.1, 0.019), "not as expected"),
        ((None, 0.03), "open"),
        (None, "not known"),
    ],
)
def test_a_prediction_came_true_where_the_whole_interval_is_in_its_range(interval, word):
    assert how_it_came((0.02, 0.05), interval) == word


def test_ends_of_a_prediction_may_be_left_out():
    assert how_it_came((None, 0.0), (-5.0, -0.1)) == "as expected"
    assert how_it_came((0.0, None), (-5.0, -0.1)) == "not as expected"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"rotray": (0, 1)}, "'rotray': no arm beside the base; did you mean rotary?"),
        ({"trend": (0, 1)}, "'trend': no arm beside the base"),
        ({"rotary": 0.1}, "'rotary': 0.1: give the lowest and the highest"),
        ({"rotary": (0.2, 0.1)}, "give the lowest and the highest"),
        ({"rotary": ("a", 1)}, "give the lowest and the highest"),
        ({"rotary": (None, None)}, "give the lowest and the highest"),
        ({"rotary": (float("nan"), 1.0)}, "give the lowest and the highest"),
    ],
)
def test_a_prediction_that_says_nothing_is_refused(given, told):
    with pytest.raises(InvalidInput) as refusal:
        read_expected("x", given, ["rotary", "none"], has_trend=False, target=None)
    assert told in str(refusal.value)
    with pytest.raises(InvalidInput, match="a study with a target judges no mean"):
        read_expected("x", {"none": (0, 1)}, ["none"], has_trend=False, target=0.9)


def test_a_grid_of_two_options_has_a_line_for_each_group():
    arms = {
        f"{rate} {name}": {"optimizer.learning_rate": rate, "optimizer.name": name}
        for name in ("adamw", "lion")
        for rate in (4e-3, 1e-3, 2e-3)
    }
    base = {"optimizer.learning_rate": 1e-3, "optimizer.name": "adamw"}
    sealed = {"arms": arms, "larger_is_better": False}
    numbers = enumerate(arms)
    values = {n: {"mean": 2.0 - k, "by_seed": {"0": 1.5 - k, "1": 2.5 - k}} for k, n in numbers}
    value_of = lambda arm, key: arms[arm].get(key, base[key])
    study = SimpleNamespace(sealed=sealed, metric="loss", value_of=value_of)
    (chart,) = charts.sweep_charts(study, {"values": values}).values()
    assert [line["name"] for line in chart["series"]] == [
        "optimizer.name=adamw",
        "optimizer.name=lion",
    ]
    assert [line["x"] for line in chart["series"]] == [[1e-3, 2e-3, 4e-3]] * 2
    assert chart["series"][0]["mean"] == [1.0, 0.0, 2.0]
    assert chart["series"][1]["high"] == [-1.5, -2.5, -0.5]
    assert charts.best_of_sweeps(study, {"values": values}) == [
        "optimizer.learning_rate where optimizer.name=adamw: the best mean is that of 0.002 adamw, "
        "0.0000; by a parabola 0.00178 is the best value, 95 % [0.00178, 0.00178]",
        "optimizer.learning_rate where optimizer.name=lion: the best mean is that of 0.002 lion, "
        "-3.0000; by a parabola 0.00178 is the best value, 95 % [0.00178, 0.00178]",
    ]
    two_arms = charts.optimum_of(
        study, {"values": values}, "optimizer.learning_rate", list(arms)[:2]
    )
    diverged = {name: {**its, "diverged": [0]} for name, its in values.items()}
    none = charts.optimum_of(study, {"values": diverged}, "optimizer.learning_rate", list(arms))
    assert two_arms == none == "too few arms that did not diverge, or seeds"
    two = {name: values[name] for name in list(arms)[:2]}
    assert charts.sweep_charts(study, {"values": two}) == {}

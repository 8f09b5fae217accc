"""The same question on several data sets: against published numbers, and other ways to compute."""

import contextlib
import dataclasses
import io
import json
import math
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from experiments import ablate, results
from experiments.command import shorter_warmup
from tests.conftest import TINY, attempt, refused
from transformer_jax.data.sources import files
from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import ConfigFile
from transformer_jax.runs.progress import Progress, Silent
from transformer_jax.studies.asking.suite import EMBEDDED, begin_suite, suite_of
from transformer_jax.studies.inference import many_tasks
from transformer_jax.studies.inference.many_tasks import random_effects
from transformer_jax.studies.judging.suite import judge_suite
from transformer_jax.studies.reporting.suite import suite_text
from transformer_jax.studies.running import ladder as ladder_room
from transformer_jax.studies.running import suite as suite_room
from transformer_jax.studies.running import together as together_room
from transformer_jax.studies.running.suite import run_suite
from transformer_jax.studies.running.workers import CellsLost

# Thirteen trials of the BCG vaccine (Colditz et al. 1994): ill and well, vaccinated and not.
_BCG = (
    *((4, 119, 11, 128), (6, 300, 29, 274), (3, 228, 11, 209), (62, 13536, 248, 12619)),
    *((33, 5036, 47, 5761), (180, 1361, 372, 1079), (8, 2537, 10, 619), (505, 87886, 499, 87892)),
    *((29, 7470, 45, 7232), (17, 1699, 65, 1600), (186, 50448, 141, 27197), (5, 2493, 3, 2338)),
    (27, 16886, 29, 17825),
)


def bcg():
    """Log risk ratios and their standard errors."""
    a, b, c, d = np.array(_BCG, float).T
    y = np.log(a / (a + b)) - np.log(c / (c + d))
    return y, np.sqrt(1 / a - 1 / (a + b) + 1 / c - 1 / (c + d))


def test_published_trials_are_pooled_as_published():
    """The figures of R's metafor (Viechtbauer 2010) for these trials, REML with Knapp-Hartung."""
    found = random_effects(*bcg())
    assert found.deviation**2 == pytest.approx(0.3132, abs=5e-5)
    assert found.mean == pytest.approx(-0.7145, abs=5e-5)
    assert found.error == pytest.approx(0.1808, abs=5e-5)
    half = stats.t.ppf(0.975, 12) * found.error
    bounds = (found.mean - half, found.mean + half)
    assert bounds == pytest.approx((-1.1084, -0.3206), abs=5e-5)
    y, _ = bcg()  # ours is no shorter than that of equal weights
    equal = stats.ttest_1samp(y, 0).confidence_interval()
    assert np.ptp(found.interval) == pytest.approx(np.ptp(equal))


def test_the_variance_between_data_sets_is_of_largest_restricted_likelihood(rng):
    """The density of what is left when the mean is projected out, by scipy, over a grid."""
    y, v = rng.normal(0.2, 0.3, 6), rng.uniform(0.01, 0.2, 6)
    contrasts = np.linalg.svd(np.ones((1, 6)))[2][1:]
    grid = np.linspace(0, 0.5, 2001)
    likelihood = [
        stats.multivariate_normal(np.zeros(5), contrasts @ np.diag(v + t) @ contrasts.T).logpdf(
            contrasts @ y
        )
        for t in grid
    ]
    best = grid[np.argmax(likelihood)]
    assert random_effects(y, np.sqrt(v)).deviation ** 2 == pytest.approx(best, abs=3e-4)


def test_shrunken_effects_are_those_of_a_mixed_model():
    """Henderson's equations: y = mu + u + e, solved for mu and all u together."""
    y, error = bcg()
    found = random_effects(y, error)
    tau2, v = found.deviation**2, error**2
    left = np.block([[np.sum(1 / v), 1 / v], [(1 / v)[:, None], np.diag(1 / v + 1 / tau2)]])
    mean, *deviations = np.linalg.solve(left, [np.sum(y / v), *(y / v)])
    assert found.mean == pytest.approx(mean)
    assert found.shrunken == pytest.approx(mean + np.array(deviations))
    widths = np.ptp(found.shrunken_intervals, axis=1)
    assert (widths < 2 * stats.t.ppf(0.975, 12) * error).all()


def test_equal_effects_are_pooled_as_one():
    found = random_effects([0.1, 0.1, 0.1, 0.1], [0.02, 0.02, 0.02, 0.02])
    assert (found.deviation, found.p_same) == (0.0, 1.0)
    assert found.shrunken == pytest.approx((0.1,) * 4)
    assert found.error == pytest.approx(0.01)  # of four with .02 each: not 0, though they agree
    assert np.ptp(found.interval) == pytest.approx(0.02 * stats.t.ppf(0.975, 3))
    with pytest.raises(ValueError, match="3 or more"):
        random_effects([0.1, 0.2], [0.1, 0.1])


@pytest.mark.parametrize(("tasks", "seeds"), [(3, 3), (5, 5), (8, 3)])
@pytest.mark.parametrize("between", [0.0, 0.5, 2.0])
def test_intervals_over_data_sets_hold_the_mean(rng, tasks, seeds, between):
    """Noise that differs by a factor of 4 between data sets; without the floors .92 to .93."""
    covered, draws = 0, 300
    for _ in range(draws):
        deviations = np.exp(rng.uniform(-0.7, 0.7, tasks))
        effects = rng.normal(0, between / math.sqrt(seeds), tasks)
        d = effects[:, None] + deviations[:, None] * rng.normal(size=(tasks, seeds))
        found = random_effects(d.mean(1), d.std(1, ddof=1) / math.sqrt(seeds))
        covered += found.interval[0] <= 0 <= found.interval[1]
    assert covered >= 0.92 * draws


def test_aggregates_are_what_their_names_say(rng):
    base, arm = rng.normal(size=(5, 6)), rng.normal(0.4, 1, (5, 6))
    arm[0, 0] = base[0, 0]  # a tie
    found = many_tasks.aggregates(arm, base)
    middle = np.sort(arm.ravel())[7:23]  # 30 scores less a quarter (7) at each end
    assert found.arm == pytest.approx(middle.mean())
    counts = [stats.mannwhitneyu(a, b).statistic / 36 for a, b in zip(arm, base, strict=True)]
    assert found.improvement == pytest.approx(np.mean(counts))
    assert found.difference == pytest.approx(found.arm - found.base)
    assert found.interval[0] < found.difference < found.interval[1]
    assert found.improvement_interval[0] < found.improvement < found.improvement_interval[1]
    profile = many_tasks.performance_profile(arm, np.array([-9.0, 0.0, 9.0]))
    assert profile == pytest.approx([1, (arm > 0).mean(), 0])
    # Arm and base are drawn together: where seeds go together, the difference is surer.
    shared = base + 0.4 + 0.01 * rng.normal(size=base.shape)
    assert np.ptp(many_tasks.aggregates(shared, base).interval) < 0.2 * np.ptp(found.interval)


# ---------------------------------------------------------------- verdicts of several studies


def study(effect, *, metric="loss", passed=True, verdict="better", seeds=5, gate=True, diverged=0):
    """A study whose arm is better by so much of the way from a guess to the simple method."""
    larger = metric == "accuracy"
    guess, simple = (0.1, 0.9) if larger else (3.0, 1.0)
    noise = np.resize([-0.02, 0.01, 0.03, -0.01, -0.01], seeds)
    d = abs(simple - guess) * (effect + noise)
    base = simple + (0.05 if larger else -0.2) + 0.001 * np.arange(seeds)
    arm = base + (d if larger else -d)
    scores = {
        "majority" if larger else "1-gram": {"test": {metric: guess}},
        "nearest neighbour" if larger else "4-gram": {"test": {metric: simple}},
    }
    known = {"scores": scores, "gate": {"method": list(scores)[1], "metric": metric}}
    told = {
        "verdict": verdict if passed else "cannot tell",
        "words": "better" if passed else "cannot tell: the base has not learned",
        "mean": d.mean(), "standard_error": d.std(ddof=1) / math.sqrt(seeds),
        "interval": [d.mean() - 0.1, d.mean() + 0.1], "differences": list(d),
        "seeds": list(range(seeds)), "level": 0.025, "diverged": [[diverged, seeds], [0, seeds]],
    }  # fmt: skip
    values = {
        name: {"mean": y.mean(), "by_seed": {str(s): float(v) for s, v in enumerate(y)}}
        for name, y in (("base", base), ("arm", arm))
    }
    verdicts = {
        "question": "What does it give?", "base": "base", "metric": f"test/{metric}",
        "margin": 0.02, "seeds": list(range(seeds)), "arms": {"arm": told}, "values": values,
    }  # fmt: skip
    return SimpleNamespace(
        metric=metric,
        sealed={"larger_is_better": larger},
        record={"baselines": known if gate else None, "config_path": "configs/x.py"},
        verdicts=lambda: verdicts,
    )


def judged(**studies):
    found = judge_suite(studies)
    return found["arms"]["arm"], found


def test_what_tuning_may_have_missed_takes_the_word_of_a_suite_away():
    tuned = study(0.12)
    tuned.verdicts()["arms"]["arm"]["regrets"] = {"base": [], "arm": [[0.1, 4.0, None]]}
    arm, _ = judged(text=study(0.1), letters=tuned, images=study(0.11), more=study(0.1))
    assert arm["word"].startswith("no verdict: letters: what a parabola missed")


def test_data_sets_are_pooled_in_one_unit():
    three = {"text": study(0.1), "letters": study(0.12), "images": study(0.11, metric="accuracy")}
    arm, found = judged(**three)
    assert arm["word"] == "better by more than 0.015"  # .02 of 2, 2 and .8, on average .015
    assert arm["mean"] == pytest.approx(0.11, abs=0.002)
    assert [row["effect"] for row in arm["data"].values()] == pytest.approx([0.1, 0.12, 0.11])
    assert found["data"]["text"]["score"] == pytest.approx(1.099)
    assert found["data"]["images"]["unit"] == {
        "guess": 0.1, "simple": 0.9, "method": "nearest neighbour"
    }  # fmt: skip
    assert "aggregates" not in arm  # of 15 cells
    assert suite_text(found).startswith("# What does it give?")


def test_aggregates_come_with_twenty_cells():
    arm, found = judged(**{f"d{n}": study(0.1 + 0.01 * n) for n in range(4)})
    assert arm["cells"] == 20
    assert arm["aggregates"]["difference"] == pytest.approx(0.115, abs=0.01)
    assert arm["profiles"]["shares"]["arm"][0] <= 1
    assert "interquartile mean" in suite_text(found)


def test_a_data_set_whose_base_has_not_learned_is_left_out():
    four = {"a": study(0.1), "b": study(0.1), "c": study(0.1), "d": study(-9.0, passed=False)}
    arm, _ = judged(**four)
    assert arm["left_out"] == {"d": "cannot tell: the base has not learned"}
    assert arm["mean"] == pytest.approx(0.1)
    del four["c"]
    arm, found = judged(**four)
    assert arm["word"] == "no verdict: 2 data sets can tell, expected 3 or more"
    assert "cannot tell: the base has not learned" in suite_text(found)


def test_a_data_set_that_suits_the_arm_badly_is_not_left_out():
    four = {"a": study(0.1), "b": study(0.1), "c": study(0.1), "d": study(0.1, diverged=1)}
    assert judged(**four)[0]["word"] == "no verdict: some runs on d diverged"
    four["d"] = study(0.1, verdict="refused")
    assert judged(**four)[0]["word"].startswith("no verdict: d: ")


def test_an_arm_that_the_question_is_not_about_gets_no_word():
    arm, found = judged(**{name: study(0.1, verdict="not primary") for name in "abc"})
    assert arm["word"] == "not primary: no word"
    assert "mean" not in arm
    assert "not primary" in suite_text(found)


def test_a_data_set_without_a_simple_method_has_no_unit():
    four = {"a": study(0.1), "b": study(0.1), "c": study(0.1), "d": study(0.1, gate=False)}
    arm, found = judged(**four)
    assert arm["left_out"] == {"d": "no simple method is known there"}
    assert found["data"]["d"]["no_unit"] == "no simple method is known there"


# ---------------------------------------------------------------- asking


def config_file(folder, name, change):
    path = folder / f"{name}.py"
    path.write_text(
        "from configs import tiny\n\n\ndef get_config():\n    config = tiny.get_config()\n"
        f"    {change}\n    return config\n"
    )
    return str(path)


def test_arms_are_compared_with_the_same_value_everywhere(tmp_path):
    two = config_file(tmp_path, "two", "config.model.num_heads = 2")
    four = config_file(tmp_path, "four", "config.model.num_heads = 4")
    designs = suite_of(two, ConfigFile(four), {}, ["model.num_heads=1,2,4"])
    assert {name: design.base for name, design in designs.items()} == {
        "four": "num_heads=1", "two": "num_heads=1"
    }  # fmt: skip
    assert [list(design.arms) for design in designs.values()] == [
        ["num_heads=1", "num_heads=2", "num_heads=4"]
    ] * 2
    assert designs["four"].question == designs["two"].question
    same = suite_of(two, ConfigFile(four), {}, ["model.num_heads=1"])
    assert {design.base for design in same.values()} == {"base"}
    told = "one --arm compares all of its values with the first"
    with pytest.raises(InvalidInput, match=told):
        suite_of(two, ConfigFile(four), {}, ["model.num_heads=1,2", "model.norm=rms_norm"])
    with pytest.raises(InvalidInput, match=r"on .*two.py: --arm=.*: the config has it already"):
        suite_of(two, ConfigFile(four), {}, ["model.num_heads=2"])


def test_other_data_are_judged_by_their_own_metric(tmp_path):
    question = tmp_path / "question.py"
    question.write_text(
        "from configs import tiny\n\n\ndef get_config():\n    return tiny.get_config()\n\n\n"
        "def get_arms():\n    return {'a': {}, 'b': {'model.norm': 'rms_norm'}}\n\n\n"
        "def get_study():\n    return {'question': 'q', 'prediction': 'p', 'metric': 'loss',\n"
        "        'margin': 0.03, 'margin_reason': 'r', 'looks': (5,),\n"
        "        'gate': {'by': '2-gram', 'reason': 'r'}}\n"
    )
    others = f"configs/digits.py,{config_file(tmp_path, 'text', 'config.seed = 1')}"
    designs = suite_of(others, ConfigFile(str(question)), {"training.steps": "150"})
    judged_by = {name: (its.metric, its.margin, its.gate) for name, its in designs.items()}
    assert judged_by == {
        "question": ("loss", 0.03, ("2-gram", "r")),
        "digits": ("accuracy", 0.01, None),
        "text": ("loss", 0.03, None),
    }
    assert {its.config.training.steps for its in designs.values()} == {150}
    assert not any(its.exploratory for its in designs.values())


def test_each_base_of_a_suite_has_a_warm_up_of_its_own_share(tmp_path):
    change = "config.training.steps, config.schedule.warmup_cosine.warmup_steps = 1000, 100"
    long, stated = config_file(tmp_path, "long", change), {"training.steps": "20"}
    asked = (long, ConfigFile(TINY), stated, ["model.num_heads=1"], ())
    with pytest.raises(InvalidInput, match="warmup_steps=100: expected less than"):
        suite_of(*asked)
    designs = suite_of(*asked, lambda file: shorter_warmup(file, stated))
    own = {name: its.config.schedule.warmup_cosine.warmup_steps for name, its in designs.items()}
    assert own == {"tiny": 10, "long": 2}


def test_a_suite_without_files_is_of_what_comes_with_the_package():
    read = ablate._parser().read
    alone = read(["--config=digits", "--workdir=x", "--suite", "--seeds=3"])
    designs = suite_of(ablate._files_of(alone), alone.file, {}, ["model.norm=layer_norm,rms_norm"])
    assert list(designs) == ["digits", *(name for name in EMBEDDED if name != "digits")]
    there = {name for names in files.EMBEDDED.values() for name in names}
    assert {design.config.data.source for design in designs.values()} <= there
    tiny = read(["--config=tiny", "--workdir=x", "--suite"])  # the text of shakespeare.py
    assert ablate._files_of(tiny) == ",".join(f"configs/{name}.py" for name in EMBEDDED[1:])
    named = read(["--config=digits", "--workdir=x", "--suite=tiny,masked_lm"])
    assert ablate._files_of(named) == "configs/tiny.py,configs/masked_lm.py"


def test_suites_that_cannot_be_are_refused(tmp_path):
    arm = ("ablate", f"--config={TINY}", "--arm=model.num_heads=1", f"--workdir={tmp_path}")
    refused(attempt(*arm, "--suite=configs/digts.py"), "--suite=configs/digts.py: no such file")
    refused(attempt(*arm, f"--suite={TINY}"), "'tiny' is there twice")
    for nothing in ("--suite=,", "--suite="):
        refused(attempt(*arm, nothing), "expected FILE,FILE")
    for suite in ("--suite=configs/digits.py", "--suite"):
        refused(attempt(*arm, suite, "--until=decided"), "--suite: not with")
    refused(attempt(*arm, "--suite=configs/digits.py", "--ladder=model.width=8,16,32"), "--ladder")
    target = ("ablate", "--config=configs/ablations/recall_solved.py", f"--workdir={tmp_path}")
    refused(attempt(*target, "--suite=configs/digits.py"), "has a target")
    # All data is looked for before anything runs.
    refused(attempt(*arm, "--suite=configs/series.py"), "my_series.npz")
    assert not (tmp_path / "tiny").exists()


def test_data_sets_are_not_chosen_afterwards(tmp_path):
    text = config_file(tmp_path, "text", "config.seed = 1")
    designs = suite_of(text, ConfigFile(TINY), {}, ["model.num_heads=1"])
    begin_suite(tmp_path / "s", designs)
    begin_suite(tmp_path / "s", designs)
    elsewhere = {n: dataclasses.replace(d, path=f"./{d.path}") for n, d in designs.items()}
    begin_suite(tmp_path / "s", elsewhere)  # each study's seal says whether its question is another
    with pytest.raises(InvalidInput, match="its suite is of num_heads=1 and tiny, text"):
        begin_suite(tmp_path / "s", {"tiny": designs["tiny"]})
    others = suite_of(text, ConfigFile(TINY), {}, ["model.norm=rms_norm"])
    with pytest.raises(InvalidInput, match="its suite is of num_heads=1"):
        begin_suite(tmp_path / "s", others)
    (tmp_path / "s" / "suite.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"suite\.json: expected JSON"):
        begin_suite(tmp_path / "s", designs)


# ---------------------------------------------------------------- real studies


def series(folder, name, seed):
    """Vectors whose label is partly a sum of them, and partly of how large some are."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(1200, 3, 4)).astype(np.float32)
    hidden = x.sum((1, 2)) / 3 + 2 * (np.abs(x[:, :, 0]).sum(1) - 2.4)
    labels = (hidden > 0).astype(np.int64)
    np.savez(folder / f"{name}.npz", vectors=x, labels=labels)
    path = folder / f"{name}.py"
    path.write_text(
        "from configs import series\n\n\ndef get_config():\n    config = series.get_config()\n"
        f"    config.data.source = {str(folder / name)!r} + '.npz'\n"
        "    config.model.width = 16\n    config.model.depth = 1\n    config.model.mlp_dim = 32\n"
        "    config.model.num_heads = 2\n    config.training.steps = 150\n"
        "    config.schedule.warmup_cosine.warmup_steps = 10\n"
        "    config.optimizer.learning_rate = 1e-2\n    config.evaluation.every = 150\n"
        "    return config\n"
    )
    return str(path)


def test_studies_that_go_on_together_stay_in_their_root(tmp_path, monkeypatch):
    roots = []

    @contextlib.contextmanager
    def planned(*_, root, **__):
        roots.append(root)
        yield SimpleNamespace(estimate=None)

    monkeypatch.setattr(together_room, "planned", planned)
    monkeypatch.setattr(together_room, "ArmBuilder", lambda *_: SimpleNamespace(arms=dict))
    monkeypatch.setattr(together_room, "seconds_to_come", lambda _: {})
    monkeypatch.setattr(together_room, "solved_before", lambda *_: {})
    records = {"new": {}, "begun": {"root": "/shared"}}
    monkeypatch.setattr(
        together_room, "Study", lambda path: SimpleNamespace(record=records[path.name])
    )
    design = SimpleNamespace(path="x.py", base="base")
    studies = {name: (design, tmp_path / name) for name in records}
    for root in (None, "/other"):
        with together_room.planned_together(studies, tmp_path, range(2), Silent(), root=root):
            pass
    assert roots == [tmp_path.parent, None, "/other", "/other"]


@pytest.mark.parametrize("kind", ["suite", "ladder"])
def test_a_cell_that_failed_ends_neither_a_suite_nor_a_ladder(kind, tmp_path, monkeypatch):
    """The other studies run, and what can be said is written, before it is told."""
    ran, written = [], []

    class Launch:
        def __init__(self, name):
            self.name = name

        def run(self, retry, adopt):
            ran.append(self.name)
            if len(ran) == 1:
                raise CellsLost("1 cells failed, the first 'a' with seed 0: fire\n--retry")

    room = suite_room if kind == "suite" else ladder_room
    names = ("d0", "d1") if kind == "suite" else ("model.width=16", "model.width=32")

    @contextlib.contextmanager
    def planned(*_, **__):
        yield {name: Launch(name) for name in names}

    sealed = []
    monkeypatch.setattr(
        ladder_room, "_seal_forecast", lambda *_: sealed.append(len(ran)), raising=True
    )
    monkeypatch.setattr(together_room, "planned_together", planned)
    monkeypatch.setattr(room, f"begin_{kind}", lambda *_, **__: None)
    monkeypatch.setattr(room, f"write_{kind}", lambda *given: written.append(given) or {"a": 1})
    rungs = SimpleNamespace(key="model.width", rungs={16: None, 32: None})
    what = dict.fromkeys(names) if kind == "suite" else rungs
    with pytest.raises(CellsLost, match=rf"^{names[0]}: 1 cells failed, the first 'a'.*fire\n"):
        getattr(room, f"run_{kind}")(what, tmp_path / "s", range(1), progress=Silent())
    assert ran == list(names)
    assert len(written) == 1
    assert sealed == ([] if kind == "suite" else [1]), "after the smaller rung, whatever it lost"


def test_a_suite_that_is_not_done_takes_no_place_among_results(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
    (tmp_path / "s").mkdir()
    begun = {"configs": {}, "arms": {"norm=none": None}}
    (tmp_path / "s" / "suite.json").write_text(json.dumps(begun))
    with pytest.raises(InvalidInput, match="not all of its studies are judged"):
        results.add(tmp_path / "s")
    assert not (tmp_path / "results").exists()


@pytest.mark.commands
def test_a_suite_of_real_studies(tmp_path):
    first, *others = (series(tmp_path, f"d{n}", n) for n in range(4))
    asked = (",".join(others), ConfigFile(first), {}, ["model.feed_forward=none"])
    output = io.StringIO()
    found = run_suite(suite_of(*asked), tmp_path / "s", range(5), progress=Progress(output))
    planned, ran = output.getvalue().split("\ntotal  4 studies, in all about ")
    assert planned.count("\ncells ") == 4, "all are planned before the first one runs"
    assert "\nstudy " not in planned
    assert ran.count("\nstudy ") == 4
    arm = found["arms"]["feed_forward=none"]
    assert len(arm["data"]) == 4
    for name, row in arm["data"].items():
        told = json.loads((tmp_path / "s" / name / "verdicts.json").read_text())
        assert row["mean"] == told["arms"]["feed_forward=none"]["mean"]
    assert not arm["left_out"], "every base has to be better than a linear model"
    assert arm["mean"] < 0
    assert arm["cells"] == 20
    assert json.loads((tmp_path / "s" / "suite.json").read_text())["arms"] == found["arms"]
    assert "feed_forward=none" in (tmp_path / "s" / "suite.html").read_text()
    again = run_suite(suite_of(*asked), tmp_path / "s", range(5), progress=Silent())
    assert again == found


# ---------------------------------------------------------------- code that nobody here wrote


@pytest.mark.oracle
def test_intervals_are_those_of_statsmodels(rng):
    """Weighted least squares with an estimated scale is Hartung's and Knapp's variance."""
    import statsmodels.api as sm
    from statsmodels.stats.meta_analysis import combine_effects

    for _ in range(5):
        y, error = rng.normal(0.1, 0.5, 7), rng.uniform(0.05, 0.2, 7)
        found = random_effects(y, error)
        weights = 1 / (error**2 + found.deviation**2)
        fit = sm.WLS(y, np.ones(7), weights=weights).fit()
        assert found.mean == pytest.approx(fit.params[0])
        floored = fit.bse[0] / math.sqrt(min(fit.scale, 1))  # known weights where it is below 1
        assert found.error == pytest.approx(floored)
        assert found.p_same == pytest.approx(combine_effects(y, error**2).test_homogeneity().pvalue)


_RLIABLE = """
import json, sys
import numpy as np
from rliable import library, metrics

given = json.loads(sys.stdin.read())
arm, base, at = (np.array(given[key]) for key in ("arm", "base", "at"))  # [seeds, tasks]
mean = lambda scores: np.array([metrics.aggregate_iqm(scores)])
_, bounds = library.get_interval_estimates({"arm": arm}, mean, reps=4000)
profile, _ = library.create_performance_profile({"arm": arm}, at, reps=10)
print(json.dumps({
    "mean": float(mean(arm)[0]),
    "interval": np.ravel(bounds["arm"]).tolist(),
    "improvement": float(metrics.probability_of_improvement(arm, base)),
    "profile": np.ravel(profile["arm"]).tolist(),
}))
"""


@pytest.mark.rliable
def test_aggregates_are_those_of_rliable(rng):
    python = os.environ.get("RLIABLE_PYTHON", "")
    assert Path(python).exists(), "make rliable has an environment with rliable"
    base, arm = rng.normal(size=(6, 8)), rng.normal(0.3, 1, (6, 8))
    at = np.linspace(-2, 2, 9)
    given = {"arm": arm.T.tolist(), "base": base.T.tolist(), "at": at.tolist()}
    ran = subprocess.run(
        [python, "-c", _RLIABLE], input=json.dumps(given), capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout.splitlines()[-1])
    found = many_tasks.aggregates(arm, base)
    assert found.arm == pytest.approx(told["mean"])
    assert found.improvement == pytest.approx(told["improvement"])
    assert many_tasks.performance_profile(arm, at) == pytest.approx(told["profile"])
    # The interval of one mean, by the same stratified bootstrap with other draws.
    zero = many_tasks.aggregates(arm, np.zeros_like(arm))
    assert zero.interval == pytest.approx(told["interval"], abs=0.05)

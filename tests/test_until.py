"""Looks until arms are decided: who stops, what it costs, and that no word is false more often."""

import json
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from tests.conftest import TINY, attempt, command, refused, tiny_config
from transformer_jax.errors import InvalidInput
from transformer_jax.studies.asking.study import Study, load_study
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.sequential import FUTILE, chance_of_a_word, expected_seeds
from transformer_jax.studies.judging.decision import level_of_contrast
from transformer_jax.studies.judging.judge import evidence_of
from transformer_jax.studies.running import until
from transformer_jax.studies.running.launch import Launch
from transformer_jax.studies.running.until import Until, looks_left, reasons_to_stop, until_decided

SEALED = {
    "arms": {"base": {}, "good": {}, "null": {}},
    "base": "base",
    "margin": 0.01,
    "looks": [4, 8, 16],
    "tuning": None,
}
FILE = """
from configs import tiny

def get_config():
    config = tiny.get_config()
    config.model.depth = 1
    config.training.steps = 60
    config.training.batch_size = 16
    config.optimizer.learning_rate = 0.01
    config.evaluation.every = 60
    config.schedule.warmup_cosine.warmup_steps = 5
    return config

def get_arms():
    return {"base": {}, "slow": {"optimizer.learning_rate": 1e-6}, "relu": {"model.activation": "relu"}}

def get_study():
    return {
        "question": "Does a rate of nothing teach?", "prediction": "no", "metric": "loss",
        "margin": 1e-5, "margin_reason": "small", "looks": (3, 4),
        "gate": {"by": "1-gram", "reason": "a minute of training"},
    }
"""  # fmt: skip


# ---------------------------------------------------------------- what is expected


def test_the_chance_of_a_word_is_that_of_seeds_to_come():
    random, count, final, margin, level = np.random.default_rng(0), 4, 10, 1.2, 0.02
    for mean, deviation in ((0.0, 1.0), (1.0, 1.0), (2.0, 1.5), (0.1, 0.8)):
        # A flat prior: the true variance, then the mean, are drawn given what was seen.
        draws = 40_000
        variance = deviation**2 * (count - 1) / random.chisquare(count - 1, draws)
        truth = random.normal(mean, np.sqrt(variance / count))
        rest = random.normal(truth, np.sqrt(variance / (final - count)))
        of_all = (count * mean + (final - count) * rest) / final
        half = stats.t.ppf(1 - level / 2, final - 1) * deviation / math.sqrt(final)
        seen = (np.abs(of_all) > half) | (np.abs(of_all) + half < margin)
        found = chance_of_a_word(mean, deviation / 2, count, final, margin, level)
        assert found == pytest.approx(seen.mean(), abs=0.01)


def test_looks_spend_no_more_than_their_levels():
    """Without an effect and a margin, a word is a false one; dropping can only lose some."""
    level, looks = 0.05, (4, 8, 16)
    found = expected_seeds(0.0, looks, 0.0, level, repeats=4000)
    assert found.decided < len(looks) * level
    assert found.decided > level
    assert found.seeds < 13


def test_a_larger_effect_takes_fewer_seeds():
    none, some, large = (
        expected_seeds(effect, (4, 8, 16), 0.0, 0.01) for effect in (0.0, 1.5, 5.0)
    )
    assert large.seeds < some.seeds
    assert none.decided < 0.05 < 0.7 < some.decided <= large.decided


def test_the_level_of_a_look_is_that_of_the_verdict():
    assert level_of_contrast(SEALED, [4]) == pytest.approx(0.8 * 0.05 / 4 / 2)
    assert level_of_contrast(SEALED, [4, 8]) == level_of_contrast(SEALED, [4])
    assert level_of_contrast(SEALED, [4, 5]) == pytest.approx(level_of_contrast(SEALED, [4]) / 2)


# ---------------------------------------------------------------- the loop


class _Study(SimpleNamespace):
    """A study whose verdicts are given: look -> arm -> (verdict, mean, standard error)."""

    sealed, base, arms = SEALED, "base", SEALED["arms"]
    stopped, seeds = Study.stopped, Study.seeds

    def verdicts(self):
        arms = self.told[len(self.seeds)]
        return {
            "arms": {
                name: {
                    "verdict": verdict, "words": verdict, "mean": mean, "standard_error": error,
                    "seeds": self.stopped.get(name, {"seeds": self.seeds})["seeds"],
                    "diverged": [[0, 4], [0, 4]],
                }
                for name, (verdict, mean, error) in arms.items()
            }
        }  # fmt: skip

    def write(self):
        self.written = json.dumps(self.record)

    def cell(self, arm, seed):
        state = "done" if seed in self.record["seeds"] else "missing"
        return SimpleNamespace(arm=arm, state=lambda: state)


class _Launch:
    def __init__(self, told, seconds=1.0):
        self.study = _Study(told=told, record={"seeds": []})
        self.design = SimpleNamespace(arms=SEALED["arms"], looks=(4, 8, 16), budgets=())
        self.design.config_of = lambda name: tiny_config()
        self.estimate = SimpleNamespace(seconds_of=lambda name: seconds)
        self.lines, self.taken, self.started, self.now, self.takes = [], [], 0.0, 0.0, seconds
        self.progress = SimpleNamespace(say=self.lines.append)

    def take(self, seeds, retry):
        new = len(seeds) - len(self.study.record["seeds"])
        self.study.record["seeds"] = list(seeds)
        stopped = self.study.stopped
        self.taken.append((len(seeds), [name for name in SEALED["arms"] if name not in stopped]))
        self.now += new * len(self.taken[-1][1]) * self.takes

    def decide(self):
        pass


OPEN = ("unresolved", 0.02, 0.01)  # may still come out


def test_arms_that_have_their_word_get_no_more_seeds():
    launch = _Launch({n: {"good": ("better", 0.3, 0.01), "null": OPEN} for n in (4, 8, 16)})
    until_decided(launch, Until(looks=(4, 8, 16)), retry=False)
    assert launch.taken == [
        (4, ["base", "good", "null"]), (8, ["base", "null"]), (16, ["base", "null"]),
    ]  # fmt: skip
    assert launch.study.stopped == {"good": {"seeds": [0, 1, 2, 3], "why": "better"}}
    assert any("good: stops after 4 seeds: better" in line for line in launch.lines)


def test_an_arm_that_is_not_primary_gets_seeds_as_long_as_a_primary_one_does():
    side = ("not primary", 0.1, 0.01)
    launch = _Launch({n: {"good": side, "null": OPEN} for n in (4, 8)}
                     | {16: {"good": side, "null": ("better", 0.3, 0.01)}})  # fmt: skip
    until_decided(launch, Until(looks=(4, 8, 16)), retry=False)
    assert launch.taken == [(count, ["base", "good", "null"]) for count in (4, 8, 16)]
    launch = _Launch({4: {"good": side, "null": ("better", 0.3, 0.01)}})
    until_decided(launch, Until(looks=(4, 8, 16)), retry=False)
    assert launch.taken == [(4, ["base", "good", "null"])]


def test_an_arm_without_a_cell_ends_no_look_of_the_others():
    refused_arm = ("refused: cells are missing", None, None)
    launch = _Launch({n: {"good": refused_arm, "null": OPEN} for n in (4, 8, 16)})
    until_decided(launch, Until(looks=(4, 8, 16)), retry=False)
    assert [count for count, _ in launch.taken] == [4, 8, 16]
    assert list(launch.study.stopped) == ["good"]


def test_an_arm_goes_on_whose_cells_came_after_all():
    gone, there = ("refused: cells are missing", None, None), {"good": OPEN, "null": OPEN}
    launch = _Launch({4: {"good": gone, "null": OPEN}, 8: there, 16: there})
    until_decided(launch, Until(looks=(4, 8, 16)), retry=True)
    assert launch.taken[1:] == [(8, ["base", "null"]), (16, ["base", "good", "null"])]
    assert launch.study.stopped == {}


def test_seeds_of_later_looks_are_none_of_the_tuning(tmp_path):
    study = SimpleNamespace(begun=list, path=tmp_path, record={})
    design = SimpleNamespace(tuning=SimpleNamespace(seeds=(7, 8)))
    made = (study, design, range(5), None, None)
    Launch(*made, until=Until(looks=(5, 7)))
    with pytest.raises(InvalidInput, match="the tuning's: no verdict uses them"):
        Launch(*made, until=Until(looks=(5, 10)))


def test_a_study_ends_when_all_are_decided_or_hopeless():
    good, hopeless = ("worse", -0.3, 0.01), ("unresolved", 0.001, 0.02)
    assert chance_of_a_word(0.001, 0.02, 8, 16, 0.01, level_of_contrast(SEALED, [4])) < FUTILE
    launch = _Launch({4: {"good": OPEN, "null": OPEN}, 8: {"good": good, "null": hopeless}})
    until_decided(launch, Until(looks=(4, 8, 16)), retry=False)
    assert [count for count, _ in launch.taken] == [4, 8]
    assert launch.study.stopped == {}, "nobody goes on, so all seeds are everybody's"
    assert "null: stops after 8 seeds: 16 seeds would decide it" in launch.lines[-1]


def test_what_is_open_at_the_last_look_stays_open():
    launch = _Launch({n: {"good": OPEN, "null": OPEN} for n in (4, 8)})
    until_decided(launch, Until(looks=(4, 8)), retry=False)
    assert [count for count, _ in launch.taken] == [4, 8]


@pytest.mark.parametrize(
    ("at_a_time", "budget"), [(1, 25.0), (3, 9.0)], ids=("one after another", "three at a time")
)
def test_no_look_begins_that_the_budget_does_not_hold(monkeypatch, at_a_time, budget):
    """Of 12, 12 and 24 s the last are too long; three times as fast if three train at a time."""
    launch = _Launch({n: {"good": OPEN, "null": OPEN} for n in (4, 8, 16)}, seconds=1.0)
    launch.takes = 1.0 / at_a_time
    monkeypatch.setattr(until.time, "monotonic", lambda: launch.now)
    until_decided(launch, Until(budget=budget, looks=(4, 8, 16)), retry=False)
    assert [count for count, _ in launch.taken] == [4, 8]
    assert launch.study.record == {"seeds": list(range(8)), "stopped": {}}
    assert f"16 seeds take {24 / at_a_time:.0f} s more" in launch.lines[-1]


def test_diverged_runs_leave_nothing_to_wait_for():
    launch = _Launch({4: {"good": ("no verdict", None, None), "null": OPEN}})
    launch.study.record["seeds"] = list(range(4))
    found = reasons_to_stop(launch.study, launch.design, 16)
    assert "good" not in found
    its = launch.study.verdicts()
    its["arms"]["good"]["diverged"] = [[1, 4], [0, 4]]
    launch.study.verdicts = lambda: its
    assert "diverged" in reasons_to_stop(launch.study, launch.design, 16)["good"]


def test_a_diverged_run_is_an_outcome_where_there_is_a_target():
    launch = _Launch({4: {"good": ("unresolved", None, None), "null": OPEN}})
    launch.study.record["seeds"] = list(range(4))
    launch.study.sealed = {**SEALED, "target": 0.9}
    its = launch.study.verdicts()
    its["arms"]["good"]["diverged"] = [[0, 4], [1, 4]]
    launch.study.verdicts = lambda: its
    assert "good" not in reasons_to_stop(launch.study, launch.design, 16)


def test_a_base_that_may_have_learned_gets_its_seeds():
    """Not surely better than its gate at four seeds is no reason to give all arms up."""
    launch = _Launch({4: {"good": ("cannot tell", 0.1, 0.1), "null": OPEN}})
    launch.study.record["seeds"] = list(range(4))
    its = launch.study.verdicts()
    gate = {"metric": "loss", "score": 1.8, "passed": False}
    for base, stops in ((1.79, False), (1.81, True)):
        launch.study.verdicts = lambda base=base: {**its, "learned": {**gate, "base": base}}
        assert ("good" in reasons_to_stop(launch.study, launch.design, 16)) == stops


def test_seeds_of_earlier_studies_may_be_more_than_the_last_look_asks_for():
    launch = _Launch({4: {"good": OPEN, "null": OPEN}})
    launch.study.record["seeds"] = list(range(4))
    its = launch.study.verdicts()
    launch.study.verdicts = lambda: its
    for seeds in (range(16), range(20), range(100, 110)):
        its["arms"]["good"]["seeds"] = list(seeds)
        found = reasons_to_stop(launch.study, launch.design, 16)
        assert ("good" in found) == (len(seeds) >= 16)


def test_a_stopped_arm_keeps_the_base_of_its_look(monkeypatch):
    """With a target all runs of the base count: more of them would decide it later."""
    study = Study("nowhere")
    study.record = {
        "seeds": list(range(16)), "stopped": {"good": {"seeds": [0, 1, 2, 3]}},
        "sealed": {**SEALED, "target": 0.9}, "arms": {n: {"hash": n} for n in SEALED["arms"]},
    }  # fmt: skip
    outcomes = {
        "base": {seed: Outcome(0.0, False) for seed in range(16)},
        "good": {seed: Outcome(1.0, False) for seed in range(4)},
    }
    found, _ = evidence_of(study, "good", outcomes, [], [4, 8], None)
    assert list(found.base) == [0, 1, 2, 3]
    assert found.level == pytest.approx(0.05 / 4)


@pytest.mark.parametrize(
    ("shown", "there", "left"),
    [((), 0, (4, 8)), ((4,), 4, (4, 8)), ((4,), 8, (8,)), ((4, 8), 8, (8,))],
)
def test_a_study_goes_on_at_the_look_where_it_was(shown, there, left):
    study = SimpleNamespace(
        looks=lambda: [{"seeds": list(range(count))} for count in shown],
        record={"seeds": list(range(there)), "began": bool(there)},
        path="a",
    )
    design = SimpleNamespace(looks=(4, 8))
    assert looks_left(study, design) == left


def test_where_no_look_is_left_seeds_have_to_be_asked_for():
    record = {"seeds": list(range(10)), "began": True}
    study = SimpleNamespace(looks=lambda: [{"seeds": [0, 1, 2, 3, 4]}], record=record, path="a")
    with pytest.raises(InvalidInput, match="no planned look is left"):
        looks_left(study, SimpleNamespace(looks=(5,)))


def test_an_arm_that_was_stopped_is_judged_at_its_own_look():
    """Its level is that of the look at which it stopped, however many looks come after."""
    study = Study("nowhere")
    study.record = {"seeds": list(range(16)), "stopped": {"good": {"seeds": [0, 1, 2, 3]}}}
    assert study.seeds_of("good") == [0, 1, 2, 3]
    assert study.seeds_of("null") == list(range(16))
    assert study.looks_before("good", [4, 8]) == []
    assert study.looks_before("null", [4, 8]) == [4, 8]


def test_looks_at_other_seeds_are_refused():
    study = SimpleNamespace(
        looks=lambda: [{"seeds": [5, 6]}], record={"seeds": [5, 6], "began": True}, path="a"
    )
    with pytest.raises(InvalidInput, match="go on with --seeds"):
        looks_left(study, SimpleNamespace(looks=(4, 8)))


def test_flags_that_do_not_go_together_are_refused(tmp_path):
    asked = ("ablate", f"--config={TINY}", "--arm=model.num_heads=1", f"--workdir={tmp_path / 'a'}")
    refused(attempt(*asked, "--budget=10m"), "--budget: without --until=decided")
    refused(attempt(*asked, "--until=decided", "--seeds=3"), "--seeds: not with --until")
    refused(attempt(*asked, "--until=decided", "--budget=soon"), "--budget=soon", "10m")
    refused(attempt(*asked, "--until=never"), "--until", "decided")


# ---------------------------------------------------------------- a whole study


@pytest.mark.commands
def test_a_study_ends_look_by_look_and_goes_on_after_a_kill(tmp_path):
    (tmp_path / "question.py").write_text(FILE)
    asked = ("ablate", f"--config={tmp_path / 'question.py'}", f"--workdir={tmp_path / 's' / 'q'}")
    started = time.monotonic()
    done = command(*asked, "--until=decided", "--json", timeout=500)
    seconds = time.monotonic() - started
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout)["verdicts"]
    study = load_study(tmp_path / "s" / "q")
    assert "until      decided, with looks at 3, 4 seeds" in done.stderr
    assert study.record["seconds"] <= seconds + 1, "no time is counted at two looks"
    assert verdicts["arms"]["slow"]["verdict"] == "worse"
    assert verdicts["arms"]["slow"]["stopped"]["seeds"] == [0, 1, 2]
    assert not study.cell("slow", 3).path.exists()
    assert [len(look["seeds"]) for look in study.looks()] == [3, 4]
    assert {look["level"] for look in study.looks()} == {0.05 / 3}
    assert verdicts["arms"]["slow"]["level"] == verdicts["arms"]["relu"]["level"] == 0.05 / 3
    again = attempt(*asked, "--until=decided", "--json")
    assert json.loads(again.stdout)["verdicts"] == verdicts
    judged = attempt("compare", str(study.path), "--json")
    assert json.loads(judged.stdout)["studies"][str(study.path)] == verdicts
    assert len(load_study(study.path).looks()) == 2
    whole = attempt(*asked, "--seeds=4", "--json")
    assert "stopped" not in json.loads(whole.stdout)["verdicts"]["arms"]["slow"]
    assert study.cell("slow", 3).path.exists()

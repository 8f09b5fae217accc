"""The register: the same question again is a further look, wherever its cells are."""

import shutil

import numpy as np
import pytest
from scipy import stats

from tests.conftest import TINY
from transformer_jax.studies import statistics as ours
from transformer_jax.studies.design import load_design
from transformer_jax.studies.judging import judge_study, level_of_arm
from transformer_jax.studies.running import run
from transformer_jax.studies.study import Register, contrasts_of, load_study

QUICK = {"training.steps": "6", "schedule.warmup_steps": "2", "model.depth": "1"}
ARM = ["model.num_heads=4,1"]


def sealed(**changes):
    first = {
        "base_config": {"training.steps": 100, "model.depth": 2},
        "arms": {"a": {}, "b": {"model.num_heads": 1}},
        "base": "a",
        "metric": "loss",
        "margin": 0.01,
        "match": None,
        "tuning": None,
    }
    return first | changes


def test_a_contrast_is_what_is_compared_and_not_by_which_seeds_or_margin():
    def hashed(**changes):
        (other,) = contrasts_of(sealed(**changes)).values()
        return other

    base = hashed()
    assert hashed(margin=0.5, question="other words") == base
    assert hashed(arms={"a": {}, "one head": {"model.num_heads": 1}}) == base
    also_said = {"training.steps": 100, "model.depth": 2, "model.dropout_rate": 0.0}
    assert hashed(base_config=also_said | {"logging.every": 3}) == base
    others = [
        hashed(base_config={"training.steps": 50, "model.depth": 2}),
        hashed(tuning={"key": "optimizer.learning_rate"}),
        hashed(match={"by": "params", "field": ["model.mlp_dim"]}),
        hashed(arms={"a": {}, "b": {"model.num_heads": 2}}),
        hashed(metric="accuracy"),
    ]
    assert len({base, *others}) == 1 + len(others)


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """The same question in two studies under one root, with other seeds; read them only."""
    root = tmp_path_factory.mktemp("asked")
    design = load_design(TINY, QUICK, ARM)
    return run(design, root / "first", range(3)), run(design, root / "second", range(3, 6))


@pytest.fixture
def root(asked, tmp_path):
    """A copy of that root, to be changed."""
    shutil.copytree(asked[0].root, tmp_path / "root")
    return tmp_path / "root"


def only_arm(verdicts):
    (arm,) = verdicts["arms"].values()
    return arm


def test_the_same_question_again_is_a_further_look_at_its_own_seeds(asked):
    before, after = (only_arm(study.verdicts()) for study in asked)
    assert (before["seeds"], after["seeds"]) == ([0, 1, 2], [3, 4, 5])
    assert (before["level"], after["level"]) == (0.025, 0.0125)
    error = np.std(after["differences"], ddof=1) / 3**0.5
    half = stats.t.ppf(1 - 0.4 * after["level"], 2) * error
    assert after["interval"] == pytest.approx([after["mean"] - half, after["mean"] + half])
    assert not before["asked_before"]
    assert [look["seeds"] for look in after["asked_before"]] == [[0, 1, 2]]
    assert "shown before in 1 look" in (asked[1].path / "report.html").read_text()


def test_the_same_look_again_is_none_more_and_neither_is_a_later_one(asked, root):
    for name, study in zip(("first", "second"), asked, strict=True):
        before = only_arm(study.verdicts())
        found = only_arm(judge_study(load_study(root / name)))
        assert (found["level"], found["words"]) == (before["level"], before["words"])
    assert len(Register(root).rows()) == 2


def test_other_seeds_that_were_chosen_later_count_as_looks(root):
    again = run(load_design(TINY, QUICK, ARM), root / "third", range(3, 7))
    assert only_arm(again.verdicts())["level"] == 0.025 / 4


@pytest.mark.thorough
def test_another_budget_is_another_question(root):
    longer = load_design(TINY, QUICK | {"training.steps": "8"}, ARM)
    found = only_arm(run(longer, root / "longer", range(3)).verdicts())
    assert (found["level"], found["asked_before"]) == (0.025, [])


@pytest.mark.thorough
def test_a_chosen_arm_is_judged_as_one_of_those_that_it_was_chosen_of(root):
    """The best of two arms, asked again alone, keeps the family of two."""
    (root / "register.jsonl").unlink()
    run(load_design(TINY, QUICK, ["model.num_heads=4,1,2"]), root / "many", range(3))
    again = run(load_design(TINY, QUICK, ARM), root / "alone", range(3, 6))
    assert only_arm(again.verdicts())["family"] == 2
    (look, _) = Register(root).rows()
    assert set(look["families"].values()) == {2}


def test_a_register_that_cannot_be_written_is_told_and_nothing_is_lost(root, monkeypatch):
    def full(self, row):
        raise PermissionError("read-only")

    (root / "register.jsonl").unlink()
    with monkeypatch.context() as patched:
        patched.setattr(Register, "add", full)
        assert judge_study(load_study(root / "first"))["registered"] is False
    assert judge_study(load_study(root / "first"))["registered"] is True
    assert len(Register(root).rows()) == 1


def test_a_torn_line_spends_nothing(tmp_path):
    register = Register(tmp_path)
    row = {"study": ["x", "t"], "seeds": [0], "contrasts": {"b": "c"}, "time": "1"}
    register.note(row)
    with (tmp_path / "register.jsonl").open("a") as file:
        file.write('{"study": ["y"')
    assert register.note({**row, "time": "2"}), "the same look at another time"
    register.note({**row, "study": ["y", "t"]})
    assert [held["study"] for held in register.rows()] == [["x", "t"], ["y", "t"]]
    assert register.earlier_looks("other", ["z", "t"], [0]) == []
    assert len(register.earlier_looks("c", ["z", "t"], [0])) == 2
    assert [held["study"] for held in register.earlier_looks("c", ["x", "t"], [1])] == [["y", "t"]]


def test_restarts_find_something_in_nothing_no_more_often_than_one_study():
    """Ten studies of one question, each with five seeds of its own, until one finds something."""
    d = np.random.default_rng(0).normal(size=(20_000, 10, 5))
    found = np.zeros(len(d), bool)
    for number in range(10):
        level = level_of_arm((5,), 5, (), number)
        found |= ours.paired_t(d[:, number])[2] <= 0.8 * level
    assert found.mean() <= 0.05

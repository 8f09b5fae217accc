"""The register of seals: a question that is asked again is a further look at the same contrast."""

import json
import shutil
import zipfile

import numpy as np
import pytest

from experiments.answers import RESULTS
from tests.conftest import TINY
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.asking.design import load_design
from transformer_jax.studies.asking.register import Earlier, Register, contrasts_of, pooled
from transformer_jax.studies.asking.study import load_study
from transformer_jax.studies.inference import statistics
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.judging.decision import Evidence, decide
from transformer_jax.studies.judging.judge import judge_study
from transformer_jax.studies.reporting.export import export_study
from transformer_jax.studies.reporting.tables import notes_on
from transformer_jax.studies.running.launch import run

QUICK = {"training.steps": "6", "schedule.warmup_cosine.warmup_steps": "2", "model.depth": "1"}
ARM = ["model.num_heads=4,1"]


def sealed(**changes):
    first = {
        "base_config": {"training.steps": 100, "model.depth": 2},
        "arms": {"a": {}, "b": {"model.num_heads": 1}},
        "base": "a",
        "metric": "test/loss",
        "margin": 0.01,
        "match": None,
        "tuning": None,
    }
    return first | changes


def test_a_contrast_is_what_is_compared_and_not_by_which_seeds_or_margin():
    (first,) = contrasts_of(sealed()).values()

    def same(**changes):
        (other,) = contrasts_of(sealed(**changes)).values()
        return other.same == first.same, other.related == first.related

    assert same(margin=0.5, question="other words") == (True, True)
    assert same(arms={"a": {}, "one head": {"model.num_heads": 1}}) == (True, True)
    also_said = {"training.steps": 100, "model.depth": 2, "model.dropout_rate": 0.0}
    assert same(base_config=also_said | {"logging.every": 3}) == (True, True)
    assert same(base_config={"training.steps": 50, "model.depth": 2}) == (False, True)
    assert same(tuning={"key": "optimizer.learning_rate"}) == (False, True)
    assert same(arms={"a": {}, "b": {"model.num_heads": 2}}) == (False, False)
    assert same(metric="test/accuracy") == (False, False)


def test_a_contrast_is_one_of_those_that_it_was_chosen_of():
    def family(words, **row):
        arms = {"b": {"words": words}, "c": {"words": "better"}, "d": {"words": "worse"}}
        return Earlier({"base": "a", "arms": arms, **row}, "b").family

    assert family("better", family=2) == 2
    assert family("not primary: an interval and no word", family=1) == 3
    assert family("better") == 3  # an older row does not say


def test_the_best_of_ten_in_an_earlier_study_is_judged_as_one_of_ten():
    sealed_now = {"arms": {"a": {}, "b": {}}, "base": "a", "metric": "test/loss", "margin": 0.1}
    sealed_now |= {"larger_is_better": False, "tuning": None, "looks": [5]}
    base = {seed: Outcome(1.0 + 0.01 * seed**2) for seed in range(5)}
    arm = {seed: Outcome(0.9) for seed in range(5)}
    widths = [
        np.ptp(
            decide(sealed_now, {"b": Evidence(base, arm, 0.025, family=n)}, {"b": []})["b"][
                "interval"
            ]
        )
        for n in (0, 1, 10)
    ]
    t = statistics.stats.t.ppf
    assert widths[0] == widths[1]
    assert widths[2] / widths[0] == pytest.approx(t(1 - 0.001, 4) / t(1 - 0.01, 4))


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """One root: a study, and the same question again with other seeds; read it, never write."""
    root = tmp_path_factory.mktemp("root")
    design = load_design(TINY, QUICK, ARM)
    first = run(design, root / "first", range(3), progress=Silent())
    second = run(design, root / "second", range(3, 6), progress=Silent())
    return first, second


def test_the_same_question_again_is_a_further_look_and_the_first_seeds_count(asked):
    first, second = (study.verdicts() for study in asked)
    (arm,) = first["arms"]
    before, after = first["arms"][arm], second["arms"][arm]
    assert before["seeds"] == [0, 1, 2]
    assert after["seeds"] == [0, 1, 2, 3, 4, 5]
    assert after["differences"][:3] == before["differences"]
    assert (before["level"], after["level"]) == (0.025, 0.025 / 2)
    error = np.std(after["differences"], ddof=1) / 6**0.5
    half = statistics.stats.t.ppf(1 - 0.4 * after["level"], 5) * error
    assert after["interval"] == pytest.approx([after["mean"] - half, after["mean"] + half])
    (told,) = after["asked_before"]
    assert (told["study"], told["words"]) == ("first", before["words"])
    assert any("asked before: first" in note for note in notes_on(second))
    assert not before["asked_before"]
    events = [(row["event"], row["study"]) for row in Register(asked[0].root).rows()]
    assert events == [(event, name) for name in ("first", "second") for event in ("sealed", "look")]


def test_the_same_seeds_again_are_no_further_look(asked, tmp_path):
    """In another workdir every cell is found, and nothing new is seen."""
    root = tmp_path / "root"
    shutil.copytree(asked[0].root, root)
    again = run(load_design(TINY, QUICK, ARM), root / "again", range(3), progress=Silent())
    (found,) = again.verdicts()["arms"].values()
    (before,) = asked[0].verdicts()["arms"].values()
    # The second study is a look at other seeds, which count here too; the first one is none more.
    assert found["seeds"] == [0, 1, 2, 3, 4, 5]
    assert found["level"] == 0.025 / 2
    (root / "register.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in Register(root).rows() if row["study"] == "first")
    )
    (found,) = judge_study(again)["arms"].values()
    assert (found["level"], found["interval"]) == (before["level"], before["interval"])
    assert not found["asked_before"]


def test_judging_a_study_again_leaves_out_looks_that_came_after_its_own(asked, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(asked[0].root, root)
    rows = Register(root).rows()
    rows[-1]["time"] = "2100" + rows[-1]["time"][4:]  # of the second study's look
    (root / "register.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (before,) = asked[0].verdicts()["arms"].values()
    (found,) = judge_study(load_study(root / "first"))["arms"].values()
    assert (found["level"], found["interval"]) == (before["level"], before["interval"])
    assert not found["asked_before"]
    for row in rows:  # as if its own look had been at cells of other code
        if row["event"] == "look" and row["study"] == "first":
            row["cells"] = {arm: "elsewhere" for arm in row["cells"]}
    (root / "register.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = judge_study(load_study(root / "first"))["arms"].values()
    assert [look["study"] for look in found["asked_before"]] == ["second"]


@pytest.mark.thorough
def test_another_budget_is_related_and_spends_nothing(asked, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(asked[0].root, root)
    longer = load_design(TINY, QUICK | {"training.steps": "8"}, ARM)
    study = run(longer, root / "longer", range(3), progress=Silent())
    (found,) = study.verdicts()["arms"].values()
    assert (found["level"], found["seeds"]) == (0.025, [0, 1, 2])
    assert [look["study"] for look in found["related"]] == ["first", "second"]
    assert {look["base"] for look in found["related"]} == {asked[1].base}
    assert {look["arm"] for look in found["related"]} <= set(asked[1].arms)
    assert any(
        "another base, task, budget or rate: first" in note for note in notes_on(study.verdicts())
    )


def test_an_arm_that_was_changed_after_the_seal_is_not_in_the_register(asked, tmp_path):
    root = tmp_path / "root"
    shutil.copytree(asked[0].root, root)
    study = load_study(root / "second")
    (name,) = study.verdicts()["arms"]
    study.arms[name]["changes"] = {"model.num_heads": 2}
    study.write()
    before = Register(root).rows()
    (found,) = judge_study(study)["arms"].values()
    assert (found["seeds"], found["asked_before"]) == ([3, 4, 5], [])
    assert all(not row["arms"] for row in Register(root).rows()[len(before) :])


def test_runs_of_other_cells_are_a_look_whose_seeds_do_not_count(asked, tmp_path):
    """Other data, another machine or other code behind the same config."""
    root = tmp_path / "root"
    shutil.copytree(asked[0].root, root)
    rows = Register(root).rows()
    rows[1]["cells"] = {arm: "elsewhere" for arm in rows[1]["cells"]}
    (root / "register.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    verdicts = judge_study(load_study(root / "second"))
    (found,) = verdicts["arms"].values()
    assert (found["seeds"], found["level"]) == ([3, 4, 5], 0.025 / 2)
    assert any("their seeds, of other cells, do not count" in note for note in notes_on(verdicts))


def test_a_register_that_cannot_be_written_is_told_and_nothing_is_lost(
    asked, tmp_path, monkeypatch
):
    root = tmp_path / "root"
    shutil.copytree(asked[0].root, root)
    (root / "register.jsonl").unlink()

    def full(self, row):
        raise PermissionError("read-only")

    monkeypatch.setattr(Register, "add", full)
    verdicts = judge_study(load_study(root / "first"))
    assert any("cannot be written" in note for note in notes_on(verdicts))
    monkeypatch.undo()
    verdicts = judge_study(load_study(root / "first"))  # the look is noted as soon as it can be
    assert not any("cannot be written" in note for note in notes_on(verdicts))
    assert [row["study"] for row in Register(root).rows()] == ["first"]


def test_a_study_that_is_mailed_takes_the_looks_along(asked, tmp_path):
    archive = export_study(asked[1].path, tmp_path / "second.zip")
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "there")
    (found,) = judge_study(load_study(tmp_path / "there" / "second"))["arms"].values()
    (before,) = asked[1].verdicts()["arms"].values()
    assert (found["level"], found["interval"]) == (before["level"], before["interval"])


def test_a_torn_line_and_a_seal_without_a_look_spend_nothing(tmp_path):
    register = Register(tmp_path)
    register.add({"event": "sealed", "seal": "x", "sealed_at": "t", "study": "s"})
    with (tmp_path / "register.jsonl").open("a") as file:
        file.write('{"event": "look", "seal"')
    register.add({"event": "sealed", "seal": "y", "sealed_at": "t", "study": "s"})
    assert [row["seal"] for row in register.rows()] == ["x", "y"]
    (contrast,) = contrasts_of(sealed()).values()
    assert register.looks(contrast, "same", ("z", "t")) == []


def look(values):
    outcomes = {
        name: {str(seed): [value, False, None, 0] for seed, value in by.items()}
        for name, by in values.items()
    }
    return Earlier({"base": "a", "outcomes": outcomes, "arms": {"b": {}}}, "b")


def scores(pooled_side):
    return {seed: outcome.value for seed, outcome in pooled_side.items()}


def test_own_seeds_come_before_those_of_earlier_looks():
    first = look({"a": {0: 1.0, 1: 2.0}, "b": {0: 1.5, 1: 2.5}})
    base, arm = {1: Outcome(3.0), 2: Outcome(4.0)}, {1: Outcome(3.1), 2: Outcome(4.2)}
    found = pooled([first], base, arm)
    assert scores(found.base) == {0: 1.0, 1: 3.0, 2: 4.0}
    assert scores(found.arm) == {0: 1.5, 1: 3.1, 2: 4.2}
    assert found.counts == [2]
    lost = pooled([first], base, {2: Outcome(4.2)})  # a pair is of one look
    assert (lost.base[1].value, lost.arm[1].value) == (2.0, 2.5)
    assert pooled([first, first], {0: Outcome(1.0)}, {0: Outcome(1.5)}).counts == []
    elsewhere = [each._replace(row={**each.row, "cells": {"a": "x", "b": "y"}}) for each in (
        first, look({"a": {0: 1.0}, "b": {0: 1.5}})
    )]  # fmt: skip
    again = elsewhere[0]._replace(row={**elsewhere[0].row, "arms": {"b": {"words": "better"}}})
    assert pooled([*elsewhere, again], base, arm, ("p", "q")).counts == [0, 0]
    assert pooled([], base, arm).counts == []


def test_restarts_find_something_in_nothing_no_more_often_than_one_study():
    """2 arms of no effect, 5 fresh seeds a launch; unregistered, 5 launches find one in 22 %."""
    rng, studies = np.random.default_rng(0), 20_000
    scores = rng.normal(size=(studies, 3, 25))
    d = scores[:, 1:] - scores[:, :1]
    fooled, counts = np.zeros(studies, bool), []
    for launch in range(1, 6):
        count = 5 * launch
        level = statistics.level_of_look(count, (5,), counts)
        counts.append(count)
        _, _, p = statistics.paired_t(d[..., :count])
        fooled |= (p * 2 / statistics.FOR_MEANS <= level).any(1)
    assert fooled.mean() < 0.05


@pytest.mark.parametrize("name", [p.parent.name for p in sorted(RESULTS.glob("*/verdicts.json"))])
def test_a_committed_study_stands_in_the_register(name):
    study = load_study(RESULTS / name)
    rows = [row for row in Register(RESULTS).rows() if row["study"] == name]
    assert (rows[-1]["seal"], rows[-1]["seeds"]) == (
        study.record["seal"],
        study.verdicts()["seeds"],
    )
    contrasts = contrasts_of(study.sealed)
    assert {arm: its["same"] for arm, its in rows[-1]["arms"].items()} == {
        arm: contrast.same for arm, contrast in contrasts.items()
    }
    page = (RESULTS / name / "README.md").read_text()
    assert page.count("- Superseded (") == len(rows) - 1

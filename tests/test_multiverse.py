"""The specification curve of a verdict: what is doubted, what is tried, and what may be said."""

import json
import math
import re

import pytest

from configs import tiny
from tests.conftest import attempt, refused
from tests.test_studies import study_file
from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import flatten
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.asking.design import load_design
from transformer_jax.studies.asking.doubts import (
    Doubt,
    changes_of,
    doubts_of,
    specifications,
    spelled,
)
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.judging.multiverse import curve
from transformer_jax.studies.reporting.tables import multiverse_rows
from transformer_jax.studies.running.launch import run
from transformer_jax.studies.running.multiverse import _as_json, _design_of

FLAT = flatten(tiny.get_config())
RATE = "optimizer.learning_rate"


def test_usual_doubts_leave_out_what_the_study_is_about():
    keys = [doubt.key for doubt in doubts_of(FLAT, [], [])]
    assert keys == [
        RATE, "optimizer.weight_decay", "model.init_std", "training.steps", "data.length",
    ]  # fmt: skip
    assert RATE not in [doubt.key for doubt in doubts_of(FLAT, [], [RATE])]
    images = {**FLAT, "data.task": "image_classification", "optimizer.weight_decay": 0.0}
    found = {doubt.key: doubt for doubt in doubts_of(images, [], [])}
    assert "data.length" not in found
    assert found["optimizer.weight_decay"].values == (0.01, 0.1)


def test_own_doubts_come_first_and_are_checked():
    first, *_ = doubts_of(FLAT, ["config.model.depth=1,3"], [])
    assert first == Doubt("model.depth", values=(1, 3))
    for text, told in (
        ("model.dept=2", "did you mean model.depth"),
        ("model.depth", "expected KEY=VALUE,VALUE"),
        ("model.depth=two", "model.depth=two: "),
        ("model.depth=1e999", "model.depth=1e999: "),
        ("model.depth=2,-3", "model.depth=2,-3: expected"),
        ("optimizer.learning_rate=1e999", "learning_rate=1e999: expected"),
    ):
        with pytest.raises(InvalidInput, match=re.escape(told)):
            doubts_of(FLAT, [text], [])
    with pytest.raises(InvalidInput, match="a seed is no choice"):
        doubts_of(FLAT, ["seed=1,2"], [])
    same_last = doubts_of(FLAT, ["training.batch_size=8", "evaluation.batch_size=8"], [])
    told = [spelled(each) for each in specifications(same_last, 40)]
    assert len(set(told)) == len(told)
    assert told[1:4] == ["training.batch_size=8", "evaluation.batch_size=8", "learning_rate x 0.5"]
    with pytest.raises(InvalidInput, match=r"the study is about model\.depth"):
        doubts_of(FLAT, ["model.depth=2"], ["model.depth"])


def test_each_doubt_alone_and_then_combinations():
    doubts = rate, steps = Doubt(RATE, (0.5, 2.0)), Doubt("training.steps", (0.5,))
    found = specifications(doubts, 18)
    assert found[:4] == [{}, {rate: 0.5}, {rate: 2.0}, {steps: 0.5}]
    assert sorted(found[4:], key=str) == [{rate: 0.5, steps: 0.5}, {rate: 2.0, steps: 0.5}]
    assert specifications(doubts, 3) == found[:3]
    assert specifications(doubts, 18) == found, "the same every time, so that cells are found"
    flat = {RATE: 3e-3, "training.steps": 101}
    assert changes_of({rate: 2.0, steps: 0.5}, flat) == {RATE: 6e-3, "training.steps": 50}
    assert spelled({}) == "as it stands"
    assert spelled({rate: 2.0, steps: 0.5}) == "learning_rate x 2, steps x 0.5"
    assert spelled({Doubt("model.depth", values=(3,)): 3}) == "depth=3"
    clip = Doubt("training.clip_norm", values=(None, 2.0))
    both = specifications((clip, steps), 18)
    assert {clip: None, steps: 0.5} in both, "None is a value too"
    assert len(both) == len({spelled(each) for each in both}) == 6


def test_what_holds_is_counted_by_what_was_said():
    pairs = [(Outcome(1.0 - gain), Outcome(1.0)) for gain in (0.3, 0.02, -0.1)]
    gone = Outcome(None, diverged=True)
    pairs += [(gone, Outcome(1.0)), (Outcome(1.0), gone), (gone, gone), (None, Outcome(1.0))]
    better = curve({"verdict": "better"}, pairs, 0.05, False)
    assert (better.held, better.known) == (3, 5), "a base that diverges alone is worse"
    assert better.differences[3:] == [-math.inf, math.inf, None, None]
    assert better.words == "the sign holds in 3 of 5"
    kept = json.loads(json.dumps(_as_json(better)))["differences"]
    assert kept[3:] == ["-∞", "∞", None, None], "JSON has no infinity"
    arms = {"specifications": ["a"] * 7, "arms": {"x": {"differences": kept}}}
    assert [cells[1] for cells in multiverse_rows(arms)[1]][2:6] == ["-0.1000", "-∞", "∞", "–"]
    assert curve({"verdict": "worse"}, pairs, 0.05, False).held == 2
    assert curve({"verdict": "better"}, pairs, 0.05, True).held == 2
    same = curve({"verdict": "no different within the margin"}, pairs, 0.05, False)
    assert same.words == "the difference is within 0.05 in 1 of 5"
    open_ = curve({"verdict": "unresolved", "mean": -0.01}, pairs, 0.05, False)
    assert open_.words.startswith("no verdict (unresolved)")
    assert open_.held == 2


@pytest.mark.commands
def test_a_study_is_doubted_from_its_own_cells(tmp_path):
    path = study_file(tmp_path)
    study = run(load_design(path, {}), tmp_path / "runs" / "q", range(1), progress=Silent())
    asked = ("multiverse", f"--study={study.path}", "--count=3", "--over=schedule.name=constant")
    done = attempt(*asked, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["specifications"] == ["as it stands", "name=constant", "learning_rate x 0.5"]
    assert "multiverse 6 cells, 2 there already" in done.stderr
    values = [study.cell(name, 0).means()["loss"] for name in ("none", "learned")]
    (its,) = found["arms"].values()
    assert its["differences"][0] == values[1] - values[0]
    assert found == study.multiverse()
    assert "Under other choices" in (study.path / "report.html").read_text()
    again = attempt(*asked, "--json")
    assert "6 cells, 6 there already" in again.stderr
    assert json.loads(again.stdout) == found
    refused(attempt(*asked, "--arms=nune"), "--arms=nune", "none")
    study.record["sealed"]["metric"] = "test/calibration_error"  # its cells were asked for the loss
    design = _design_of(study, ["none", "learned"], 0)
    assert design.config.evaluation.metrics == ("calibration_error",)

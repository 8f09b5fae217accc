"""Ladders: the same question over ascending values of an option of the baseline."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import TINY, attempt, refused
from tests.test_studies import QUICK, study_file
from transformer_jax.errors import InvalidInput
from transformer_jax.studies import ladder as ladders
from transformer_jax.studies.design import load_design
from transformer_jax.studies.ladder import begin_ladder, ladder_of, run_ladder, rung_path
from transformer_jax.studies.statistics import Optimum, moved, optimum

RATES = ["optimizer.learning_rate=0.001,0.003,0.009"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("model.width", "KEY=VALUE"),
        ("model.wdth=16,32", "did you mean model.width"),
        ("model.position=none,rotary", "expected one KEY=NUMBER"),
        ("model.width=16,32xmodel.depth=1,2", "expected one KEY=NUMBER"),
        ("model.width=16", "expected 2 or more numbers, ascending"),
        ("model.width=32,16", "expected 2 or more numbers, ascending"),
        ("model.width=16,16,32", "expected 2 or more numbers, ascending"),
        ("seeds.order=1,2", "seeds cannot be a ladder"),
        ("optimizer.learning_rate=0.001,0.01", "sets optimizer.learning_rate itself"),
    ],
)
def test_ladders_that_cannot_be_are_refused(text, told):
    with pytest.raises(InvalidInput, match=told):
        ladder_of(text, load_design(TINY, QUICK, RATES))


def test_rungs_of_large_numbers_are_told_apart():
    names = [rung_path(Path(), "training.steps", value).name for value in (1000001, 1000002)]
    assert names == ["training.steps=1000001", "training.steps=1000002"]
    assert rung_path(Path(), "a", 0.001).name == "a=0.001"


def test_another_ladder_is_another_workdir(tmp_path):
    design = load_design(TINY, QUICK, RATES)
    for _ in range(2):
        begin_ladder(tmp_path, ladder_of("training.steps=12,24", design))
    with pytest.raises(InvalidInput, match=r"holds the ladder training.steps=12,24; choose"):
        begin_ladder(tmp_path, ladder_of("training.steps=12,48", design))


@pytest.mark.thorough
def test_a_ladder_with_an_impossible_rung_trains_nothing(tmp_path):
    flags = (f"--config={study_file(tmp_path)}", f"--workdir={tmp_path / 'l'}", "--seeds=2")
    refused(attempt("ablate", *flags, "--ladder=model.num_heads=1,3"), "model.num_heads=3")
    assert not list(tmp_path.rglob("study.json"))
    assert not list(tmp_path.rglob("cells"))


@pytest.mark.thorough
def test_a_ladder_of_real_studies(tmp_path):
    design = load_design(TINY, QUICK, RATES)
    ladder = ladder_of("training.steps=12,24", design)
    judged = run_ladder(ladder, tmp_path / "ladder", range(3))
    assert judged == json.loads((tmp_path / "ladder" / "ladder.json").read_text())
    assert judged["values"] == [12, 24]
    assert judged["scores"][1] < judged["scores"][0]
    for value in ladder.rungs:
        path = rung_path(tmp_path / "ladder", "training.steps", value)
        verdicts = json.loads((path / "verdicts.json").read_text())
        assert set(verdicts["arms"]) == set(judged["arms"])
    assert {len(by_rung) for by_rung in judged["arms"].values()} == {2}
    assert len(judged["optima"]["optimizer.learning_rate"]["by_rung"]) == 2
    assert "Each rung is a study of its own" in (tmp_path / "ladder" / "ladder.md").read_text()
    assert run_ladder(ladder, tmp_path / "ladder", range(3)) == judged


def test_a_ladder_tells_where_the_best_value_of_an_option_goes():
    best = [{"at": 0.004, "interval": [0.003, 0.005]}, {"at": 0.002, "interval": [0.001, 0.003]}]
    ladder = {
        "question": "Which rate?",
        "key": "model.width",
        "values": [32, 64],
        "metric": "loss",
        "base": "a",
        "scores": [2.5, 2.25],
        "arms": {"b": [{"mean": 0.1, "interval": [0.05, 0.15], "words": "better"},
                       {"mean": None, "interval": None, "words": "no verdict"}]},
        "optima": {"optimizer.learning_rate": {
            "by_rung": best, "moved": {"at": 0.5, "interval": [0.3, 0.8]}, "between": (0, 1),
        }},
    }  # fmt: skip
    text = ladders.ladder_text(ladder)
    assert "the best optimizer.learning_rate moves by x 0.5 [0.3, 0.8] from 32 to 64" in text
    assert "0.004 [0.003, 0.005] at 32, 0.002 [0.001, 0.003] at 64" in text
    assert "| b | 64 |" in text
    assert "2.5000 at 32, 2.2500 at 64" in text


def test_an_optimum_is_held_by_its_interval():
    rng, values, best = np.random.default_rng(0), np.array([1e-3, 2e-3, 4e-3, 8e-3]), 2.6e-3
    held = []
    for _ in range(600):
        losses = np.log(values / best) ** 2 + rng.normal(0, 0.05, (5, 4))
        found = optimum(values, losses + rng.normal(0, 1, (5, 1)))
        if not isinstance(found, str):
            held.append(found.interval[0] <= best <= found.interval[1])
    assert len(held) > 0.95 * 600
    assert np.mean(held) > 0.93


def test_without_a_minimum_between_the_values_there_is_none(rng):
    values = (1e-3, 2e-3, 4e-3)
    falling = -np.log(values) + rng.normal(0, 1e-3, (3, 3))
    assert optimum(values, falling) == "none between the arms"
    flat = np.array([[0.01, 0.0, 0.01], [0.0, 0.005, 0.0], [0.01, 0.0, 0.001]])
    assert optimum(values, flat) in ("the curvature is not certain", "none between the arms")


def test_a_move_is_a_factor_with_the_interval_of_both():
    first, second = Optimum(1e-3, (8e-4, 1.25e-3)), Optimum(4e-3, (2e-3, 8e-3))
    found = moved(first, second)
    assert found.at == pytest.approx(4.0)
    half = math.hypot(math.log(2), math.log(1.25))
    assert found.interval == pytest.approx((4 * math.exp(-half), 4 * math.exp(half)))

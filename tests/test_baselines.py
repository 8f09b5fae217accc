"""Simple methods, and the gate that a base has to pass before a study says anything.

The linear model and its features are compared with scikit-learn in test_oracles.
"""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.conftest import TINY
from tests.test_studies import study_file
from transformer_jax.config_files import load_config
from transformer_jax.data.baselines import baselines_of
from transformer_jax.data.ngrams import NOTHING, NGrams
from transformer_jax.data.tasks.classification import Classification
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.progress import Silent
from transformer_jax.studies import judging
from transformer_jax.studies.design import FLOORS, METHODS, gate_of, load_design
from transformer_jax.studies.judging import at_an_end, best_and_guess, passed
from transformer_jax.studies.running import run
from transformer_jax.studies.study import load_study
from transformer_jax.training.build import make_task


def scores_of(**changes):
    config = load_config(TINY, {key.replace("__", "."): v for key, v in changes.items()})
    return baselines_of(make_task(config), 20)


@pytest.mark.parametrize(("separate", "coins"), [("True", 2), ("False", 1)])
def test_n_grams_see_the_previous_document_only_if_models_do(tmp_path, rng, separate, coins):
    """A document's second letter is the last of the document before it."""
    lasts = rng.integers(0, 2, 6000).tolist()
    pairs = [json.dumps({"text": f"c{one}{last}"}) for one, last in itertools.pairwise(lasts)]
    (tmp_path / "a.jsonl").write_text("\n".join(pairs))
    source = {"data__source": str(tmp_path / "a.jsonl"), "data__length": "80"}
    scores, _ = scores_of(**source, data__separate_documents=separate)
    loss = coins * np.log(2) / (3 if separate == "True" else 4)
    assert scores["4-gram"]["test"]["loss"] == pytest.approx(loss, rel=0.15)


def test_a_text_is_scored_by_counts_of_one_to_six_tokens(tmp_path):
    """A text in which two tokens decide the next: 3-grams know it, 2-grams half of it."""
    text = tmp_path / "text.txt"
    text.write_text("aabb" * 3000)
    scores, gate = scores_of(data__source=str(text))
    assert gate == "4-gram"
    assert set(scores) <= set(METHODS)
    # The first target of each window of 16 has one token before it.
    for name, loss in (("1-gram", np.log(2)), ("2-gram", np.log(2)), ("3-gram", np.log(2) / 16)):
        assert scores[name]["test"]["loss"] == pytest.approx(loss, abs=1e-2)
    assert scores["1-gram"]["test"]["accuracy"] == pytest.approx(0.5, abs=0.01)


def test_hidden_tokens_are_guessed_from_both_sides(tmp_path):
    """Every second token is the one before it again: a neighbour tells, and it may be the right one."""
    rng = np.random.default_rng(0)
    text = tmp_path / "text.txt"
    text.write_text("".join(letter + letter.upper() for letter in rng.choice([*"abcdefgh"], 9000)))
    task = {"data__task": "masked_language_modelling", "model__architecture": "encoder"}
    scores, _ = scores_of(data__source=str(text), **task)
    one, two, three = (scores[f"{n}-gram"]["test"]["loss"] for n in (1, 2, 3))
    assert one == pytest.approx(np.log(16), abs=0.05)
    assert two < 0.75 * one  # the left neighbour decides capitals
    assert three < 0.5 * one  # the right one the others


@pytest.mark.thorough
def test_labels_are_scored_by_the_majority_a_linear_model_and_neighbours():
    scores, gate = baselines_of(make_task(load_config("configs/digits.py", {})), 1)
    assert gate == "nearest neighbour"
    # Published for scikit-learn's digits, by the mission's review: 1-NN .962.
    assert scores["nearest neighbour"]["test"]["accuracy"] == pytest.approx(0.962, abs=1e-3)
    assert 0.9 < scores["linear model"]["test"]["accuracy"] < 0.95
    assert scores["majority"]["test"]["accuracy"] == pytest.approx(0.1, abs=0.005)
    assert set(scores) == {"majority", "linear model", "nearest neighbour"}


def test_sequences_of_vectors_end_where_they_end(rng, tmp_path):
    """Values beyond the end of a sequence are not read."""
    lengths, labels = rng.integers(2, 6, 300), np.arange(300) % 2
    vectors = rng.normal(size=(300, 6, 2)).astype(np.float32)
    vectors[:, 0, 0] += 3 * labels
    beyond = np.arange(6)[None, :] >= lengths[:, None]
    vectors[beyond] += 1000 * rng.normal(size=(int(beyond.sum()), 2))
    np.savez(tmp_path / "v.npz", vectors=vectors, labels=labels, lengths=lengths)
    task = {"data__task": "vector_classification", "model__architecture": "encoder"}
    scores, gate = scores_of(data__source=str(tmp_path / "v.npz"), **task)
    assert gate == "linear model"
    assert scores["linear model"]["test"]["accuracy"] > 0.8


def test_a_made_up_language_tells_its_floor():
    scores, gate = scores_of(data__task="synthetic", data__source="markov", data__length="32")
    assert gate == "4-gram"
    floor = scores["known floor"]["test"]["loss"]
    assert floor < scores["2-gram"]["test"]["loss"] < scores["1-gram"]["test"]["loss"]
    assert best_and_guess(scores, "loss") == (floor, scores["1-gram"]["test"]["loss"])
    assert best_and_guess(scores, "accuracy") == (1.0, scores["1-gram"]["test"]["accuracy"])


def test_texts_shorter_than_an_n_gram_have_shorter_ones():
    scores, gate = scores_of(data__task="synthetic", data__source="modular_addition")
    assert [name for name in scores if name.endswith("gram")] == [f"{n}-gram" for n in (1, 2, 3, 4)]
    assert gate == "4-gram"
    (one,) = NGrams.of_rows(np.array([[NOTHING, 1], [NOTHING, 2], [NOTHING, 1]]), 3)
    chances = np.exp(one.log_probabilities(np.zeros((1, 0), int), np.array([1])))
    assert chances[0] > 0.5


def test_a_task_of_other_inputs_has_no_baseline():
    class Other(Classification):
        def batch(self, seed, step):
            return {"inputs": {"graph": np.ones(2)}, "targets": np.ones(2, int), "weights": 1}

    nothing: dict = {}
    task = Other(nothing, nothing, (), nothing, 2, nothing, counted="graphs", facts={})
    assert baselines_of(task, 1) == ({}, None)


def test_a_base_no_better_than_the_simple_method_passes_in_one_look_of_twenty(rng):
    """Simulated: 4,000 bases whose true score is that of the method, for each number of seeds."""
    for seeds in (2, 3, 5, 8):
        share = np.mean([passed(values, 0.0, True) for values in rng.normal(size=(4000, seeds))])
        assert abs(share - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 4000)
    values = rng.normal(0.3, 1, 6)
    is_above = stats.ttest_1samp(values, 0, alternative="greater").pvalue <= 0.05
    assert passed(values, 0.0, True) == is_above
    assert passed(-values, 0.0, False) == is_above
    assert passed([0.9], 0.8, True)
    assert not passed([0.8], 0.8, True)
    assert not passed([], 0.8, True)


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ([1.7, 1.71, 1.7], "better than 1.8, the score of a 4-gram model"),
        ([1.6, 1.9], "not surely better than 1.8"),
        ([2.0, 2.0], "no better than 1.8"),
        ([], ""),
    ],
)
def test_what_came_of_a_gate_is_told_in_words(values, told):
    gate = {"method": "4-gram", "metric": "loss", "split": "test", "score": 1.8, "reason": "usual"}
    found = judging.whether_learned(gate, values)
    assert told in found["told"]
    assert found["passed"] == told.startswith("better")


@pytest.mark.parametrize(
    ("base", "arm", "found"),
    [
        ([0.99, 1.0], [1.0, 1.0], "within 0.02 of 1"),
        ([0.99, 1.0], [0.9, 0.9], ""),
        ([0.51, 0.5], [0.5, 0.5], "0.02 better than 0.5"),
        ([0.49, 0.5], [0.6, 0.6], ""),
        ([], [0.6], ""),
    ],
)
def test_both_ends_of_a_metric_are_known(base, arm, found):
    told = at_an_end(base, arm, 1.0, 0.5, 0.02, True)
    assert (found in told) if found else not told
    turned = at_an_end([-v for v in base], [-v for v in arm], -1.0, -0.5, 0.02, False)
    assert bool(turned) == bool(told)
    assert not at_an_end(base, arm, None, None, 0.02, True)


def test_a_study_may_seal_another_gate_with_its_reason(tmp_path):
    assert load_design(study_file(tmp_path / "a")).sealed()["gate"] is None
    design = load_design(study_file(tmp_path / "b", gate={"by": "2-gram", "reason": "12 updates"}))
    assert design.sealed()["gate"] == ["2-gram", "12 updates"]
    scores = {"2-gram": {"test": {"loss": 2.5}}, "4-gram": {"test": {"loss": 1.8}}}
    wanted = {"method": "2-gram", "metric": "loss", "split": "test", "score": 2.5}
    wanted |= {"reason": "12 updates"}
    assert wanted.items() <= gate_of(design.sealed()["gate"], "4-gram", scores).items()
    assert gate_of(None, "4-gram", scores)["score"] == 1.8
    assert gate_of(None, None, {}) is None
    with pytest.raises(InvalidInput, match=r"'majority' does not apply to this .* one of 2-gram"):
        gate_of(("majority", "x"), "4-gram", scores)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gate": {"by": "4gram", "reason": "x"}}, "did you mean 4-gram"),
        ({"gate": {"by": "4-gram"}}, "gate.reason is missing"),
        ({"gate": {"by": "4-gram", "reason": "x"}, "target": 1.0}, "not allowed together with a t"),
        ({"gate": "4-gram"}, "gate='4-gram': Input should be a valid dict"),
    ],
)
def test_a_wrong_gate_is_refused(tmp_path, changes, words):
    with pytest.raises(InvalidInput, match=words):
        load_design(study_file(tmp_path, **changes))


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """A study whose base learns all that there is, on a text in which each token tells the next."""
    folder = tmp_path_factory.mktemp("taught")
    (folder / "text.txt").write_text("abcdefgh" * 600)
    path = Path(study_file(folder, gate={"by": "1-gram", "reason": "60 updates"}, margin=0.5))
    source = f"config.data.source = {str(folder / 'text.txt')!r}"
    more = f"{source}\n    config.optimizer.learning_rate = 0.01\n    config.training.steps = 60"
    path.write_text(path.read_text().replace("config.training.steps = 12", more))
    return run(load_design(str(path)), folder / "runs" / "taught", range(3), progress=Silent())


@pytest.fixture
def again(taught, tmp_path):
    """A copy of the study, which may be written to."""
    shutil.copytree(taught.path.parent, tmp_path / "runs")
    return load_study(tmp_path / "runs" / "taught")


def test_a_base_above_its_gate_gets_verdicts_and_one_below_none(taught, again):
    verdicts, known = taught.verdicts(), taught.record["baselines"]
    assert known["gate"]["method"] == "1-gram"
    assert known["scores"]["2-gram"]["test"]["loss"] < 0.1
    assert set(FLOORS) & set(known["scores"]) == {"1-gram"}
    assert list(known["scores"]) == [f"{n}-gram" for n in range(1, 7)]
    assert verdicts["learned"]["passed"]
    assert verdicts["arms"]["none"]["verdict"] not in ("cannot tell", "refused")
    assert "Has the base learned?" in (taught.path / "report.html").read_text()
    again.record["baselines"]["gate"]["score"] = 1e-3
    found = judging.judge_study(again)
    assert not found["learned"]["passed"]
    assert found["arms"]["none"]["words"] == "cannot tell: the base has not learned"
    assert found["arms"]["none"]["differences"] == verdicts["arms"]["none"]["differences"]


def test_a_gate_that_was_changed_afterwards_takes_the_verdicts_away(taught, again, tmp_path):
    text = (taught.path.parent.parent / "question.py").read_text()
    (tmp_path / "question.py").write_text(text.replace("1-gram", "2-gram"))
    design = load_design(str(tmp_path / "question.py"))
    run(design, again.path, range(3), progress=Silent())
    assert "gate changed" in load_study(again.path).verdicts()["arms"]["none"]["words"]

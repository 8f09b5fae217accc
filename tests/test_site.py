"""The pages of docs/: their Python runs, and they name what there is."""

import importlib
import itertools
import re
import shutil

import jax
import numpy as np
import pytest

from experiments.build_site import _REFERENCE
from tests.conftest import ROOT, attempt, refused
from transformer_jax.studies.design import StudyFile, load_design


def test_a_folder_that_is_no_site_is_not_emptied(tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    for folder in (tmp_path, ROOT, tmp_path / "mine.txt"):
        refused(attempt("build_site", f"--out={folder}"), "expected a new folder, or an earlier")
    assert (tmp_path / "mine.txt").exists()


def python_of(name):
    page = (ROOT / "docs" / name).read_text()
    return "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))


def test_python_examples_run():
    held = {}
    exec(compile(python_of("index.md"), "index.md", "exec"), held)
    assert held["logits"].shape == (8, 64, 65)


@pytest.fixture
def what_a_page_makes(tiny_run, monkeypatch, tmp_path):
    """Runs the Python of a page beside a run named as the README's, and gives what it defines."""
    shutil.copytree(tiny_run, tmp_path / "runs" / "shakespeare")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)

    def run(name):
        held = {}
        exec(compile(python_of(name), name, "exec"), held)
        return held

    return run


@pytest.mark.thorough
def test_the_page_on_weights_does_what_it_says(what_a_page_makes):
    held = what_a_page_makes("weights.md")
    assert held["architecture"] == "GPT2LMHeadModel"
    assert held["text"] == held["run"].sample("ROMEO:", num_tokens=20, temperature=0)
    assert held["log_probs"].shape == (8,)
    config = held["get_config"]()
    assert (config.model.width, config.optimizer.learning_rate) == (32, 5e-5)


@pytest.mark.thorough
def test_the_page_on_loops_of_ones_own_does_what_it_says(what_a_page_makes):
    held = what_a_page_makes("own-loop.md")
    assert held["losses"][-1] < held["losses"][0] - 0.3
    assert all(len(leaf) == 3 for leaf in jax.tree.leaves(held["stacked"]))
    assert held["means"]["loss"] < float(np.log(held["task"].sizes["vocab_size"]))
    assert held["seed_losses"].shape == (3,)
    logits = held["model"].apply({"params": held["trained"]}, held["batch"]["inputs"]["tokens"])
    dense = held["scored_params"]["Dense_0"]
    expected = np.tanh(logits).mean(1) @ dense["kernel"] + dense["bias"]
    np.testing.assert_allclose(held["scores"], expected[:, 0], rtol=1e-4, atol=1e-5)
    assert held["run"].step == held["last"]["step"] == 20


@pytest.mark.thorough
def test_the_recipes_for_looking_inside_do_what_they_say(what_a_page_makes):
    held = what_a_page_makes("inspecting.md")
    assert len(held["several"]) == 2
    assert held["log_probs"].shape == (8,)
    assert held["perplexity"] > 1
    run, heads = held["run"], held["run"].model.options.num_heads
    assert held["before"].shape == held["to_itself"].shape == (heads,)
    assert all(scores.shape == (heads,) for scores in held["induction"].values())
    logits = run.model.apply({"params": run.params}, **held["inputs"])
    np.testing.assert_allclose(held["lens"][held["last"]], logits, atol=1e-5)
    assert not np.allclose(held["lens"]["block_0.residual"], logits, atol=1e-3)
    assert set(held["words"]) == set(held["streams"])
    assert len(held["without"]) == 2 * heads
    assert any(abs(float(effect)) > 1e-6 for effect in held["without"].values())
    # Behind the last block the last place holds everything: patched, it gives the first answer.
    effect, clean = held["effect"], held["clean"]
    assert effect.shape == (2, len(held["tokens"]))
    np.testing.assert_allclose(effect[-1, -1], clean.max(), atol=1e-5)


def test_the_study_on_the_page_is_one_and_every_key_is_told(tmp_path):
    page = (ROOT / "docs" / "comparing.md").read_text()
    (tmp_path / "gates.py").write_text(re.search(r"```python\n(.*?)```", page, re.DOTALL)[1])
    told = load_design(str(tmp_path / "gates.py"))
    assert list(told.arms) == ["mlp", "gated", "relu"]
    assert told.expected["relu"] == (None, 0.01)
    table = page.split("| key | meaning |")[1].partition("\n\n")[0]
    named = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(named))) == set(StudyFile.model_fields)


def test_the_messages_that_troubles_are_looked_up_by_are_said_somewhere():
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    code = "".join(path.read_text() for path in (ROOT / "transformer_jax").rglob("*.py"))
    quoted = re.findall(r"^\| `(.+?)` \|", page, re.MULTILINE)
    assert len(quoted) >= 5
    for message in quoted:
        assert message.partition(" ...")[0] in code, message


def test_the_reference_names_modules_that_are_there():
    for module in itertools.chain.from_iterable(_REFERENCE.values()):
        importlib.import_module(f"transformer_jax.{module}")


def test_studies_say_their_command_and_time():
    for path in sorted((ROOT / "configs" / "ablations").glob("[!_]*.py")):
        text = path.read_text()
        assert f"--config=configs/ablations/{path.name}" in text, path
        assert re.search(r"Takes: +.*(second|minute)", text), path

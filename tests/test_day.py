"""What a researcher types, and what they get: names, short runs, words of other tools."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.__main__ import commands
from experiments.command import default_workdir, preset
from tests.conftest import ROOT, TINY, attempt, command, refused
from transformer_jax import load_run
from transformer_jax.data.tokenizers import ByteTokenizer
from transformer_jax.errors import InvalidInput
from transformer_jax.options.other_names import OTHER_NAMES
from transformer_jax.options.rule import suggest
from transformer_jax.options.schema import RULES
from transformer_jax.runs.pictures import loss_in_a_line
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.running import study_progress
from transformer_jax.training import run as run_module

FAST = ["--config.data.length=16", "--config.model.max_length=16", "--config.model.width=16"]


# ---------------------------------------------------------------- before it begins

BLOCKED = """
import sys


class Blocked:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "{package}":
            raise {error}


sys.meta_path.insert(0, Blocked)
"""


@pytest.mark.parametrize(
    ("package", "arguments", "extra"),
    [
        ("ml_collections", ("train", "--config=tiny"), "train"),
        ("optax", ("train", "--config=tiny", "--dry_run"), "train"),
    ],
)
def test_a_missing_package_is_one_line_that_names_the_extra(package, arguments, extra, tmp_path):
    error = f"ModuleNotFoundError('gone', name='{package}')"
    (tmp_path / "sitecustomize.py").write_text(BLOCKED.format(package=package, error=error))
    done = command(*arguments, PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    refused(done, f"needs the package {package}: pip install 'transformer_jax[{extra}]'")
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_while_a_command_is_imported_is_one_word(tmp_path):
    text = BLOCKED.format(package="ml_collections", error="KeyboardInterrupt")
    (tmp_path / "sitecustomize.py").write_text(text)
    done = command("train", "--config=tiny", PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}")
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


# ---------------------------------------------------------------- waiting


def test_how_long_a_study_takes_is_no_wild_guess_in_its_first_minute(monkeypatch):
    """A compiler that takes ten seconds before the first of many steps is no slow machine."""
    now = [0.0]
    monkeypatch.setattr(study_progress.time, "monotonic", lambda: now[0])
    board = study_progress.StudyProgress(Silent(), {"a": 300.0, "b": 300.0}, 2)
    now[0], board._shares["a"] = 10.0, 1 / 2000
    assert 600 < board._seconds_left() < 720
    now[0], board._shares["a"] = 610.0, 1.0  # it takes twice as long as was expected
    assert 500 < board._seconds_left() < 600
    now[0], board._shares["b"] = 1210.0, 1.0
    assert board._seconds_left() == 0


# ---------------------------------------------------------------- names


def test_the_list_of_commands_is_whole():
    found = commands()
    assert found["train"] == "Trains what a config describes; the same command again resumes."
    named = {path.stem for path in (ROOT / "experiments").glob("*.py")}
    assert set(found) - {"course"} < named
    for name in ("ablate", "course", "sample", "compare", "runs", "plan"):
        assert found[name].endswith("."), name
    assert "bench_programs" not in found, "a library, no command"
    result = attempt("__main__")
    assert result.returncode == 0
    assert all(told in result.stdout for told in found.values())
    refused(attempt("__main__", "trian"), "trian: no such command; did you mean train?")


def test_a_config_may_be_called_by_its_name(tmp_path):
    assert preset("tiny") == "configs/tiny.py"
    assert preset("positions") == "configs/ablations/positions.py"
    assert preset("configs/tiny.py") == "configs/tiny.py"
    with pytest.raises(
        InvalidInput, match=r"--suite=digts: no such file, .* did you mean digits\?"
    ):
        preset("digts", "--suite")
    refused(attempt("train", "--config=tinny"), "--config=tinny: no such file", "tiny?")


@pytest.mark.parametrize(
    ("overrides", "folder"),
    [
        ({}, "runs/tiny"),
        ({"model.depth": "3", "seed": "1"}, "runs/tiny,depth=3,seed=1"),
        ({"data.source": "../my text.txt"}, "runs/tiny,source=.._my_text.txt"),
        (
            {"evaluation.every": "5", "logging.every": "5", "seed": "1"},
            "runs/tiny,evaluation.every=5,logging.every=5,seed=1",
        ),
    ],
)
def test_a_run_without_a_directory_is_named_for_what_it_is(overrides, folder):
    assert default_workdir("configs/tiny.py", overrides) == folder


def test_long_names_stay_apart():
    many = {f"model.option{n}": "x" * 20 for n in range(9)}
    other = many | {"model.option8": "y"}
    names = {default_workdir("configs/tiny.py", o) for o in (many, other)}
    assert len(names) == 2
    assert all(len(name) <= 105 for name in names)


def test_help_is_short_and_says_more_of_what_is_asked():
    whole = attempt("train", "--help")
    assert whole.returncode == 0
    assert len(whole.stdout.splitlines()) < 60
    for words in ("--workdir", "--dry_run", "  model ", "  optimizer ", "--help=SECTION"):
        assert words in whole.stdout
    one = attempt("train", "--help=model.position")
    assert one.returncode == 0
    assert one.stdout.startswith("  --config.model.position=learned\n")
    assert one.stdout.count("--config.") == 1
    assert attempt("train", "--help", "model.position").stdout == one.stdout
    section = attempt("ablate", "--help=optimizer")
    assert "--config.optimizer.weight_decay=" in section.stdout
    assert "--config.model.width" not in section.stdout
    refused(attempt("train", "--help=modle"), "--help=modle: no such option; did you mean model?")
    refused(attempt("train", "--help=n_layer"), "did you mean model.depth?")


# ---------------------------------------------------------------- words of other tools


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names_lead_to_options_that_are_there(name):
    key, equals, value = OTHER_NAMES[name].partition("=")
    assert name == name.lower()
    assert key in RULES
    assert not equals or RULES[key].accepts(RULES[key].parse(value))


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--config.model.n_layer=3", "did you mean model.depth?"),
        ("--config.hidden_size=3", "did you mean model.width?"),
        ("--config.rope=1", "did you mean model.position=rotary?"),
        ("--config.training.epochs=3", "did you mean training.steps?"),
        ("--config.optimizer.lr=3", "did you mean optimizer.learning_rate?"),
        ("--lr=3", "--lr: no such flag; did you mean --config.optimizer.learning_rate?"),
        ("--config.model.position=rope", "did you mean rotary?"),
        ("--config.optimizer.name=AdamW", "did you mean adamw?"),
        ("--config.optimizer.name=adamW", "did you mean adamw?"),
        ("--config.model.activation=swiglu", "did you mean model.feed_forward=gated?"),
        ("--config.model.norm=RMSNorm", "did you mean rms_norm?"),
        ("--config.schedule.name=cosine", "did you mean warmup_cosine?"),
        ("--config.sampling.num_tokens=3", "did you mean sample.num_tokens?"),
        ("--config.model.layer_types.G.position=rope", "did you mean rotary?"),
    ],
)
def test_words_of_the_field_are_understood(flag, told, tmp_path):
    result = attempt("train", f"--config={TINY}", f"--workdir={tmp_path / 'run'}", flag)
    refused(result, told)
    assert not (tmp_path / "run").exists()


def test_a_word_of_the_field_is_no_name_of_something_else():
    assert suggest("rope", ["hope", "study"]) == "; did you mean hope?"


# ---------------------------------------------------------------- short runs


def test_a_run_shorter_than_its_warm_up_gets_a_shorter_one_and_says_it(tmp_path):
    arguments = (f"--config={TINY}", f"--workdir={tmp_path / 'run'}", "--config.training.steps=5")
    told = attempt("train", *arguments, "--config.model.widht=3")
    refused(told, "model.widht")
    note = "note   schedule.warmup_cosine.warmup_steps=1: the same share of 5 updates as 10 of 50"
    assert note in told.stdout
    assert "warmup_steps" not in told.stderr
    stated = attempt("train", *arguments, "--config.schedule.warmup_cosine.warmup_steps=9")
    refused(stated, "warmup_steps=9: expected less than training.steps=5")
    assert "note" not in stated.stdout


def test_a_dry_run_says_what_it_would_train_and_writes_nothing(tmp_path):
    result = attempt(
        "train", f"--config={TINY}", f"--workdir={tmp_path / 'run'}", *FAST, "--dry_run"
    )
    assert result.returncode == 0, result.stderr
    assert "parameters; " in result.stdout
    assert "dry run: nothing was written" in result.stdout
    assert not (tmp_path / "run").exists()


def test_fast_does_everything_once_and_keeps_nothing(tmp_path):
    result = attempt("train", f"--config={TINY}", *FAST, "--fast")
    assert result.returncode == 0, result.stderr
    assert "step 2/2" in result.stdout
    assert "nothing was kept" in result.stdout
    for other in (f"--workdir={tmp_path}", "--dry_run"):
        refused(attempt("train", f"--config={TINY}", other, "--fast"), "--fast keeps nothing")
    refused(attempt("train", f"--config={TINY}", "--extend"), "--extend: say with --workdir")


def test_a_loss_is_seen_in_one_line():
    rows = [{"step": n, "train/loss": 4.0 - 0.03 * n} for n in range(1, 101)]
    assert loss_in_a_line(rows, width=8) == "█▇▆▅▄▃▂▁ 3.81 to 1.18"
    assert loss_in_a_line([{"step": 1, "train/loss": 2.0}, {"step": 2, "train/loss": 2.0}]) == (
        "▁▁ 2 to 2"
    )
    broken = [{"step": 3, "train/loss": float("nan")}, {"step": 4, "eval/loss": 1.0}]
    assert loss_in_a_line(rows[:1] + broken) == ""


# ---------------------------------------------------------------- a run in one's own code


@pytest.fixture(scope="module")
def loaded(tiny_run):
    return load_run(tiny_run)


def test_a_run_prints_as_three_lines(loaded):
    told = repr(loaded)
    assert len(told.splitlines()) == 3
    count = sum(leaf.size for leaf in jax.tree.leaves(loaded.params))
    assert told.startswith(f"Run: decoder, {count:,} parameters (width ")
    assert "shakespeare for 50 updates" in told


def test_a_run_draws_its_losses(loaded, tmp_path):
    figure = loaded.plot()
    (axes,) = figure.axes
    drawn = {line.get_label(): line.get_xydata() for line in axes.lines}
    rows = [row for row in loaded.metrics if "eval/loss" in row]
    expected = [[row["step"], row["eval/loss"]] for row in rows]
    np.testing.assert_allclose(drawn["validation split"], expected)
    figure.savefig(tmp_path / "loss.png")
    with pytest.raises(InvalidInput, match="was not trained here"):
        dataclasses.replace(loaded, metrics=()).plot()


def test_several_prompts_are_continued_each_by_itself(loaded):
    texts = loaded.sample(["ROMEO:", "JULIET", "ROMEO:"], 12, seed=3)
    assert [len(text) for text in texts] == [12, 12, 12]
    assert texts[0] != texts[2], "draws of their own"
    assert texts == loaded.sample(["ROMEO:", "JULIET", "ROMEO:"], 12, seed=3)
    with pytest.raises(InvalidInput, match="at least one text"):
        loaded.sample([])


def test_a_text_ends_before_what_stops_it(loaded):
    whole = loaded.sample("ROMEO:", 40, seed=3)
    first, other = whole[7:9], whole[3:5]
    assert loaded.sample("ROMEO:", 40, seed=3, stop=first) == whole[: whole.find(first)]
    early = min(whole.find(first), whole.find(other))
    assert loaded.sample("ROMEO:", 40, seed=3, stop=[first, other]) == whole[:early]
    assert loaded.sample("ROMEO:", 40, seed=3, stop="§") == whole
    with pytest.raises(InvalidInput, match="stop: expected strings that are not empty"):
        loaded.sample("ROMEO:", 4, stop="")


def test_a_text_comes_as_it_is_drawn(loaded, tiny_run):
    whole = loaded.sample("ROMEO:", 40, seed=3)
    pieces = list(loaded.stream("ROMEO:", 40, seed=3))
    assert "".join(pieces) == whole
    assert len(pieces) == 5
    stop = whole[17:19]
    assert "".join(loaded.stream("ROMEO:", 40, seed=3, stop=stop)) == whole[: whole.find(stop)]
    with pytest.raises(InvalidInput, match="stop: expected strings that are not empty"):
        list(loaded.stream("ROMEO:", 4, stop=[""]))
    done = attempt(
        *("sample", f"--workdir={tiny_run}", "--prompt=ROMEO:", "--num_tokens=40", "--seed=3"),
        f"--stop={stop}",
    )
    assert done.stdout == "ROMEO:" + whole[: whole.find(stop)] + "\n"


def test_no_character_and_no_stop_string_is_split(loaded, monkeypatch):
    """Each token is a byte here: é has two, the emoji four."""
    text = "an été 🌞, the end; more"
    tokens = np.frombuffer(text.encode(), np.uint8).astype(np.int32)
    monkeypatch.setattr(run_module, "stream_from", lambda *_, **__: iter(tokens[:, None]))
    of_bytes = dataclasses.replace(loaded, tokenizer=ByteTokenizer())
    pieces = list(of_bytes.stream("x", len(tokens)))
    assert "".join(pieces) == text
    assert pieces == list(text)
    cut = list(of_bytes.stream("x", len(tokens), stop=["the end", "§"]))
    assert cut == ["a", "n", " ", "é", "té", " ", "🌞", ",", " "], "what may stop it has to wait"
    monkeypatch.setattr(run_module, "stream_from", lambda *_, **__: iter(tokens[:4, None]))
    assert "".join(of_bytes.stream("x", 4)) == "an \N{REPLACEMENT CHARACTER}", "as sample has it"


def test_how_likely_a_text_is(loaded):
    text = "What light throug"
    tokens = jnp.asarray(loaded.tokenizer.encode(text))[None]
    logits = loaded.model.apply({"params": loaded.params}, tokens[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])[0]
    np.testing.assert_allclose(loaded.log_probabilities(text), -losses, atol=1e-5)
    assert loaded.perplexity(text) == pytest.approx(float(jnp.exp(losses.mean())), rel=1e-5)
    choices = loaded.log_probabilities_of_choices(text[:10], [text[10:], text[10:12]])
    np.testing.assert_allclose(choices, [-losses[9:].sum(), -losses[9:11].sum()], atol=1e-4)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda run: run.log_probabilities("R"), "expected a text of 2 to"),
        (lambda run: run.perplexity("R" * 500), r"got 500"),
        (lambda run: run.log_probabilities_of_choices("R", []), "at least one text"),
        (lambda run: run.log_probabilities_of_choices("R", ["a", ""]), "texts that are not empty"),
        (lambda run: run.log_probabilities_of_choices("R", "ab"), "expected a list of texts"),
        (lambda run: run.log_probabilities_of_choices("", ["ab"]), "prompt: expected a text"),
    ],
)
def test_texts_without_a_probability_are_refused(loaded, call, told):
    with pytest.raises(InvalidInput, match=told):
        call(loaded)

"""A researcher's commands: names, short runs, words of other tools."""

import dataclasses
import datetime
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import version

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import experiments
from experiments.__main__ import commands
from experiments.command import default_workdir, preset
from tests.conftest import ROOT, TINY, attempt, command, refused, run_python, tiny_config
from transformer_jax import load_run
from transformer_jax.config_files import flatten
from transformer_jax.errors import InvalidInput, require
from transformer_jax.resolve import option_for, read_instead, unknown_key
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.garbage import delete, find_garbage
from transformer_jax.runs.listing import columns_of
from transformer_jax.runs.notebook import html_table
from transformer_jax.studies.design import load_design
from transformer_jax.studies.running import run
from transformer_jax.suggestions import OTHER_NAMES
from transformer_jax.training.choices import Item, score_items

FAST = ["--config.data.length=16", "--config.model.max_length=16", "--config.model.width=16"]


BLOCKED = """
import sys


class Blocked:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == "{package}":
            raise {error}


sys.meta_path.insert(0, Blocked)
"""


@pytest.mark.parametrize("package", ["ml_collections", "optax"])
def test_a_missing_package_is_one_line_that_names_the_extra(package, tmp_path):
    error = f"ModuleNotFoundError('gone', name='{package}')"
    (tmp_path / "sitecustomize.py").write_text(BLOCKED.format(package=package, error=error))
    paths = f"{tmp_path}{os.pathsep}{ROOT}"
    done = command("train", "--config=tiny", "--dry_run", PYTHONPATH=paths)
    refused(done, f"needs the package {package}: pip install -e '.[train]'")
    assert len(done.stderr.splitlines()) == 1


def test_what_needs_a_package_names_it_and_the_extra():
    require("json", "reading")
    with pytest.raises(InvalidInput, match=r"writing needs nowhere: pip install -e '.\[slurm\]'"):
        require("nowhere", "writing", "slurm")


RUN, CELL, OTHER = "cells/exp/run", f"cells/{'a' * 16}/s0", f"cells/{'c' * 16}/s0"


@pytest.fixture
def room(tiny_run, tmp_path):
    """A folder with a run that is none of a study's, two cells, and what killed processes left."""
    for name in (RUN, CELL, OTHER):
        shutil.copytree(tiny_run, tmp_path / name)
    for name in (".writing-00000050-1", "damaged-00000010"):
        folder = tmp_path / RUN / "checkpoints" / name
        folder.mkdir()
        (folder / "part").write_bytes(bytes(1 << 20))
    for name in (".STATUS-123", ".backup-2024", "damaged-analysis"):  # the others are a user's own
        (tmp_path / RUN / name).write_text("half")
    return tmp_path


def test_room_is_freed_of_what_is_broken_and_of_nothing_else(room):
    before = sorted(room.rglob("*"))
    told = attempt("runs", "gc", room)
    assert told.returncode == 0, told.stderr
    assert sorted(room.rglob("*")) == before, "without a terminal nothing is deleted unasked"
    assert "nothing was deleted; --yes deletes these 2.0 MiB" in told.stdout
    broken = {".writing-00000050-1", "damaged-00000010", ".STATUS-123"}
    for name in broken:
        assert name in told.stdout
    assert attempt("runs", "gc", room, "--yes").stdout.endswith("freed 2.0 MiB\n")
    gone = {path.name for path in set(before) - set(room.rglob("*"))}
    assert gone == broken | {"part"}
    assert "nothing to free" in attempt("runs", "gc", room).stdout
    assert load_run(room / RUN).step == 50


def test_checkpoints_of_cells_are_freed_where_it_is_asked_for(room):
    scores = (room / CELL / "evaluation.json").read_text()
    attempt("runs", "gc", room, "--checkpoints", "--yes")
    assert not (room / CELL / "checkpoints").exists()
    assert (room / CELL / "evaluation.json").read_text() == scores
    assert load_run(room / RUN).step == 50, "no cell, whatever its folder is called"


def test_a_full_disk_is_no_traceback(monkeypatch):
    def full(arguments):
        raise OSError(errno.ENOSPC, "No space left on device", "runs/study.json")

    monkeypatch.setattr("experiments.runs.main", full)
    ended = attempt("runs", "ls")
    assert ended.returncode == 1
    assert ended.stderr.startswith("error: runs/study.json: No space left on device; what was")


def test_nothing_is_taken_from_what_trains_or_lies_behind_links(room, tmp_path_factory):
    now = datetime.datetime.now(datetime.UTC).isoformat()
    for busy in (RUN, CELL):
        (room / busy / "STATUS").write_text(f"running {now} step 5\n")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(room / OTHER, elsewhere / "run")
    (elsewhere / "run" / ".STATUS-123").write_text("half")
    (room / "linked").symlink_to(elsewhere)
    (elsewhere / "precious").write_text("x")
    (room / OTHER / "checkpoints" / "damaged-00000020").symlink_to(elsewhere)
    attempt("runs", "gc", room, "--checkpoints", "--yes")
    assert (room / RUN / "checkpoints" / "damaged-00000010").exists()
    assert (room / CELL / "checkpoints").exists()
    assert (elsewhere / "precious").exists()
    assert (elsewhere / "run" / ".STATUS-123").exists()
    refused(attempt("runs", "gc", room / "none"), "no such folder")


def test_what_a_process_uses_when_it_would_go_stays(room):
    """A launch that began after the question was asked."""
    found = find_garbage(room, checkpoints=True)
    with RunDirectory(room / RUN).locked():
        freed = delete(found)
    assert 0 < freed < sum(garbage.size for garbage in found)
    assert (room / RUN / "checkpoints" / "damaged-00000010").exists()
    assert not (room / CELL / "checkpoints").exists()


def test_the_list_of_commands_is_whole():
    found = commands()
    assert found["train"] == "Trains a config; the same command resumes."
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


def test_help_is_short_and_says_more_of_what_is_asked():
    def told(*arguments):
        done = attempt(*arguments)
        assert done.returncode == 0
        return done.stdout

    whole = told("train", "--help")
    assert len(whole.splitlines()) < 60
    for words in ("--workdir", "--dry_run", "  model ", "  optimizer ", "--help=SECTION"):
        assert words in whole
    one = told("train", "--help=model.position")
    assert one.startswith("  --config.model.position=learned\n")
    assert one.count("--config.") == 1
    assert told("train", "--help", "model.position") == one
    assert "in translation: 3000" in told("train", "--config=translation", "--help=training.steps")
    section = told("ablate", "--help=optimizer")
    assert "--config.optimizer.weight_decay=" in section
    assert "--config.model.width" not in section
    refused(attempt("train", "--help=modle"), "--help=modle: no such option; did you mean model?")
    refused(attempt("train", "--help=n_layer"), "did you mean model.depth?")


CONSOLE = "from transformer_jax.console import main; main()"


def run_console(script=(CONSOLE,), cwd=ROOT, **environment):
    return run_python("-c", *script, cwd=cwd, **environment)


@pytest.mark.parametrize(
    ("typed", "offered", "other"),
    [
        ("tr", ["train", "try_change"], "trian"),
        ("train --wo", ["--workdir"], "--json"),
        ("train --config=ti", ["tiny"], "shakespeare"),
        ("train --config=tiny --config.model.pos", ["--config.model.position"], "--config.seed"),
        ("train --config=tiny --config.model.position=ro", ["rotary"], "learned"),
        ("runs ", ["ls", "show", "gc"], "train"),
        ("runs ls --so", ["--sort"], "--port"),
    ],
)
def test_the_tab_key_completes(typed, offered, other, tmp_path):
    line = f"transformer-jax {typed}"
    asked = {"COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE": "1"}
    asked |= {"_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_COMP_WORDBREAKS": " ="}
    done = run_console(**asked, _ARGCOMPLETE_STDOUT_FILENAME=str(tmp_path / "told"))
    assert done.returncode == 0, done.stderr
    words = {word.strip() for word in (tmp_path / "told").read_text().split("\n")}
    assert set(offered) <= words
    assert other not in words


def test_the_command_works_in_any_folder(tmp_path):
    told = attempt("__main__").stdout
    assert run_console().stdout == run_console(cwd=tmp_path).stdout == told
    (tmp_path / "transformer_jax").symlink_to(ROOT / "transformer_jax")
    alone = "import sys; root = sys.argv.pop(); sys.path[:] = [p for p in sys.path if p != root]\n"
    elsewhere = run_console((alone + CONSOLE, str(ROOT)), tmp_path, PYTHONPATH=str(tmp_path))
    refused(elsewhere, "no experiments/ here")
    entry = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert entry == {"transformer-jax": "transformer_jax.console:main"}


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_other_names_lead_to_options_that_are_there(name):
    key, equals, value = OTHER_NAMES[name].partition("=")
    assert name == name.lower()
    option = option_for(key, {})
    assert option is not None
    assert not equals or option.accepts(option.parse(value))


@pytest.mark.parametrize(
    ("flag", "told"),
    [
        ("--config.model.n_layer=3", "did you mean model.depth?"),
        ("--config.hidden_size=3", "did you mean model.width?"),
        ("--config.model.dropout=0.1", "did you mean model.dropout_rate?"),
        ("--config.training.precision=bf16", "did you mean model.dtype?"),
        ("--config.optimizer.lr=3", "did you mean optimizer.learning_rate?"),
        ("--config.rope=1", "did you mean model.position=rotary?"),
        ("--config.training.epochs=3", "did you mean training.steps?"),
        ("--config.model.rope_theta=5", "did you mean model.position_options.max_wavelength?"),
        ("--config.training.warmup_steps=3", "did you mean schedule.warmup_steps?"),
        ("--config.sampling.num_tokens=3", "did you mean sample.num_tokens?"),
        ("--lr=3", "--lr: no such flag; did you mean --config.optimizer.learning_rate?"),
        ("--config.model.position=rope", "did you mean rotary?"),
        ("--config.model.layer_types.G.position=rope", "did you mean rotary?"),
        ("--config.optimizer.name=adamW", "did you mean adamw?"),
        ("--config.model.activation=swiglu", "did you mean model.feed_forward=gated?"),
        ("--config.model.norm=RMSNorm", "did you mean rms_norm?"),
        ("--config.schedule.name=cosine", "did you mean warmup_cosine?"),
    ],
)
def test_words_of_the_field_are_understood(flag, told, tmp_path):
    result = attempt("train", f"--config={TINY}", f"--workdir={tmp_path / 'run'}", flag)
    refused(result, told)
    assert not (tmp_path / "run").exists()


def test_a_run_shorter_than_its_warm_up_gets_a_shorter_one_and_says_it(tmp_path):
    arguments = (f"--config={TINY}", f"--workdir={tmp_path / 'run'}", "--config.training.steps=5")
    told = attempt("train", *arguments, "--config.model.widht=3")
    refused(told, "model.widht")
    note = "note   schedule.warmup_steps=1: the same share of 5 updates as 10 of 50"
    assert note in told.stdout
    assert "warmup_steps" not in told.stderr
    stated = attempt("train", *arguments, "--config.schedule.warmup_steps=9")
    refused(stated, "warmup_steps=9: expected less than training.steps=5")
    assert "warmup_steps" not in stated.stdout


def test_a_short_run_is_evaluated_often_enough_and_a_dry_run_writes_nothing(tmp_path):
    run = (f"--workdir={tmp_path / 'run'}", "--config.training.steps=40", "--dry_run")
    shorter = attempt("train", f"--config={TINY}", *run)
    assert shorter.returncode == 0, shorter.stderr
    assert "note   evaluation.every=8" in shorter.stdout
    assert "parameters; " in shorter.stdout
    assert "dry run: nothing was written" in shorter.stdout
    stated = attempt("train", f"--config={TINY}", *run, "--config.evaluation.every=20")
    assert "evaluation.every" not in stated.stdout
    assert not (tmp_path / "run").exists()


def test_margin_and_gate_may_be_given_with_arms(tmp_path):
    arms = ["model.depth=1"]
    design = load_design(TINY, {}, arms, margin=0.05, gate="1-gram")
    assert (design.margin, design.gate.by) == (0.05, "1-gram")
    assert design.question == "How does the loss depend on depth?"
    smoothed = load_design(TINY, {}, ["objective.smoothing=0,0.1"])  # the config states none
    assert (smoothed.base, smoothed.others) == ("smoothing=0", ["smoothing=0.1"])
    flags = (f"--config={TINY}", f"--workdir={tmp_path}")
    refused(attempt("ablate", *flags), "get_arms", "--arm")
    refused(attempt("ablate", *flags, "--arm=model.depth=1", "--margin=-1"), "margin=-1.0")
    refused(attempt("ablate", *flags, "--arm=model.depth=1", "--gate=2-grm"), "2-gram")
    refused(attempt("ablate", *flags, "--margin=0.1"), "--margin=0.1: needs --arm")


def test_options_in_which_runs_differ_are_columns():
    shared = {"run": "a", "model.width": 32, "schedule.name": "constant", "data.source": "mine"}
    rows = [
        shared | {"model.position": "learned", "model.position_options.rms": 0.06},
        shared | {"run": "b", "model.position": "rotary", "data.source": "other"},
    ]
    columns = columns_of(rows)
    assert columns[-2:] == ["model.position", "data.source"]
    rows[0]["model.position_options.rms"], rows[1]["model.position_options.rms"] = 0.1, 0.2
    assert columns_of(rows)[-1] == "model.position_options.rms"
    assert columns_of(rows, most=1)[-1] == "model.position"


@pytest.mark.thorough
def test_fast_does_everything_once_and_keeps_nothing(tmp_path):
    result = attempt("train", f"--config={TINY}", *FAST, "--fast")
    assert result.returncode == 0, result.stderr
    assert "step 2/2" in result.stdout
    assert "nothing was kept" in result.stdout
    for other in (f"--workdir={tmp_path}", "--dry_run"):
        refused(attempt("train", f"--config={TINY}", other, "--fast"), "--fast: not allowed with")
    refused(attempt("train", f"--config={TINY}", "--extend"), "--extend: expected --workdir=DIR")


@pytest.fixture(scope="module")
def loaded(tiny_run):
    return load_run(tiny_run)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A small study; read it, never write to it."""
    design = load_design(TINY, {"training.steps": "12"}, ["model.depth=1,2"])
    return run(design, tmp_path_factory.mktemp("study") / "study", (0, 1, 2))


def test_a_run_and_a_study_show_themselves_in_a_notebook(loaded, study):
    shown = loaded._repr_html_()
    assert "<td>training.steps</td><td>50</td>" in shown
    assert shown.startswith("<p>Run: decoder, ")
    assert repr(study).startswith(f"Study: {study.sealed['question']}\n  2 arms x 3 seeds, ")
    shown = study._repr_html_()
    words = study.verdicts()["arms"]["depth=1"]["words"]
    assert f"<td>{words}</td>" in shown
    assert f"<th>compared with {study.base}</th>" in shown
    evil = html_table("<b>", ["<i>"], [["<script>"]])
    assert not {"<b>", "<i>", "<script>"} & set(re.findall("<[^>]*>", evil))


def test_a_study_of_other_arms_in_the_directory_is_refused_before_the_plan(study):
    assert study.base == "depth=2"
    flags = (f"--config={TINY}", f"--workdir={study.path}", "--seeds=1")
    other = attempt("ablate", *flags, "--arm=model.num_heads=1,4")
    refused(other, "holds a study of depth=2, depth=1")
    assert "parameters" not in other.stdout


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
    for wrong in ("", [7], 7):
        with pytest.raises(InvalidInput, match="stop: expected non-empty strings"):
            loaded.sample("ROMEO:", 4, stop=wrong)
    with pytest.raises(InvalidInput, match=r"text: expected a string, got \['ROMEO:'\]"):
        loaded.perplexity(["ROMEO:"])


def test_how_likely_a_text_is(loaded):
    text = "What light throug"
    tokens = jnp.asarray(loaded.tokenizer.encode(text))[None]
    logits = loaded.model.apply({"params": loaded.params}, tokens[:, :-1])
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])[0]
    np.testing.assert_allclose(loaded.log_probabilities(text), -losses, atol=1e-5)
    assert loaded.perplexity(text) == pytest.approx(float(jnp.exp(losses.mean())), rel=1e-5)
    (scored,) = score_items(loaded, [Item(text[:10], (text[10:], text[10:12]), 0)], 2)
    sums = [-losses[9:].sum(), -losses[9:11].sum()]
    np.testing.assert_allclose(scored.log_probabilities, sums, atol=1e-4)


def test_an_option_whose_row_is_not_chosen_is_told(tmp_path):
    options = {
        "data.symbols": 9,
        "model.pooling": "max",
        "model.position_options.fraction": 0.5,
        "optimizer.momentum": 0.8,
        "schedule.decay_fraction": 0.3,
    }
    said = [f"--config.{key}={value}" for key, value in options.items()]
    done = attempt("train", f"--config={TINY}", f"--workdir={tmp_path / 'run'}", "--dry_run", *said)
    assert done.returncode == 0, done.stderr
    notes = [line for line in done.stdout.splitlines() if "is not read" in line]
    assert [note.split()[1] for note in notes] == list(options)
    assert notes[-1].endswith("is not read: schedule.name=warmup_cosine")


def test_options_are_read_where_their_row_is_chosen_in_some_layer():
    key, rotary = "model.position_options.fraction", {"model.position": "rotary"}
    t5 = {"model.position": "t5"}
    assert read_instead(key, {})
    assert read_instead(key, t5)
    assert not read_instead(key, rotary)
    assert not read_instead(key, t5 | {"model.layer_types.R.position": "rotary"})
    size = "model.layer_types.L.mask_options.size"  # of layers that see everything
    typed = flatten(tiny_config(model__layers="LG", **{size: "4", "optimizer.momentum": "0.5"}))
    assert read_instead(size, typed) == "model.mask=full"
    assert read_instead("optimizer.momentum", typed) == "optimizer.name=adamw"
    assert not read_instead(size, typed | {"model.layer_types.L.mask": "window"})
    flat = flatten(tiny_config(schedule__name="inverse_square_root"))
    told = unknown_key("training.warmup_steps", flat)
    assert told.endswith("did you mean schedule.warmup_steps?")


def test_a_missing_run_names_the_nearest_and_a_study_is_none(tmp_path, tiny_run):
    shutil.copytree(tiny_run, tmp_path / "dates")
    refused(attempt("sample", f"--workdir={tmp_path / 'datess'}"), "did you mean dates?")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.json").write_text("{}")
    refused(attempt("sample", f"--workdir={tmp_path / 'study'}"), "no run here: it is a study")


def test_a_metric_is_measured_that_a_run_was_not_asked_for(tiny_run):
    run = f"--workdir={tiny_run}"
    done = attempt("evaluate", run, "--metrics=calibration_error", "--json")
    assert done.returncode == 0, done.stderr
    assert "calibration_error" in json.loads(done.stdout)["means"]
    refused(attempt("evaluate", run, "--metrics=calibration"), "calibration_error")


def seeing_ahead(run):
    model = run.model.with_options(mask="prefix", mask_options={"length": 3})
    return dataclasses.replace(run, model=model)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda run: run.log_probabilities("R"), "expected a text of 2 to"),
        (lambda run: run.perplexity("R" * 500), r"got 500"),
        (lambda run: seeing_ahead(run).perplexity("ROMEO"), "sees the tokens that it would have"),
    ],
)
def test_texts_without_a_probability_are_refused(loaded, call, told):
    with pytest.raises(InvalidInput, match=told):
        call(loaded)


@pytest.mark.parametrize(
    ("processor", "jaxlib", "flags"),
    [
        ("vendor_id : GenuineIntel\nflags : fpu avx512f sse", "0.10.2", 3),
        ("vendor_id : AuthenticAMD\nflags : fpu avx512f sse", "0.10.2", 1),
        ("vendor_id : GenuineIntel\nflags : fpu avx2 sse", "0.10.2", 1),
        ("", "0.10.2", 1),
        ("vendor_id : GenuineIntel\nflags : fpu avx512f sse", "0.11.0", 0),  # may not know them
    ],
)
def test_flags_are_for_a_processor_that_was_measured(processor, jaxlib, flags, monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert len(experiments._flags(processor, jaxlib).split()) == flags


@pytest.mark.parametrize("own", [{}, {"XLA_FLAGS": "--xla_cpu_enable_fast_math=false"}])
def test_a_command_keeps_flags_of_its_user(own):
    show = "import os, experiments; print(os.environ.get('XLA_FLAGS', ''))"
    kept = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment = kept | {"JAX_PLATFORMS": "cpu", "GLIBC_TUNABLES": ""} | own
    line = [sys.executable, "-c", show, "-m", "experiments.train"]  # as python -m would begin
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=True)
    ours = experiments._flags(experiments._read("/proc/cpuinfo"), version("jaxlib"))
    assert done.stdout.strip() == own.get("XLA_FLAGS", ours)


def test_options_that_a_complete_run_does_not_take_over_are_told(tiny_run, tmp_path):
    shutil.copytree(tiny_run, tmp_path / "run")
    again = [f"--config={TINY}", "--config.sample.num_tokens=40", f"--workdir={tmp_path / 'run'}"]
    assert "not applied" not in attempt("train", *again).stdout
    told = attempt("train", *again, "--config.evaluation.metrics=exact_match").stdout
    assert "evaluation.metrics is not applied, since the run is complete" in told


def test_an_option_that_is_given_twice_is_told():
    flags = [f"--config={TINY}", "--config.model.depth=1", "--config.model.depth=2", "--device=x"]
    told = attempt("plan", *flags, "--compare=seed=1", "--compare=seed=2").stderr
    assert "note   --config.model.depth is given more than once: the last counts" in told
    assert "--compare" not in told

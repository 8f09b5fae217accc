"""Whole runs: the same bits however they are cut, killed, resumed, logged or evaluated."""

import contextlib
import dataclasses
import errno
import json
import os
import random
import shutil
import signal
import threading
import time
import unittest.mock

import jax
import numpy as np
import pytest

from tests import conftest
from tests.conftest import TINY, attempt, command, fingerprint_of, refused, tree_hash
from transformer_jax import load_run
from transformer_jax.data.tasks.language_modelling import LanguageModelling
from transformer_jax.errors import InvalidInput, Stop
from transformer_jax.runs import checkpoints
from transformer_jax.runs.checkpoints import SaveFailed
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.interruption import Interrupted, StopSignal
from transformer_jax.runs.progress import Progress, Silent
from transformer_jax.training import loop, prepared
from transformer_jax.training.build import make_task
from transformer_jax.training.diagnosis import NonFinite
from transformer_jax.training.evaluation import evaluate, make_score
from transformer_jax.training.loop import Member, train


def run(workdir, progress=None, **overrides):
    return train(conftest.tiny_config(**overrides), workdir, progress or Silent())


@pytest.fixture(scope="module")
def whole(tiny_run):
    return fingerprint_of(tiny_run)


@pytest.fixture
def copy(tiny_run, tmp_path):
    """A copy of the finished run, to be damaged."""
    return shutil.copytree(tiny_run, tmp_path / "copy")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("metrics.jsonl", r"metrics\.jsonl: missing or empty"),
        ("checkpoints", "done but its checkpoints are gone"),
    ],
)
def test_a_done_run_that_lost_a_part_is_refused_and_not_trained_over(copy, part, words):
    (copy / part).rename(copy / "elsewhere")
    for _ in range(2):
        with pytest.raises(InvalidInput, match=words):
            train(RunDirectory(copy).config(), copy, Silent())
    assert RunDirectory(copy).status() == "done"
    assert RunDirectory(copy).metrics() or part == "metrics.jsonl"


def test_a_run_whose_scores_are_damaged_is_scored_again(tiny_run, copy):
    (copy / "evaluation.json").write_text('{"test": ')
    run(copy, sample__num_tokens=40)
    for name in ("evaluation.json", "metrics.jsonl", "STATUS"):
        assert (copy / name).read_text() == (tiny_run / name).read_text(), name


class EndAt(Silent):
    """Ends a run at a step, as a signal or as a fault would."""

    def __init__(self, step, how):
        super().__init__()
        self._step, self._how = step, how

    def step(self, step, *_):
        if step >= self._step:
            self._how()


def terminate():
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture
def one_step_a_call(monkeypatch):
    """So that a run can be ended at any step."""
    monkeypatch.setattr(loop, "_SECONDS_PER_CALL", 0.0)


class Crash(Exception):
    pass


def crash():
    raise Crash("the user's own code")


def test_a_run_of_n_steps_makes_n_updates_and_writes_what_the_design_says(tiny_run, whole):
    step, _, rows = whole
    assert step == 50
    assert [row["step"] for row in rows] == list(range(5, 51, 5))
    assert [row["step"] for row in rows if "eval/loss" in row] == [20, 40, 50]
    assert rows[-1]["eval/loss"] < rows[0]["train/loss"] - 0.3
    assert {"eval/loss", "eval/bits_per_byte", "eval/accuracy", "test/loss"} <= rows[-1].keys()
    directory = RunDirectory(tiny_run)
    assert directory.status() == "done"
    manifest = directory.manifest()
    assert manifest["bitwise"] == "promised"
    keys = {"packages", "device", "seed", "data", "git", "launches", "parameters"}
    assert keys <= manifest.keys()
    files = {"config.json", "manifest.json", "STATUS", "metrics.jsonl", "tokenizer.json"}
    files |= {"evaluation.json", "sequences.npz", "loss.png", "samples", "checkpoints"}
    assert files <= {path.name for path in tiny_run.iterdir()}
    assert (tiny_run / "loss.png").read_bytes()[:4] == b"\x89PNG"
    assert len((tiny_run / "samples" / "step-00000050.txt").read_text()) == 41
    # A change of these is a change of the mathematics, the data order or the defaults.
    losses = [row["train/loss"] for row in rows[:3]]
    np.testing.assert_allclose(losses, [4.1713, 4.0924, 3.9615], atol=1e-3)


# In no file of the working tree, whose diff a run keeps.
SECRET = "".join(map(chr, range(119, 99, -1)))


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The command in a fresh process of another place: what it said, and its run."""
    folder = tmp_path_factory.mktemp("elsewhere")
    environment = dict(PYTHONHASHSEED="7", TZ="Asia/Tokyo", LANG="C", HOME=str(folder))
    environment |= dict(COLUMNS="40", NO_COLOR="1", API_TOKEN=SECRET, AWS_SECRET_KEY=SECRET)
    flags = (f"--config={TINY}", f"--workdir={folder / 'a'}")
    done = command("train", *flags, cwd=folder, **environment)
    assert done.returncode == 0, done.stderr
    return done, folder / "a"


def test_c1_c6_a_fresh_process_gives_the_same_bits(elsewhere, whole):
    assert fingerprint_of(elsewhere[1]) == whole


def test_without_a_terminal_there_are_plain_lines_that_tell_everything(elsewhere):
    said = elsewhere[0].stdout
    assert "\x1b" not in said + elsewhere[0].stderr
    assert "\r" not in said
    words = "compiling the training,tokens/s,ETA,bits_per_byte,sample,loss.png"
    assert all(word in said for word in words.split(",")), said


def test_c78_a_run_holds_no_secret(elsewhere):
    for path in elsewhere[1].rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


@pytest.mark.usefixtures("one_program")
@pytest.mark.parametrize("steps", [(20, 30, 49), (3, 11, 21)])
def test_c2_c3_stopping_and_resuming_changes_no_bit(tmp_path, whole, steps, one_step_a_call):
    for number, step in enumerate(steps):
        how, error = (crash, Crash) if number % 2 else (terminate, Interrupted)
        with pytest.raises(error):
            run(tmp_path / "a", EndAt(step, how))
    assert RunDirectory(tmp_path / "a").status() == ("failed" if number % 2 else "interrupted")
    run(tmp_path / "a")
    assert fingerprint_of(tmp_path / "a") == whole


def test_c4_a_finished_run_is_left_alone(tiny_run, whole):
    before = {p: p.stat().st_mtime_ns for p in tiny_run.rglob("*") if "checkpoints" in str(p)}
    row = run(tiny_run)
    assert {p: p.stat().st_mtime_ns for p in before} == before
    assert row["step"] == 50
    assert fingerprint_of(tiny_run) == whole


@pytest.mark.commands
@pytest.mark.as_user
def test_c10_killed_at_random_moments_ends_with_the_same_bits(tmp_path):
    """SIGKILL, then the same command again, until it is done."""
    flags = ("--config=tiny", "--config.training.steps=400", "--config.checkpoint.every=25")
    flags += ("--config.logging.every=1",)
    reference = command("train", f"--workdir={tmp_path / 'whole'}", *flags)
    assert reference.returncode == 0, reference.stderr
    moments = random.Random(0)
    for code in (-signal.SIGKILL, -signal.SIGKILL, 0):
        process = conftest.start_command("train", f"--workdir={tmp_path / 'a'}", *flags)
        if code:
            assert any(line.startswith("step") for line in process.stdout)
            time.sleep(moments.uniform(0, 0.25))
            process.kill()
        said, _ = process.communicate()
        assert process.returncode == code, said
    assert RunDirectory(tmp_path / "a").status() == "done"
    assert fingerprint_of(tmp_path / "a") == fingerprint_of(tmp_path / "whole")


@pytest.mark.usefixtures("one_program")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGUSR2, 140)]
)
def test_c23_a_signal_saves_a_run(tmp_path, monkeypatch, capfd, one_step_a_call, number, code):
    step, sent = Progress.step, []

    def step_and_signal(self, *arguments, **options):
        step(self, *arguments, **options)
        if not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Progress, "step", step_and_signal)
    flags = ("--config=tiny", "--config.sample.num_tokens=0", "--config.logging.every=1")
    done = attempt("train", *flags, f"--workdir={tmp_path / 'a'}")
    assert done.returncode == code
    said = done.stdout + done.stderr + capfd.readouterr().err
    assert "stopping once the current work is finished and saved" in said
    assert "saved; the same command resumes" in said
    assert "Traceback" not in said
    assert RunDirectory(tmp_path / "a").status() == "interrupted"
    assert list((tmp_path / "a" / "checkpoints").iterdir())


def test_c24_a_second_ctrl_c_ends_at_once(monkeypatch):
    codes = []
    monkeypatch.setattr(os, "_exit", codes.append)
    with StopSignal():
        signal.raise_signal(signal.SIGINT)
        assert codes == []
        signal.raise_signal(signal.SIGINT)
    assert codes == [130]


@pytest.mark.usefixtures("one_program")
def test_c25_a_second_launch_meanwhile_is_refused(tmp_path):
    errors = []

    class Intrude(Silent):
        def step(self, *_):
            if not errors:
                errors.append(attempt("train", f"--config={TINY}", f"--workdir={tmp_path / 'a'}"))

    run(tmp_path / "a", Intrude())
    refused(errors[0], "another process is training here", f"pid {os.getpid()}")
    run(tmp_path / "a")  # a lock file without an owner keeps nobody out


def test_c26_another_config_in_the_same_directory_is_refused_with_the_difference(tiny_run):
    with pytest.raises(InvalidInput, match=r"model.width: 32 there, 64 now"):
        run(tiny_run, model__width=64)
    many = dict(model__width=64, model__depth=3, seed=4, training__steps=60, data__length=8)
    with pytest.raises(InvalidInput) as error:
        run(tiny_run, **many, model__use_bias=True, optimizer__learning_rate=1)
    assert len(str(error.value).splitlines()) <= 8


def test_directories_that_are_no_runs_are_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(InvalidInput, match="this is a file; expected a folder"):
        run(tmp_path / "file")
    with pytest.raises(InvalidInput, match="holds files that do not belong to a run"):
        run(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


@pytest.mark.usefixtures("one_program")
def test_what_launches_left_before_a_config_was_written_blocks_nothing(tmp_path):
    folder = tmp_path / "a"
    with pytest.raises(InvalidInput):
        run(folder, data__source="nowhere.txt")
    for name in ("diff.patch", "error.txt", ".config.json-123"):  # of one that was killed
        (folder / name).write_text("x")
    run(folder)


def test_a_launch_that_is_refused_leaves_what_a_killed_one_said(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.step = 500
    directory.write_status("running")  # and was killed
    again = RunDirectory(tmp_path)
    with pytest.raises(InvalidInput), again.failures_recorded():
        raise InvalidInput("its data is not there")
    assert (again.status(), again.read_status().step) == ("running", 500)


@pytest.mark.usefixtures("one_program")
def test_c27_c32_a_fault_is_recorded_and_rows_beyond_the_checkpoint_are_cut(tmp_path, whole):
    with pytest.raises(Crash):
        run(tmp_path / "a", EndAt(45, crash))
    directory = RunDirectory(tmp_path / "a")
    assert directory.status() == "failed"
    assert "Crash: the user's own code" in directory.read_status().reason
    assert "in crash" in (tmp_path / "a" / "error.txt").read_text()
    assert directory.metrics()
    with directory.file("metrics.jsonl").open("a") as file:  # the last line is torn
        file.write('{"step": 49, "train/loss": 1.0}\n{"step": 50, "tra')
    run(tmp_path / "a")
    assert fingerprint_of(tmp_path / "a") == whole


def test_c67_changed_data_is_refused(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("to be or not to be, that is the question\n" * 60)
    options = dict(data__source=text, model__width=8, model__depth=1)
    with pytest.raises(Crash):
        run(tmp_path / "a", EndAt(1, crash), **options)
    text.write_text("to be or not to be, that is no question\n" * 60)
    with pytest.raises(InvalidInput, match="the data has changed since this run began"):
        run(tmp_path / "a", **options)


@pytest.mark.usefixtures("one_program")
def test_c45_a_loss_that_is_not_finite_stops_before_the_update_and_says_so(tmp_path, monkeypatch):
    honest = LanguageModelling.batch

    def poisoned(self, seed, step):
        batch = honest(self, seed, step)
        if step == 23:
            batch["weights"][0, 0] = np.inf
        return batch

    monkeypatch.setattr(LanguageModelling, "batch", poisoned)
    for _ in range(2):  # the same command repeats the same update
        with pytest.raises(NonFinite, match="not finite in update 24") as error:
            run(tmp_path / "a")
        assert "first of" in str(error.value)
    directory = RunDirectory(tmp_path / "a")
    assert directory.status() == "failed"
    assert directory.metrics()[-1]["step"] == 20
    monkeypatch.setattr(LanguageModelling, "batch", honest)
    run(tmp_path / "a")
    assert [row["step"] for row in directory.metrics()] == list(range(5, 51, 5))


@contextlib.contextmanager
def full_disk(*steps):
    """Within it, the checkpoints of these steps cannot be written."""
    sync = checkpoints._sync

    def full(folder):
        if any(f"{step:08d}" in folder.name for step in steps):
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(folder)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "_sync", full)
        yield


@pytest.mark.usefixtures("one_program")
def test_c12_a_disk_that_is_full_at_the_end_is_no_success(tmp_path):
    with (
        full_disk(40, 50),
        pytest.raises(SaveFailed, match="checkpoint of step 50 could not be written"),
    ):
        run(tmp_path / "a")
    assert RunDirectory(tmp_path / "a").status() == "failed"
    assert [p.name for p in (tmp_path / "a" / "checkpoints").iterdir()] == ["00000020"]
    run(tmp_path / "a")
    assert RunDirectory(tmp_path / "a").manifest()["launches"][-1]["resumed_from"] == 20


@pytest.mark.usefixtures("one_program")
def test_c12_a_disk_that_was_full_meanwhile_is_told(tmp_path, whole):
    told = Silent()
    told.say = (said := []).append
    with full_disk(20):
        run(tmp_path / "a", told)
    assert any("NOT SAVED" in line and "checkpoint of step 20" in line for line in said)
    names = sorted(path.name for path in (tmp_path / "a" / "checkpoints").iterdir())
    assert names == ["00000040", "00000050"]
    assert fingerprint_of(tmp_path / "a") == whole


@pytest.mark.usefixtures("one_program")
def test_c12_a_disk_that_is_full_for_the_small_files_too(tmp_path):
    """STATUS, metrics and manifest: no traceback, and the same command goes on."""
    full = unittest.mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunDirectory, "append_metrics", full)
        with pytest.raises(Stop, match=r"could not be written .No space left on device"):
            run(tmp_path / "a")
    assert RunDirectory(tmp_path / "a").status() == "failed"
    run(tmp_path / "a")


@pytest.mark.usefixtures("one_program")
def test_training_goes_on_while_a_checkpoint_is_written(tmp_path, whole, monkeypatch):
    gone_on, waited = threading.Event(), []
    sync, next_request = checkpoints._sync, Member.next_request

    def slow_sync(folder):
        if folder.parent.name == "checkpoints":
            waited.append(gone_on.wait(30))
        sync(folder)

    def seen(self):
        if self.directory.step >= 20:
            gone_on.set()
        return next_request(self)

    monkeypatch.setattr(checkpoints, "_sync", slow_sync)
    monkeypatch.setattr(Member, "next_request", seen)
    run(tmp_path / "a")
    assert waited == [True] * 3
    assert fingerprint_of(tmp_path / "a") == whole


@pytest.mark.usefixtures("one_program")
def test_a_run_has_its_batches_made_while_it_computes(tmp_path, monkeypatch):
    made, batch = [], LanguageModelling.batch

    def noted(self, seed, step):
        made.append((step, threading.current_thread().name))
        return batch(self, seed, step)

    monkeypatch.setattr(LanguageModelling, "batch", noted)
    run(tmp_path / "a")
    steps = [step for step, name in made if name == "batches ahead"]
    assert steps == sorted(set(steps))
    assert steps


@pytest.mark.usefixtures("one_program")
def test_c13_training_falls_back_and_records_it(tmp_path, whole):
    with pytest.raises(Crash):
        run(tmp_path / "a", EndAt(45, crash))
    newest = tmp_path / "a" / "checkpoints" / "00000040"
    victim = max((p for p in newest.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    run(tmp_path / "a")
    launch = RunDirectory(tmp_path / "a").manifest()["launches"][-1]
    assert launch["resumed_from"] == 20
    assert "SKIPPED 00000040" in launch["warnings"][0]
    assert fingerprint_of(tmp_path / "a") == whole


def when_traced(monkeypatch, do):
    """Does something each time the steps of a run are traced, as their compilation begins."""
    make = prepared.make_run_steps

    def make_noticed(train_step):
        run_steps = make(train_step)

        def noticed(*arguments):
            do()
            return run_steps(*arguments)

        return noticed

    monkeypatch.setattr(prepared, "make_run_steps", make_noticed)


def test_c9_c70_cadence_changes_no_parameter_and_asks_for_no_program(tmp_path, whole, monkeypatch):
    when_traced(monkeypatch, lambda: compiled.append(1))
    compiled = []
    run(tmp_path / "a", evaluation__every=7, logging__every=1, checkpoint__every=11)
    assert compiled == [1]
    assert fingerprint_of(tmp_path / "a")[:2] == whole[:2]


@pytest.mark.thorough
def test_training_learns_more_than_the_frequency_of_letters(tmp_path):
    row = run(tmp_path, training__steps=200, evaluation__every=100)
    assert row["eval/loss"] < 3.3  # the entropy of single letters


def test_c69_evaluation_is_exact_for_any_batch_size(tiny_run):
    loaded = load_run(tiny_run)
    task = make_task(loaded.config, loaded.tokenizer, stride=5)
    stream = task.splits["test"]
    short = dataclasses.replace(stream, end=stream.begin + 27)
    task = dataclasses.replace(task, splits=task.splits | {"test": short})
    score = make_score(loaded.model)
    scored = [evaluate(score, loaded.params, task, "test", size) for size in (1, 2, 7)]
    assert {e.protocol["targets"] for e in scored} == {26}
    for other in scored[1:]:
        assert other.means["loss"] == pytest.approx(scored[0].means["loss"], abs=1e-6)
        np.testing.assert_allclose(other.sequences["loss"], scored[0].sequences["loss"], atol=1e-5)
    # By hand: 16 predictions of the window at 0, then 5 each of the windows at 5 and 10.
    tokens, nats, apply = short.windows(np.array([0]), 27)[0], 0.0, jax.jit(loaded.model.apply)
    for start, first in ((0, 0), (5, 11), (10, 11)):
        window = tokens[start : start + 17]
        logits = apply({"params": loaded.params}, window[None, :-1])[0]
        losses = -jax.nn.log_softmax(logits)[np.arange(16), window[1:]]
        nats += float(losses[first:].sum())
    assert scored[0].means["loss"] == pytest.approx(nats / 26, abs=1e-5)


def test_c22_a_moved_run_still_loads_and_nothing_is_written(tiny_run, copy):
    snapshot = lambda: {p: p.stat().st_mtime_ns for p in copy.rglob("*")}
    before = snapshot()
    loaded = load_run(copy)
    assert loaded.step == 50
    assert snapshot() == before
    assert tree_hash(loaded.params) == tree_hash(load_run(tiny_run).params)
    text = loaded.sample("ROMEO:", 30, seed=3)
    assert len(text) == 30
    assert text == loaded.sample("ROMEO:", 30, seed=3)
    assert text != loaded.sample("ROMEO:", 30, seed=4)


def test_load_run_refuses_what_is_no_run(tmp_path, copy):
    with pytest.raises(InvalidInput, match="no run here"):
        load_run(tmp_path)
    path = copy / "tokenizer.json"
    path.write_text(path.read_text().replace("abc", "bac"))
    with pytest.raises(InvalidInput, match="not the tokenizer of the training"):
        load_run(copy)


@pytest.mark.thorough
@pytest.mark.usefixtures("one_program")
@pytest.mark.parametrize("name", ["bpe", "byte"])
def test_users_own_text_with_documents_kept_apart(tmp_path, name):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(12):
        text = f"Document {number} speaks of the number {number}.\n" * 30
        (folder / f"{number}.txt").write_text(text)
    data = dict(source=folder, tokenizer=name, vocab_size=300, separate_documents=True)
    options = {f"data__{key}": value for key, value in data.items()}
    row = run(tmp_path / "a", **options, training__steps=15, model__position="rotary")
    assert np.isfinite(row["test/bits_per_byte"])
    assert load_run(tmp_path / "a").sample("Document", 5)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(61, "ETA 1:01"), (-5, "ETA -"), (float("inf"), "ETA -"), (7200, "ETA 2:00:00")],
)
def test_c20_the_eta_is_never_negative(seconds, text, capsys):
    Progress(seconds_between_lines=0).step(1, 10, 1.0, 1.0, seconds)
    assert text in capsys.readouterr().out


@pytest.mark.parametrize(("key", "old", "new"), [("model.init_std", 0.02, 0.2), ("seed", 0, 5)])
def test_a_config_that_is_not_the_checkpoints_is_refused(copy, key, old, new):
    """Another text would be written without a word."""
    path, name = copy / "config.json", key.rpartition(".")[2]
    text = path.read_text().replace(f'"{name}": {old}', f'"{name}": {new}')
    path.write_text(text.replace('"every": 20', '"every": 21'))  # may differ between launches
    told = f"{key}: {old} when it was saved, {new} in config.json"
    for use in (load_run, lambda path: run(path, **{key.replace(".", "__"): new})):
        with pytest.raises(InvalidInput, match=told) as refusal:
            use(copy)
        assert ".every" not in str(refusal.value)
        assert len(str(refusal.value).splitlines()) <= 8


@pytest.mark.usefixtures("one_program")
def test_a_resume_with_other_packages_is_said_and_recorded(tmp_path, one_step_a_call):
    with pytest.raises(Interrupted):
        run(tmp_path / "a", EndAt(3, terminate))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    directory = RunDirectory(tmp_path / "a")
    manifest = directory.manifest()
    manifest["packages"]["jax"] = "0.0.1"
    directory.write_json("manifest.json", manifest)
    run(tmp_path / "a")
    launch = directory.manifest()["launches"][-1]
    assert launch["packages"]["jax"] == jax.__version__
    assert "packages changed since this run began" in launch["warnings"][0]
    (tmp_path / "b" / "manifest.json").unlink()
    run(tmp_path / "b")
    (launch,) = RunDirectory(tmp_path / "b").manifest()["launches"]
    assert "manifest.json is lost" in launch["warnings"][0]


@pytest.mark.thorough
def test_c72_the_eta_leaves_compilation_out(tmp_path, monkeypatch):
    class Listen(Silent):
        def step(self, step, steps, loss, tokens_per_second, seconds_left):
            etas.append(seconds_left)

    when_traced(monkeypatch, lambda: time.sleep(3))
    etas = []
    run(tmp_path / "a", Listen())
    assert etas[0] < 49 * 3 / 2  # with compilation it would be at least 49 * 3


def test_the_newest_checkpoints_are_averaged(tmp_path):
    options = {"training__steps": 6, "schedule__warmup_steps": 2}
    run(tmp_path / "a", checkpoint__every=2, checkpoint__keep=3, **options)
    newest = [load_run(tmp_path / "a", average=count).params for count in (1, 3)]
    folder, parts = tmp_path / "a" / "checkpoints", []
    for _ in range(3):
        parts.append(load_run(tmp_path / "a").params)
        shutil.rmtree(max(folder.iterdir()))
    mean = jax.tree.map(lambda *leaves: np.mean(np.float64(leaves), axis=0), *parts)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-7), newest[1], mean)
    assert tree_hash(newest[0]) == tree_hash(parts[0]) != tree_hash(newest[1])


def test_more_checkpoints_than_there_are_cannot_be_averaged(tiny_run):
    refused(attempt("evaluate", f"--workdir={tiny_run}", "--average=9"), "average=9", "at most 2")
    refused(attempt("evaluate", f"--workdir={tiny_run}", "--average=0"), "average=0", "at least 1")


def test_state_outside_the_gradient_is_part_of_a_run(tmp_path, one_step_a_call):
    """Biases of experts, in a scan whose blocks read the first one: resumed, loaded, evaluated."""
    options = {
        **{"model__feed_forward": "mixture", "model__feed_forward_options__bias_rate": 0.05},
        **{"model__scan_layers": True, "model__values": "residual", "model__depth": 3},
        **{"training__steps": 6, "schedule__warmup_steps": 2, "sample__num_tokens": 4},
        **{"evaluation__every": 6, "checkpoint__every": 2},
    }
    run(tmp_path / "whole", **options)
    for step, how, error in ((3, crash, Crash), (4, terminate, Interrupted)):
        with pytest.raises(error):
            run(tmp_path / "a", EndAt(step, how), **options)
    run(tmp_path / "a", **options)
    assert fingerprint_of(tmp_path / "a") == fingerprint_of(tmp_path / "whole")
    loaded = load_run(tmp_path / "a")
    held = loaded.params["state"]["block_2"]["feed_forward"]
    assert np.abs(held["bias"]).max() > 0.04
    task = make_task(loaded.config, loaded.tokenizer)
    means = evaluate(make_score(loaded.model), loaded.params, task, "test", 8).means
    stored = json.loads((tmp_path / "a" / "evaluation.json").read_text())
    np.testing.assert_allclose(means["loss"], stored["test"]["loss"], rtol=1e-5)

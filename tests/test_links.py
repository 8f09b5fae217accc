"""Links in received runs: nothing outside a run's or a study's folder is touched or read."""

import errno
import json
import os
import shutil
import sys

import pytest
from ml_collections import ConfigDict

from tests.conftest import tiny_config
from transformer_jax import __version__, load_run
from transformer_jax.errors import InvalidInput, Stop
from transformer_jax.runs import directory as runs_directory
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import entries, inside, replace, walk
from transformer_jax.runs.initial_files import fingerprint_of
from transformer_jax.runs.listing import facts_of
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.design import seal_of
from transformer_jax.studies.study import load_study
from transformer_jax.training.loop import train

OURS = (
    *(".lock", "STATUS", "config.json", "manifest.json", "tokenizer.json", "metrics.jsonl"),
    *("evaluation.json", "checkpoints", "samples", "checkpoints/00000045"),
)


def snapshot(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def mailed(tiny_run, tmp_path):
    """A run that goes on; beside it lies a folder of the reader's own, which nothing may change."""
    run, own = tmp_path / "run", tmp_path / "own"
    shutil.copytree(tiny_run, run)
    (run / "STATUS").write_text("interrupted 2026-01-01T00:00:00+00:00 step 40\n")
    shutil.rmtree(run / "checkpoints" / "00000050")
    for path in ("photos/20240101", "photos/.writing-mynovel"):
        (own / path).mkdir(parents=True)
        (own / path / "page").write_text("mine")
    (own / "thesis.txt").write_text("mine " * 3000)
    shutil.copytree(run / "checkpoints" / "00000040", own / "checkpoint")
    before = snapshot(own)
    yield run, own
    assert snapshot(own) == before


def test_files_that_hold_something_else_are_refused_or_left_out(mailed):
    run, _ = mailed
    directory, count = RunDirectory(run), len(RunDirectory(run).metrics())
    with (run / "metrics.jsonl").open("a") as file:
        file.write('5\n{"train/loss": 1.0}\n')
    with pytest.warns(UserWarning, match="2 damaged lines are left out"):
        assert len(directory.metrics()) == count
    (run / "STATUS").write_bytes(b"\xff")
    assert directory.status() == "\ufffd"
    (run / "evaluation.json").write_text("[]")
    with pytest.raises(InvalidInput, match=r"evaluation.json: expected"):
        directory.evaluation()
    (run / "manifest.json").write_text("5")
    with pytest.raises(InvalidInput, match=r"manifest.json: expected"):
        directory.manifest()


@pytest.mark.parametrize("name", OURS)
def test_c75_a_link_in_the_place_of_a_file_or_a_folder_is_refused(mailed, name):
    run, own = mailed
    target = own / ("photos" if name.startswith(("checkpoints", "samples")) else "thesis.txt")
    if (run / name).is_dir():
        shutil.rmtree(run / name)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(target)
    with pytest.raises(InvalidInput, match=rf"{name}: it is a link to .*{target.stem}"):
        train(tiny_config(), run, Silent())


@pytest.mark.parametrize("name", ["state", "manifest.json"])
def test_c75_a_link_inside_a_checkpoint_is_refused(mailed, name):
    run, own = mailed
    inner = run / "checkpoints" / "00000040" / name
    inner.rename(run / "moved")
    inner.symlink_to(own / "checkpoint" / name)
    with pytest.raises(InvalidInput, match=rf"{name}: it is a link"):
        load_run(run)
    if name == "manifest.json":  # which is all that is read of a run to start from before it loads
        with pytest.raises(InvalidInput, match=rf"{name}: it is a link"):
            fingerprint_of(ConfigDict({"weights": str(run)}))


def test_runs_are_listed_without_reading_through_links(mailed):
    run, _ = mailed
    secret = run.parent / "secret.json"
    secret.write_text('{"seed": 123456}')
    (run / "config.json").unlink()
    (run / "config.json").symlink_to(secret)
    assert 123456 not in facts_of(run, run.parent).values()


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "", "a//b", "a\nb", "."])
def test_names_lead_nowhere_else(tmp_path, name):
    with pytest.raises(InvalidInput, match="not the name of a file in it"):
        inside(tmp_path, name)


def test_pipes_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "STATUS")
    with pytest.raises(InvalidInput, match="neither file nor folder"):
        RunDirectory(tmp_path).status()
    for listing in (entries, walk):
        with pytest.raises(InvalidInput, match="neither file nor folder"):
            listing(tmp_path)


def test_a_file_is_written_whole_and_never_through_what_was_planted(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f".STATUS-{os.getpid()}").symlink_to(tmp_path / "mine")
    replace(tmp_path, "STATUS", "done\n")
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "STATUS").read_text() == "done\n"


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    replace(tmp_path / "run", "STATUS", "done\n")
    assert RunDirectory(tmp_path / "run").status() == "done"


@pytest.mark.parametrize("where", ["../../../../own", "../../own", "/own", "x/../../own"])
def test_a_hash_that_leads_outside_is_refused(tmp_path, where):
    sealed = {"metric": "loss", "base": "a", "arms": {}}
    record = {"version": __version__, "sealed": sealed, "seal": seal_of(sealed), "root": ".."}
    record |= {"seeds": [0], "arms": {"a": {"hash": where}}}
    folder = tmp_path / "mail" / "study"
    folder.mkdir(parents=True)
    (folder / "study.json").write_text(json.dumps(record))
    with pytest.raises(InvalidInput, match="not the name of a file in it"):
        load_study(folder).cells()


def test_a_launch_that_was_killed_before_its_config_goes_on(tiny_run, tmp_path):
    directory = RunDirectory(tmp_path)
    for name in (".lock", "tokenizer.json"):
        shutil.copy(tiny_run / name, tmp_path)
    directory.refuse_other_config(tiny_config())
    (tmp_path / ".lock").unlink()  # a tokenizer of somebody's own
    with pytest.raises(InvalidInput, match="holds files that do not belong to a run"):
        directory.refuse_other_config(tiny_config())


def test_a_disk_that_is_full_at_the_first_file_leaves_a_folder_to_begin(tmp_path, monkeypatch):
    def full(folder, name, text):
        if name == "config.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        return replace(folder, name, text)

    with monkeypatch.context() as patched:
        patched.setattr(runs_directory, "replace", full)
        with pytest.raises(Stop, match="free some space, then resume with the same command"):
            train(tiny_config(), tmp_path / "run", Silent())
    RunDirectory(tmp_path / "run").refuse_other_config(tiny_config())


def test_where_there_are_no_file_locks_training_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(InvalidInput, match="WSL"), RunDirectory(tmp_path / "run").locked():
        pass

"""Cells as jobs, and metrics to trackers: with the real packages, which the extra `oracles` brings."""

import json
import os
import signal
import time
from types import SimpleNamespace

import pytest

from tests.conftest import TINY, command, start_command, tiny_config
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.progress import Silent
from transformer_jax.runs.writers import TensorBoard
from transformer_jax.studies import jobs
from transformer_jax.studies.cluster import Cluster, parse_cluster
from transformer_jax.studies.other_runs import read_curves
from transformer_jax.studies.study import load_study
from transformer_jax.training.loop import train

SHORT = ("--config.training.steps=12", "--config.schedule.warmup_steps=4")


def test_parameters_of_jobs_are_read():
    assert parse_cluster(None, None, []) is None
    for said in ((3, []), (None, ["timeout_min=60"])):
        with pytest.raises(InvalidInput, match="needs --executor, which is one of slurm, local"):
            parse_cluster(None, *said)
    assert parse_cluster("slurm", None, []).cells_per_job == 4
    cluster = parse_cluster("slurm", 3, ["timeout_min=60", "slurm_partition=gpu"])
    assert cluster == Cluster("slurm", 3, {"timeout_min": 60, "slurm_partition": "gpu"})
    for size, parameters in ((0, []), (1, ["gpu"]), (1, ["a b=3"])):
        with pytest.raises(InvalidInput, match="expected"):
            parse_cluster("local", size, parameters)


def test_a_job_of_slurm_that_a_signal_ends_leaves_no_result(monkeypatch):
    """So that one which goes back into the queue is waited for; elsewhere nothing comes back."""

    class Stopped:
        def __init__(self, _estimate, _progress, stop):
            self.stop = stop

        def run(self, *_):
            self.stop.signal = 15

    monkeypatch.setattr(jobs, "Workers", Stopped)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert jobs.train_cells(".", SimpleNamespace(), "cells", None, []) == []
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(SystemExit) as caught:
        jobs.train_cells(".", SimpleNamespace(), "cells", None, [])
    assert caught.value.code == 143


def test_a_cell_that_is_tried_again_is_told_when_its_job_ends(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "_POLL", 0)

    class Failed:
        arm, seed, looks = "a", 0, 0

        def state(self):
            self.looks += 1
            return "failed" if self.looks < 3 else "done"

        def reason(self):
            return "OSError: no space" if self.looks < 3 else ""

    ended, ends = [], iter([False, True])
    job = SimpleNamespace(done=lambda: next(ends))
    executor = SimpleNamespace(submit=lambda *_: job)
    cluster = SimpleNamespace(kind="slurm", cells_per_job=1, executor=lambda _: executor)
    board = SimpleNamespace(ended=lambda cell, word, why: ended.append(word))
    workers = SimpleNamespace(
        board=lambda *_: board, progress=Silent(), estimate=None, lost={},
        stop=SimpleNamespace(signal=None),
    )  # fmt: skip
    arms = {"a": SimpleNamespace(changes={}, hash="0", branching=None)}
    jobs.run_as_jobs(cluster, workers, None, tmp_path, tmp_path, arms, [Failed()], 1)
    assert ended == ["done"]


@pytest.mark.oracle
def test_ctrl_c_saves_the_cells_of_local_jobs(tmp_path):
    """A terminal's signal reaches the jobs too, and submitit's process, which would kill them."""
    process = start_command(
        *("ablate", f"--config={TINY}", "--arm=model.num_heads=4,1", "--seeds=1"),
        *(f"--workdir={tmp_path / 's'}", "--config.training.steps=100000"),
        *("--executor=local", "--cells_per_job=1"),
        process_group=0,
    )
    deadline = time.monotonic() + 200
    while len(list(tmp_path.glob("cells/*/s*/metrics.jsonl"))) < 2:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < deadline
        time.sleep(0.2)
    os.killpg(process.pid, signal.SIGINT)
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 130, said
    assert "interrupted; running cells are saved" in said
    folders = list(tmp_path.glob("cells/*/s*"))
    assert len(folders) == 2
    for folder in folders:
        assert (folder / "STATUS").read_text().startswith("interrupted")
        assert list(folder.glob("checkpoints/0*"))


def ablate(workdir, *arguments):
    return command("ablate", f"--config={TINY}", f"--workdir={workdir}", *arguments, *SHORT)


@pytest.mark.oracle
def test_a_study_in_jobs_is_the_study_in_one_process(tmp_path):
    arms = ("--arm=model.num_heads=4,1", "--seeds=2")
    jobs = ablate(tmp_path / "a" / "s", *arms, "--executor=local", "--cells_per_job=2")
    assert jobs.returncode == 0, jobs.stdout + jobs.stderr
    assert "jobs   2 with 4 cells (local)" in jobs.stdout
    here = ablate(tmp_path / "b" / "s", *arms)
    assert here.returncode == 0, here.stderr
    one, other = (load_study(tmp_path / place / "s").verdicts() for place in "ab")
    assert one["values"] == other["values"]
    assert len(list((tmp_path / "a" / "s" / "jobs").glob("*_result.pkl"))) == 2


@pytest.mark.oracle
def test_a_job_that_dies_loses_its_cells_and_no_others(tmp_path):
    arms = ("--arm=optimizer.learning_rate=0.001,1e9", "--seeds=1")
    done = ablate(tmp_path / "s", *arms, "--executor=local", "--job=timeout_min=0")
    assert done.returncode == 1
    assert "cells failed" in done.stderr
    again = ablate(tmp_path / "s", *arms)
    assert again.returncode == 0, again.stderr


@pytest.mark.oracle
def test_the_batch_script_is_slurms(tmp_path, monkeypatch):
    """Runs what submitit would hand to sbatch, with a Slurm that is only a name in PATH."""
    for name in ("srun", "sbatch"):
        (tmp_path / name).write_text("#!/bin/sh\nexit 0\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    cluster = Cluster("slurm", 4, {"timeout_min": 90, "slurm_partition": "gpu", "gpus_per_node": 1})
    executor = cluster.executor(tmp_path / "jobs")
    text = executor._executor._make_submission_file_text("python -m job", "id")
    for option in ("job-name=cells", "partition=gpu", "time=90", "gpus-per-node=1"):
        assert f"#SBATCH --{option}" in text.splitlines()
    assert "python -m job" in text
    with pytest.raises(InvalidInput, match="--executor=slurm"):
        Cluster("slurm", 4, {"partitoin": "gpu"}).executor(tmp_path / "jobs")


@pytest.mark.oracle
def test_tensorboard_reads_what_metrics_hold(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tiny_config(training__steps=20, logging__writers="tensorboard"), tmp_path / "a", Silent())
    events = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    rows = RunDirectory(tmp_path / "a").metrics()
    for name in ("train/loss", "eval/loss", "test/loss"):
        held = [(event.step, event.value) for event in events.Scalars(name)]
        wanted = [(row["step"], row[name]) for row in rows if name in row]
        assert [step for step, _ in held] == [step for step, _ in wanted]
        assert [v for _, v in held] == pytest.approx([v for _, v in wanted], rel=1e-6)
    TensorBoard(tmp_path / "a", {}, 15).close()  # resumed; what a kill had lost is written again
    (first, _) = sorted((tmp_path / "a" / "tensorboard").iterdir())
    assert read_curves([first.parent], "train/loss")["tensorboard"].steps == [5, 10, 15]
    first.write_bytes(b"")
    assert read_curves([first.parent], "train/loss")["tensorboard"].steps == [5, 10, 15]


@pytest.mark.oracle
def test_wandb_writes_offline(tmp_path, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    flags = (f"--config={TINY}", f"--workdir={tmp_path / 'a'}", "--config.logging.writers=wandb")
    done = command("train", *flags, *SHORT)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "a" / "wandb").glob("offline-run-*")
    assert next(iter(folder.glob("*.wandb"))).stat().st_size > 1000
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["logging"]["writers"] == ["wandb"]

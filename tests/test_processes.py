"""One run in two processes of four devices each: it is one run, whatever happens to one of them."""

import json
import os
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
import pytest

from tests.conftest import ROOT, TINY, attempt, command, refused, start_python
from tests.meshes import SOURCES, holds
from transformer_jax import load_run
from transformer_jax.errors import InvalidInput
from transformer_jax.processes import SILENT_SECONDS, agreed, join_processes, largest
from transformer_jax.runs.directory import RunDirectory

STEPS = [
    *("--config.training.steps=260", "--config.checkpoint.every=20", "--config.logging.every=1"),
    *("--config.evaluation.every=20", "--config.sample.num_tokens=10"),
    *("--config.hooks.functions=parameter_norms,residual_norms", "--config.hooks.every=20"),
    "--config.evaluation.metrics=brier_score",
]
# Each process says which rows of a batch it makes, and looks whether its devices got theirs; that
# a hook that draws for itself gives all of them the same state; that a model which neither has whole
# writes what a whole one does; and that they go on, and agree on something else, while the first is
# slow to hash what they saved.
OWN_ROWS = """
import sys
import time
from pathlib import Path

from transformer_jax.processes import is_first, join_processes, largest, whole
from transformer_jax.runs.several_processes import refuse_other

join_processes()
import jax
import numpy as np

from tests.conftest import tiny_config
from transformer_jax.runs import checkpoints
from transformer_jax.training.ahead import in_one_call
from transformer_jax.training.hooks import call_hooks
from transformer_jax.training.prepared import prepare
from transformer_jax.training.run import to_write
from transformer_jax.training.showcases import show_continuation, show_guesses

for mesh in ({"data": 8}, {"data": 2, "tensor": 4}, {"fsdp": 4, "sequence": 2}, {"tensor": 8}):
    prepared = prepare(tiny_config(**{f"mesh__{axis}": size for axis, size in mesh.items()}))
    all_rows, batch = prepared.stacked_batches(0, 3, 1), prepared.own_batch(0, 3)
    own = in_one_call([batch], prepared.capacity)
    _, _, placed, _ = prepared.on_devices((0, None, own, 1))
    for array, all_of_it in zip(*map(jax.tree.leaves, (placed, all_rows)), strict=True):
        assert array.shape == all_of_it.shape
        for shard in array.addressable_shards:
            np.testing.assert_array_equal(shard.data, all_of_it[shard.index])
    print("rows", len(batch["targets"]), "of", all_rows["targets"].shape[1])

prepared = prepare(tiny_config(hooks__functions="jittering:jitters", mesh__data=8))
start, run_of = prepared.start(prepared.config)[0], lambda state: prepared.run(state.params, 0)
names = prepared.config.hooks.functions
state, _ = call_hooks(run_of, start, names, prepared.task, 0, 0, {"jittering"})
refuse_other("states", repr([np.asarray(leaf).sum() for leaf in jax.tree.leaves(state)]))

prepared = prepare(tiny_config(mesh__fsdp=8, sample__num_tokens=4))
parted = prepared.start(prepared.config)[0].params
assert not all(leaf.is_fully_addressable for leaf in jax.tree.leaves(parted))
shown = [
    show(to_write(run, prepared.sharding), prepared.task)
    for run in (prepared.run(parted, 0), prepared.run(whole(parted), 0))
    for show in (show_continuation, show_guesses)
]
assert shown[:2] == shown[2:], shown
refuse_other("samples", shown[0])

hashes, goes_on = checkpoints._hashes, Path(sys.argv[1]) / "goes on"


def hashes_late(folder):
    while not goes_on.exists():
        time.sleep(0.1)
    return hashes(folder)


checkpoints._hashes = hashes_late
saved = checkpoints.Checkpoints(Path(sys.argv[1]) / "saved")
saved.begin_save(20, state, {})
assert largest(jax.process_index()) == 1
assert saved.steps() == []
largest(0)  # both have looked
if is_first():
    goes_on.touch()
saved.settle()
assert saved.steps() == [20]
restored = saved.restore(state).state
jax.tree.map(np.testing.assert_array_equal, *map(jax.tree.leaves, (restored, state)))
"""


_HERE = {"JAX_COORDINATOR_ADDRESS": "here:1"}
_ON_SLURM = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2"}


def test_one_process_agrees_with_itself():
    assert (agreed(7), largest(-3)) == (7, -3)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (_HERE, "JAX_NUM_PROCESSES, JAX_PROCESS_ID"),
        ({**_HERE, "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"}, "below JAX_NUM_PROCESSES=2"),
    ],
)
def test_a_process_that_does_not_know_which_it_is_is_refused(monkeypatch, given, words):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InvalidInput, match=words):
        join_processes()


@pytest.mark.parametrize(
    ("environment", "devices"),
    [
        (_ON_SLURM, []),  # all
        (_ON_SLURM | {"SLURM_STEP_NUM_TASKS": "8"}, None),  # jax: one each
        (_ON_SLURM | {"JAX_LOCAL_DEVICE_IDS": "1,2"}, None),
        ({"TPU_PROCESS_ADDRESSES": "a:8471,b:8471"}, None),
        ({"MEGASCALE_NUM_SLICES": "2"}, None),
        ({"MEGASCALE_NUM_SLICES": "1", "TPU_WORKER_HOSTNAMES": "localhost"}, "alone"),
    ],
)
def test_who_joins_and_with_which_devices(monkeypatch, environment, devices):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    asked = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda **options: asked.append(options))
    before = jax.config.jax_enable_preemption_service
    join_processes()
    jax.config.update("jax_enable_preemption_service", before)
    assert [each.get("local_device_ids") for each in asked] == [devices] * (devices != "alone")


def test_what_several_processes_do_not_do_is_refused(monkeypatch):
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "here:1")
    refused(attempt("train", f"--config={TINY}", "--fast"), "--fast: expected one process")


def in_two_processes(*words, **environment):
    """Starts a program in two processes of four devices each."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    return [
        start_python(
            *words,
            JAX_NUM_CPU_DEVICES="4",
            JAX_COORDINATOR_ADDRESS=f"localhost:{port}",
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(number),
            **environment,
        )
        for number in range(2)
    ]


def ended(both, *codes):
    """Returns what two processes said, once they have ended with these codes."""
    with ThreadPoolExecutor() as readers:  # of both at once: what one says fills a pipe
        said = [*readers.map(lambda process: process.communicate(timeout=900)[0], both)]
    assert tuple(process.returncode for process in both) == codes, "\n".join(said)
    return said


# Drawn by each process for itself; which one counts is agreed.
JITTERS = """
import jax
import numpy as np

from transformer_jax.training.hooks import intervenes


@intervenes
def jitters(state, step):
    \"\"\"Moves all parameters a little.\"\"\"
    by = 1 + 1e-6 * np.random.default_rng().normal()
    return state._replace(params=jax.tree.map(lambda leaf: leaf * by, state.params))
"""


@pytest.mark.commands
def test_arrays_that_no_process_has_whole_give_what_one_device_gives(tmp_path):
    """A stack of blocks cut over all devices, batches that they do not divide, answers written."""
    (tmp_path / "jittering.py").write_text(JITTERS)
    few = [
        *("--config=tiny", "--config.data.task=synthetic", "--config.data.source=reverse"),
        *("--config.model.scan_layers=true", "--config.training.batch_size=12"),
        *("--config.training.steps=20", "--config.evaluation.batch_size=100"),
        *("--config.logging.every=1", "--config.evaluation.metrics=brier_score"),
        *("--config.hooks.functions=jittering:jitters", "--config.hooks.every=10"),
    ]
    alone, run = tmp_path / "alone", tmp_path / "run"
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    assert command("train", *few, f"--workdir={alone}", **paths).returncode == 0
    words = ("-m", "experiments.train", *few, f"--workdir={run}", "--config.mesh.fsdp=8")
    both = in_two_processes(*words, **paths)
    ended(both, 0, 0)
    one, many = (RunDirectory(path).metrics() for path in (alone, run))
    for mine, theirs in zip(one, many, strict=True):
        numbers = {key: value for key, value in mine.items() if not key.startswith("time/")}
        assert {key: theirs[key] for key in numbers} == pytest.approx(numbers, abs=1e-3)


@pytest.mark.thorough
def test_two_processes_of_four_devices_give_what_one_device_gives():
    """Every architecture, and some mixed rows; test_sharding has the rest of them on eight."""
    cases = [*SOURCES, "mixed", "fused"]
    both = in_two_processes("-m", "tests.meshes", *cases)
    said, _ = ended(both, 0, 0)
    told = [json.loads(line) for line in said.splitlines() if line.startswith('{"case"')]
    assert [one["case"] for one in told] == cases
    for one in told:
        holds(one)


# The files of the second process may not be larger than 1.5 MB.
LIMITED = """
import os
import resource
import runpy

if os.environ["JAX_PROCESS_ID"] == "1":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, resource.RLIM_INFINITY))
runpy.run_module("experiments.train", run_name="__main__", alter_sys=True)
"""


@pytest.mark.commands
def test_a_process_that_cannot_write_keeps_no_other_waiting(tmp_path):
    both = in_two_processes(
        *("-c", LIMITED, "--config=tiny", f"--workdir={tmp_path}", "--config.mesh.fsdp=8"),
        *("--config.model.width=256", "--config.training.steps=20", "--config.checkpoint.every=10"),
    )
    said, _ = ended(both, 1, 1)
    for step in (10, 20):
        assert f"NOT SAVED: {tmp_path}/checkpoints: the checkpoint of step {step}" in said
    # Where the first one comes to it, orbax finds by itself that the other's part is not there.
    reasons = ("another process could not write", "metadata from just one process")
    assert any(reason in said for reason in reasons), said
    assert RunDirectory(tmp_path).status() == "failed"


@pytest.mark.commands
def test_processes_make_their_own_rows_share_a_hooks_state_and_save_meanwhile(tmp_path):
    (tmp_path / "jittering.py").write_text(JITTERS)
    path = f"{ROOT}{os.pathsep}{tmp_path}"
    both = in_two_processes("-c", OWN_ROWS, str(tmp_path), PYTHONPATH=path)
    for said in ended(both, 0, 0):
        rows = [line for line in said.splitlines() if line.startswith("rows")]
        assert rows == ["rows 4 of 8"] * 3 + ["rows 8 of 8"], said


def wait_for_step(workdir, step, both):
    """Returns once metrics.jsonl has a row of that step."""
    metrics, ends = workdir / "metrics.jsonl", time.monotonic() + 300
    while time.monotonic() < ends:
        rows = metrics.read_text().splitlines() if metrics.exists() else []
        if rows and json.loads(rows[-1])["step"] >= step:
            return
        if any(process.poll() is not None for process in both):
            ended(both)  # which fails, and shows what they said
        time.sleep(0.1)
    raise AssertionError("too slow")


def losses_of(workdir):
    """The loss of each step, at the end, and what hooks and a further metric gave at step 20."""
    rows = load_run(workdir).metrics
    (early,) = (row for row in rows if row["step"] == 20)
    hooks = sorted(name for name in early if name.startswith(("parameter_", "residual_")))
    assert len(hooks) > 4
    early = [early[name] for name in ("eval/brier_score", *hooks)]
    return np.array([row["train/loss"] for row in rows]), rows[-1]["test/loss"], np.array(early)


@pytest.mark.commands
def test_two_processes_are_one_run_through_signals_and_kills(tmp_path):
    """SIGTERM to one saves on both; either that is killed ends the other; one device goes on."""
    alone, run = tmp_path / "alone", tmp_path / "run"
    assert command("train", "--config=tiny", f"--workdir={alone}", *STEPS).returncode == 0

    words = ("-m", "experiments.train", "--config=tiny", f"--workdir={run}", *STEPS)
    words += ("--config.mesh.data=2", "--config.mesh.fsdp=4")
    both = in_two_processes(*words)
    wait_for_step(run, 30, both)
    both[1].send_signal(signal.SIGTERM)
    said = ended(both, 143, 143)
    assert (run / "STATUS").read_text().startswith("interrupted")
    assert "8 devices, data=2 fsdp=4" in said[0]
    assert "loss" not in said[1].partition("stopping")[0]  # the first speaks for both

    for killed, step in ((1, 100), (0, 180)):
        both = in_two_processes(*words)
        wait_for_step(run, step, both)
        both[killed].kill()
        began, other = time.monotonic(), both[1 - killed]
        said = other.communicate(timeout=3 * SILENT_SECONDS)[0]
        said_before, _ = both[killed].communicate()
        assert time.monotonic() - began < SILENT_SECONDS + 10
        assert "resuming from step" in (said if killed else said_before)
        if other.returncode == 1:  # else gloo, which joins CPUs, has ended it at once
            assert f"process {killed} of this run has ended" in said
            assert not killed or (run / "STATUS").read_text().startswith("failed")
        else:
            assert other.returncode == -signal.SIGABRT, said
            assert "gloo" in said or "distributed service" in said

    last = command("train", "--config=tiny", f"--workdir={run}", *STEPS)
    assert last.returncode == 0, last.stderr
    assert "resuming from step" in last.stdout
    assert not list(run.glob("checkpoints/.writing*"))
    (one, test, early), (many, test_of_many, early_of_many) = losses_of(alone), losses_of(run)
    np.testing.assert_allclose(one, many, atol=1e-4)
    assert test == pytest.approx(test_of_many, abs=1e-4)
    np.testing.assert_allclose(early, early_of_many, rtol=1e-4)

"""Runs of an older version (commit 192ace9): they load, sample, compare, and go on to their end."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.conftest import ROOT, attempt, command, tree_hash
from transformer_jax import load_run
from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import flatten, load_config
from transformer_jax.runs import provenance
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.interruption import Interrupted
from transformer_jax.runs.progress import Silent
from transformer_jax.training.loop import train

OLDER = ROOT / "tests" / "older_runs"
# What a resumed run may be away from the older version's end: nothing on a machine that compiles to
# the same instructions, rounding over 436 updates on another (nats per token, and shares).
ROUNDING = 2e-3
STOPPED = {
    "checkpoint.keep": "1",
    "checkpoint.every": "100",
    "model.position": "rotary",
    "model.norm": "rms_norm",
    "model.feed_forward": "gated",
    "model.activation": "silu",
    "training.steps": "600",
    "evaluation.every": "300",
}


def expected(name):
    return json.loads((OLDER / f"{name}.expected.json").read_text())


def rows_of(path):
    return [
        {key: value for key, value in row.items() if not key.startswith("time/")}
        for row in RunDirectory(path).metrics()
    ]


def compiled_alike():
    """Whether XLA compiles here to the instructions that the runs were made with.

    LLVM orders sums as it suits the processor's model, whatever instructions it has: an Intel Xeon
    (family 6, model 207) with AVX-512 ends elsewhere by rounding, with the code of any version.
    """
    manifest = json.loads((OLDER / "stopped" / "manifest.json").read_text())
    cpuinfo = Path("/proc/cpuinfo")
    told = cpuinfo.read_text() if cpuinfo.exists() else ""
    is_same_kind = " avx512f " in told and "AuthenticAMD" in told
    options = flatten(RunDirectory(OLDER / "stopped").config())
    numerics = manifest.get("numerics", 1) >= provenance.numerics_of(options)
    packages = provenance.surroundings()[0]["packages"]
    return is_same_kind and numerics and manifest["packages"] == packages


def test_a_finished_run_loads_to_the_same_bits_and_writes_the_same_text():
    run, wanted = load_run(OLDER / "finished"), expected("finished")
    assert tree_hash(run.params) == wanted["params_sha256"]
    assert rows_of(OLDER / "finished")[-1] == wanted["last"]
    assert run.sample("ROMEO:", num_tokens=40, seed=3) == wanted["sample"]


@pytest.mark.as_user
def test_a_stopped_run_goes_on_to_the_end_it_would_have_had(tmp_path):
    shutil.copytree(OLDER / "stopped", tmp_path / "run")
    flags = [f"--config.{key}={value}" for key, value in STOPPED.items()]
    result = command("train", "--config=configs/tiny.py", f"--workdir={tmp_path / 'run'}", *flags)
    assert result.returncode == 0, result.stderr
    assert "resuming from step 164" in result.stdout
    rows, wanted = rows_of(tmp_path / "run"), expected("stopped")
    assert len(rows) == wanted["rows"]
    for key, value in wanted["last"].items():
        assert rows[-1][key] == pytest.approx(value, abs=ROUNDING), key
    assert rows[:32] == rows_of(OLDER / "stopped")[:32]
    if compiled_alike():
        run = load_run(tmp_path / "run")
        assert tree_hash(run.params) == wanted["params_sha256"]
        assert rows[-1] == wanted["last"]
        assert run.sample("ROMEO:", num_tokens=40, seed=3) == wanted["sample"]


def test_older_runs_compare_with_new_ones(tiny_run, tmp_path):
    shutil.copytree(OLDER / "finished", tmp_path / "old")
    result = attempt("compare", tmp_path / "old", tiny_run, f"--out={tmp_path / 'c.html'}")
    assert result.returncode == 0, result.stderr
    assert "3.6351" in result.stdout


class EndAtOnce(Silent):
    def step(self, *_):
        os.kill(os.getpid(), signal.SIGTERM)


def test_going_on_with_other_numerics_is_refused_unless_it_is_asked_for(tmp_path, monkeypatch):
    from transformer_jax.runs import directory

    shutil.copytree(OLDER / "stopped", tmp_path / "run")
    newer = provenance.NUMERICS + 1
    run = RunDirectory(tmp_path / "run")
    monkeypatch.setitem(provenance.MOVES, newer, {"model.attention": ("linear",)})
    monkeypatch.setattr(directory, "NUMERICS", newer)
    run.refuse_other_numerics()  # what moved is no part of it
    monkeypatch.setitem(provenance.MOVES, newer, {})
    with pytest.raises(
        InvalidInput, match=rf"it has version 1 .* this code has {newer}"
    ) as refusal:
        run.refuse_other_numerics()
    assert "--across_numerics" in str(refusal.value)
    RunDirectory(OLDER / "finished").refuse_other_numerics()  # nothing is computed any more
    config = load_config("configs/tiny.py", {**STOPPED, "training.steps": "600"})
    with pytest.raises(InvalidInput, match="across_numerics"):
        train(config, tmp_path / "run", Silent())
    monkeypatch.setattr(provenance, "NUMERICS", newer)
    provenance.surroundings.cache_clear()
    with pytest.raises(Interrupted):
        train(config, tmp_path / "run", EndAtOnce(), across_numerics=True)
    assert run.manifest()["launches"][-1]["numerics"] == newer
    run.refuse_other_numerics()  # from now on it has these
    monkeypatch.setattr(directory, "NUMERICS", 1)
    with pytest.raises(InvalidInput, match=rf"it has version {newer} .* this code has 1"):
        run.refuse_other_numerics()
    provenance.surroundings.cache_clear()

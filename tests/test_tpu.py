"""The real TPU compiler, without a TPU: `make tpu` has it in an environment of its own."""

import json
import os
import subprocess

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.tpu


def plan(*arguments):
    done = subprocess.run(
        [os.environ["TPU_PYTHON"], "-m", "experiments.plan", "--json", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_step_is_planned_for_a_tpu():
    plans = plan(
        *("--config=configs/shakespeare.py", "--device=v5e", "--config.data.length=256"),
        *("--config.training.batch_size=64", "--compare=model.remat=block model.scan_layers=True"),
        "--compare=model.remat=block model.scan_layers=True model.attention_chunk=64",
        "--compare=data.length=1024 training.batch_size=16",
        "--compare=data.length=1024 training.batch_size=16 model.attention=fused",
        "--compare=training.batch_size=65536",
    )
    stands, remat, chunks, long, fused, large = plans.values()
    mib = 1 << 20
    assert stands["fits"]
    assert stands["memory"] == 15.75 * 1024 * mib
    # Weights of 4 blocks alone, [64, 4, 256, 256] of float32, are 256 MiB.
    assert 200 * mib < stands["held"]["the step"] < 2048 * mib
    assert remat["held"]["the step"] < stands["held"]["the step"] / 2
    assert chunks["held"]["the step"] < remat["held"]["the step"]
    assert remat["step_flops"] > stands["step_flops"] >= stands["model_flops"]
    assert any("block_*/" in held["site"] for held in stands["largest"])
    # A loop's body counts as often as it runs: what is computed twice moves more, not a quarter.
    assert 1 < remat["traffic"] / stands["traffic"] < 1.7
    assert (long["kernels"], fused["kernels"]) == ([], ["splash"])
    assert fused["held"]["the step"] < 0.7 * long["held"]["the step"]
    assert fused["traffic"] < 0.7 * long["traffic"]
    assert not large["fits"]
    assert large["needed"] > large["memory"]
    assert large["estimate"] is None

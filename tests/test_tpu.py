"""The real TPU compiler, without a TPU: `make tpu` has it in an environment of its own."""

import json
import os
import subprocess

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.tpu


def plan(*arguments):
    words = [os.environ["TPU_PYTHON"], "-m", "experiments.plan", "--json", *arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_step_over_eight_chips_is_planned_for_a_tpu():
    """Parts of parameters and batch, the kernel on each chip's part, the loss in chunks."""
    parted, whole, alone = plan(
        *("--config=configs/shakespeare.py", "--device=v5e:2x4", "--config.data.length=1024"),
        *("--config.training.batch_size=32", "--config.model.attention=fused"),
        *("--config.model.remat=block", "--config.model.scan_layers=True"),
        *("--config.training.loss_chunk=128", "--config.mesh.fsdp=4", "--config.mesh.tensor=2"),
        "--compare=mesh.fsdp=1 mesh.tensor=1 mesh.data=8",
        "--compare=mesh.fsdp=1 mesh.tensor=1",
    ).values()
    assert [each["attention"] for each in (parted, whole, alone)] == [["splash"]] * 3
    assert parted["held"]["parameters"] < whole["held"]["parameters"] / 4
    assert whole["held"]["parameters"] == alone["held"]["parameters"]
    assert whole["needed"] < alone["needed"] / 4
    assert parted["needed"] < alone["needed"] / 4  # 8 examples a chip, of half of the heads
    assert whole["seconds"]["products"] == alone["seconds"]["products"] / 8
    assert {"all-gather", "collective-permute"} & parted["kernels"].keys()
    assert "all-reduce" in whole["kernels"]  # of gradients
    assert not any(kind.startswith("all-") for kind in alone["kernels"])


def test_a_step_is_planned_for_a_tpu():
    plans = plan(
        *("--config=configs/shakespeare.py", "--device=v5e", "--config.data.length=256"),
        *("--config.training.batch_size=64", "--compare=model.remat=block model.scan_layers=True"),
        "--compare=model.remat=block model.scan_layers=True model.attention=chunked model.attention_options.size=64",
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
    assert (long["attention"], fused["attention"]) == ([], ["splash"])
    assert fused["held"]["the step"] < 0.7 * long["held"]["the step"]
    assert fused["traffic"] < 0.7 * long["traffic"]
    assert not large["fits"]
    assert large["needed"] > large["memory"]
    assert large["estimate"] is None

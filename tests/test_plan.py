"""Plans of a step: counted from the compiled program, and refused before a run begins."""

import json
import math

import jax
import numpy as np
import pytest

from experiments.plan import main as plan_main
from tests.conftest import ROOT, TINY, a_few_of, attempt, command, refused, tiny_config
from transformer_jax.config_files import load_config
from transformer_jax.errors import InvalidInput
from transformer_jax.planning.devices import DEVICES, Device, find_device
from transformer_jax.planning.hlo import Buffer, kernels, largest_buffers, traffic_of
from transformer_jax.planning.plan import bytes_accessed, lowered_for, make_plan, stand_in
from transformer_jax.training import memory
from transformer_jax.training.loop import train
from transformer_jax.training.prepared import prepare

CONFIGS_OF_PLANS = ("gpt2_124m", "gpt2_350m", "gpt_1300m", "llama_7b")


def here(nbytes):
    rates = {"float32": 1e9, "bfloat16": 2e9}
    return Device("cpu", "cpu", nbytes, rates, 1e9, tuple(jax.devices("cpu")), {})


AMPLE = here(1 << 40)


@pytest.fixture(scope="module")
def tiny_step():
    config = tiny_config(model__dropout_rate=0.0)  # whose random bits are drawn in loops
    return config, lowered_for(prepare(config), jax.devices("cpu")[0]).compile()


def test_traffic_without_loops_is_what_xla_counts(tiny_step):
    config, compiled = tiny_step
    counted = compiled.cost_analysis()
    found = bytes_accessed(compiled, counted["flops"], config)
    assert found == pytest.approx(counted["bytes accessed"], rel=1e-6)
    assert traffic_of(compiled.as_text()) == pytest.approx(found, rel=0.01)


@pytest.mark.thorough
def test_blocks_in_a_loop_move_about_what_blocks_one_by_one_do():
    changes = {"model__depth": 4, "training__batch_size": 32, "data__length": 32}
    apart, looped = (
        make_plan(tiny_config(model__remat="block", model__scan_layers=loop, **changes), AMPLE)
        for loop in (False, True)
    )
    assert looped.step_flops == apart.step_flops
    assert 0.5 < looped.traffic / apart.traffic < 2  # of loops it is an estimate


def test_a_loop_moves_its_body_as_often_as_it_runs():
    def scaled(matrix, rows):
        step = lambda carry, row: (carry + matrix * row, (carry * row).sum())
        return jax.lax.scan(step, matrix, rows)

    shapes = [jax.ShapeDtypeStruct(shape, "float32") for shape in ((8, 64), (500, 64))]
    text = jax.jit(scaled).lower(*shapes).compile().as_text()
    matrix, rows = 4 * 8 * 64, 4 * 500 * 64
    assert 500 * 3 * matrix < traffic_of(text) < 500 * 20 * matrix < 500 * rows
    assert sum(kernels(text).values()) > 1000


def test_a_plan_says_what_is_held_and_who_makes_the_largest_arrays(tiny_step):
    config, compiled = tiny_step
    plan = make_plan(config, AMPLE)
    told = compiled.memory_analysis()
    assert plan.fits
    assert plan.needed == sum(plan.held.values())
    assert plan.needed == told.temp_size_in_bytes + told.argument_size_in_bytes + (
        told.output_size_in_bytes - told.alias_size_in_bytes
    )
    assert plan.held["optimizer"] >= 2 * plan.held["parameters"] == 8 * plan.parameters
    assert plan.per_step == 8 * 16
    assert plan.seconds["products"] == plan.step_flops / 1e9
    assert plan.estimate == max(plan.seconds.values())
    assert plan.step_flops >= plan.model_flops > 6 * 25_000 * 128
    assert any("block_*/" in held.site for held in plan.largest)
    assert not make_plan(config, here(plan.needed - 1)).fits


def test_inside_loops_arrays_have_the_names_of_their_modules():
    config = tiny_config(model__remat="block", model__scan_layers=True, model__depth=4)
    compiled = lowered_for(prepare(config), jax.devices("cpu")[0]).compile()
    sites = {held.site for held in largest_buffers(compiled.as_text(), 1000)}
    assert "block_*/feed_forward/up/dot_general" in sites
    assert any(site.startswith("gradient of block_*/attention/") for site in sites)


def test_a_text_that_is_not_there_is_not_needed():
    changes = {"data.source": "nowhere", "data.tokenizer": "bpe", "data.vocab_size": "5000"}
    masked = {"data.task": "masked_language_modelling", "model.architecture": "encoder"}
    for options in ({}, masked):
        made = stand_in(load_config(TINY, changes | options))
        assert made.sizes["vocab_size"] >= 5000
        assert made.batch(0, 0)["targets"].shape == (8, 16)
    own = {"data.source": "tests.conftest:tiny_config", "data.tokenizer": "byte"}
    assert stand_in(tiny_config()) is stand_in(load_config(TINY, own)) is None
    with pytest.raises(InvalidInput, match=r"data\.source=nowhere.*\n.*data\.vocab_size"):
        stand_in(load_config(TINY, {"data.source": "nowhere"}))


def test_the_memory_of_a_job_is_that_of_its_group(tmp_path):
    root, own = tmp_path / "fs", tmp_path / "own"
    found = lambda: {p.read_text() for p in memory._limits_of_groups(own, root) if p.exists()}
    (root / "slurm" / "job_1").mkdir(parents=True)
    (root / "slurm" / "memory.max").write_text("max\n")
    (root / "slurm" / "job_1" / "memory.max").write_text("1000\n")
    own.write_text("0::/slurm/job_1/step_0\n")
    assert found() == {"1000\n", "max\n"}
    (root / "memory" / "job").mkdir(parents=True)
    (root / "memory" / "job" / "memory.limit_in_bytes").write_text("7")
    own.write_text("4:cpu,memory:/job\n2:pids:/job\n")
    assert found() == {"7"}


def test_a_step_that_does_not_fit_is_refused_and_leaves_its_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "device_memory", lambda device: 600_000)
    with pytest.raises(InvalidInput) as error:
        train(tiny_config(), tmp_path / "run")
    lines = str(error.value).splitlines()
    assert lines[0].startswith("the training step needs 0.0 GiB; this cpu has 0.0 GiB")
    assert "  --config.model.remat=block --config.model.scan_layers=True" in lines
    assert len(lines) <= 8
    assert not (tmp_path / "run" / "config.json").exists()
    monkeypatch.setattr(memory, "device_memory", lambda device: 1000)
    with pytest.raises(InvalidInput, match="parameters, optimizer and gradients need"):
        train(tiny_config(), tmp_path / "run")
    make_plan(tiny_config(), AMPLE)  # for another device
    monkeypatch.undo()
    train(tiny_config(model__depth=1), tmp_path / "run")  # another config may have the directory


class Refused(jax.errors.JaxRuntimeError):
    pass


HBM = "Ran out of memory on HBM, the total memory required for HLO "


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (HBM + "temporaries (47.66G) exceeds available HBM (15.75G).", int(47.66 * 2**30)),
        ("Used 512.50M of 15.75G hbm.", int(512.5 * 2**20)),
        ("Out of memory while trying to allocate 1024 bytes.", 1024),
        ("something", 0),
        ("Used 17.50M of 16.00M vmem.", None),
        ("Shared memory size limit exceeded", None),
    ],
)
def test_a_compiler_that_refuses_says_how_much_it_wanted(text, wanted):
    assert memory.bytes_refused(Refused(f"RESOURCE_EXHAUSTED: {text}")) == wanted


def test_a_refusal_of_the_compiler_is_explained():
    for text, said in (("Used 512.50M of 15.75G hbm.", r"0\.5 GiB"), ("x", "more memory than")):
        with (
            pytest.raises(InvalidInput, match=f"the training step needs {said}"),
            memory.refusal_explained(tiny_config()),
        ):
            raise Refused(f"RESOURCE_EXHAUSTED: {text}")
    with pytest.raises(Refused) as other, memory.refusal_explained(tiny_config()):
        raise Refused("INTERNAL: x")
    assert memory.bytes_refused(other.value) is None


def test_remedies_are_those_that_a_config_can_take():
    names = lambda **changes: [*memory.remedies_for(tiny_config(**changes))]
    assert names() == ["bfloat16", "blocks recomputed", "the batch in parts"]
    longer = ["loss in chunks", "bfloat16", "attention in chunks", *names()[1:]]
    assert names(data__length=256) == longer
    taken = {"model__remat": "block", "model__dtype": "bfloat16", "training__batch_size": 7}
    assert names(**taken) == []
    digits = load_config(str(ROOT / "configs/digits.py"), {})
    assert "loss in chunks" not in memory.remedies_for(digits)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v5", r"--device=v5: expected one of .* did you mean"),
        ("v5e", r"--device=v5e: .*train,tpu\]"),
        ("h100", r"--device=h100: .*train,cuda\]"),
        ("h200", r"--device=h200: .*train,cuda\]"),
        ("gpu", "--device=gpu: jax finds no such device here"),
        ("h100:16", "1 to 8"),
        ("v5e:16", "v5e:1x1"),
        ("cpu:3", "JAX_NUM_CPU_DEVICES"),
    ],
)
def test_devices_are_refused_by_name_and_without_their_compiler(name, words):
    with pytest.raises(InvalidInput, match=words):
        find_device(name)


def test_rates_of_this_machine_are_measured():
    cpu = find_device("cpu")
    assert 1e9 < cpu.rates["float32"] < 1e14
    assert 1e8 < cpu.bandwidth < 1e13


@pytest.mark.commands
def test_plan_prints_json_of_every_variant(tmp_path):
    out = tmp_path / "plan.json"
    done = command(
        *("plan", f"--config={TINY}", "--json", f"--out={out}", "--compare=model.remat=block"),
        *("--remedies", "--steps=2"),
    )
    assert done.returncode == 0, done.stderr
    plans = json.loads(done.stdout)
    assert plans == json.loads(out.read_text())
    assert list(plans)[:2] == ["as it stands", "model.remat=block"]
    assert list(plans)[-1] == "all of these"
    stands, remat = list(plans.values())[:2]
    assert stands["fits"]
    assert len(stands["taken"]["seconds"]) == 3
    assert 0 < min(remat["taken"]["seconds"]) < 10
    assert remat["step_flops"] > stands["step_flops"]
    assert np.isclose(remat["model_flops"], stands["model_flops"])
    table = attempt("plan", f"--config={TINY}", "--compare=model.depth=1").stdout
    assert "fits: needs" in table
    assert "model.depth=1" in table


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--compare=model.depth", ["--compare=model.depth: expected KEY=VALUE"]),
        ("--compare=model.depth='3", ["No closing quotation"]),
        ("--compare=model.dept=3", ["model.depth"]),
        ("--out=nowhere/plan.json", ["--out=nowhere/plan.json: expected a file"]),
        ("--device=v5e --steps=2", ["--steps=2", "cpu or gpu"]),
    ],
)
def test_what_plan_cannot_read_is_refused(flags, words):
    refused(attempt("plan", f"--config={TINY}", *flags.split()), *words)


def test_help_names_every_device(capsys):
    with pytest.raises(SystemExit):
        plan_main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in DEVICES)


RECORDS = (
    *("gpt2_124m", "gpt2_350m", "gpt_1300m", "gpt_1300m_v5e_4x4", "gpt_1300m_h100_8"),
    *("llama_7b_v5p_4x4x4", "llama_7b_v5e_8x16", "llama_7b_h100_8"),
)


@pytest.mark.parametrize("name", a_few_of(RECORDS, ("gpt2_124m",)))
def test_the_record_of_a_plan_is_of_its_config(name):
    stored = json.loads((ROOT / f"experiments/results/plans/{name}.json").read_text())
    (config_name,) = (c for c in CONFIGS_OF_PLANS if name.startswith(c))
    config = load_config(str(ROOT / f"configs/{config_name}.py"), {})
    made = prepare(config, task=stand_in(config))
    plan = stored["as it stands"]
    assert plan["parameters"] == made.num_parameters
    if not plan.get("mesh"):  # those of many devices say how many examples each has
        assert plan["per_step"] == config.training.batch_size * config.data.length
    else:
        devices = math.prod(plan["mesh"].values())
        assert plan["held"]["optimizer"] < 8.1 * plan["parameters"] / devices
    assert plan["fits"]


# As the TPU compiler writes: tiles, arrays on the chip, a slice in a fusion inside a fusion.
AS_ON_A_TPU = """HloModule jit_f

%inner (p.0: f32[12,8,128], p.1: s32[]) -> f32[1,8,128] {
  %p.0 = f32[12,8,128]{2,1,0:T(8,128)} parameter(0)
  %p.1 = s32[]{:T(128)} parameter(1)
  %zero.1 = s32[]{:T(128)} constant(0)
  ROOT %row = f32[1,8,128]{2,1,0:T(8,128)} dynamic-slice(%p.0, %p.1, %zero.1, %zero.1)
}

%outer (q.0: s32[], q.1: f32[12,8,128]) -> f32[8,100] {
  %q.0 = s32[]{:T(128)} parameter(0)
  %q.1 = f32[12,8,128]{2,1,0:T(8,128)} parameter(1)
  %row.1 = f32[1,8,128]{2,1,0:T(8,128)} fusion(%q.1, %q.0), kind=kLoop, calls=%inner
  ROOT %cut = f32[8,100]{1,0:T(8,128)} slice(%row.1), slice={[0:8], [0:100]}
}

%body (b: (s32[], f32[12,8,128])) -> (s32[], f32[12,8,128]) {
  %b = (s32[]{:T(128)}, /*index=1*/f32[12,8,128]{2,1,0:T(8,128)}) parameter(0)
  %i = s32[]{:T(128)S(6)} get-tuple-element(%b), index=0
  %stack = f32[12,8,128]{2,1,0:T(8,128)} get-tuple-element(%b), index=1
  %made = f32[8,100]{1,0:T(8,128)} fusion(%i, %stack), kind=kLoop, calls=%outer, \
metadata={op_name="jit(f)/while/body/jvp(Decoder)/Decoder.run_blocks/block_3/up/dot"}
  %near = f32[8,100]{1,0:T(8,128)S(1)} copy(%made)
  %one = s32[]{:T(128)S(6)} constant(1)
  %next = s32[]{:T(128)S(6)} add(%i, %one)
  ROOT %both = (s32[]{:T(128)}, f32[12,8,128]{2,1,0:T(8,128)}) tuple(%next, %stack)
}

%condition (c: (s32[], f32[12,8,128])) -> pred[] {
  %c = (s32[]{:T(128)}, f32[12,8,128]{2,1,0:T(8,128)}) parameter(0)
  %count = s32[]{:T(128)S(6)} get-tuple-element(%c), index=0
  %end = s32[]{:T(128)S(6)} constant(12)
  ROOT %goes_on = pred[]{:T(512)S(6)} compare(%count, %end), direction=LT
}

ENTRY %main (x: f32[12,8,128]) -> f32[12,8,128] {
  %x = f32[12,8,128]{2,1,0:T(8,128)} parameter(0)
  %start = s32[]{:T(128)} constant(0)
  %state = (s32[]{:T(128)}, f32[12,8,128]{2,1,0:T(8,128)}) tuple(%start, %x)
  %loop = (s32[]{:T(128)}, f32[12,8,128]{2,1,0:T(8,128)}) while(%state), condition=%condition, \
body=%body
  ROOT %end.1 = f32[12,8,128]{2,1,0:T(8,128)} get-tuple-element(%loop), index=1
}
"""


def test_a_tpu_program_is_read():
    (largest, *_) = largest_buffers(AS_ON_A_TPU, 10)
    row = 8 * 128 * 4  # 100 columns take 128
    assert largest == Buffer(row, "f32[8,100]", "block_*/up/dot", 1)
    assert kernels(AS_ON_A_TPU) == {"fusion": 1, "copy": 1, "add": 1, "compare": 1} or (
        kernels(AS_ON_A_TPU)["fusion"] == 1
    )


@pytest.mark.commands
def test_a_step_over_eight_devices_is_planned():
    done = command(
        *("plan", "--config=tiny", "--topology=cpu:8", "--json", "--config.model.num_heads=4"),
        *("--mesh=fsdp=4,tensor=2", "--compare=mesh.fsdp=1 mesh.tensor=1", "--steps=1"),
        JAX_NUM_CPU_DEVICES="8",
    )
    assert done.returncode == 0, done.stderr
    parted, alone = json.loads(done.stdout).values()
    assert (parted["mesh"], alone["mesh"]) == ({"fsdp": 4, "tensor": 2}, {})
    # All kernels are cut into 8; the vocabulary of 65 is not, and its table by the width alone.
    assert parted["held"]["parameters"] < alone["held"]["parameters"] / 5
    assert parted["seconds"]["products"] == pytest.approx(alone["seconds"]["products"] / 8, rel=0.5)
    assert {"all-gather", "all-reduce"} <= parted["kernels"].keys()
    assert not {"all-gather", "all-reduce"} & alone["kernels"].keys()
    assert len(parted["taken"]["seconds"]) == len(alone["taken"]["seconds"]) == 3

"""What a step would need: counted from the compiled program, and refused before a run begins."""

import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import costs
from experiments.plan import main as plan_main
from experiments.plan import meshes_of
from tests.conftest import ROOT, TINY, a_few_of, attempt, command, refused, tiny_config
from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import load_config
from transformer_jax.planning.devices import DEVICES, Device, find_device
from transformer_jax.planning.hlo import Program
from transformer_jax.planning.plan import lowered_for, make_plan, stand_in
from transformer_jax.training import memory
from transformer_jax.training.prepared import prepare

CONFIGS_OF_PLANS = ("gpt2_124m", "gpt2_350m", "gpt_1300m", "llama_7b")


def text_of(function, *arguments):
    return jax.jit(function).lower(*arguments).compile()


def here(nbytes):
    rates = {"float32": 1e9, "bfloat16": 2e9}
    return Device("cpu", "cpu", nbytes, rates, 1e9, tuple(jax.devices("cpu")), None, {})


@pytest.fixture(scope="module")
def tiny_step():
    config = tiny_config(model__dropout_rate=0.0)  # whose random bits are drawn in loops
    return config, lowered_for(prepare(config), jax.devices("cpu")[0]).compile()


def test_traffic_without_loops_is_what_xla_counts(tiny_step):
    _, compiled = tiny_step
    counted = Program(compiled.as_text()).traffic()
    assert counted == pytest.approx(compiled.cost_analysis()["bytes accessed"], rel=1e-3)


def test_a_loop_counts_as_often_as_it_runs():
    def steps(count):
        def run(x, w):
            return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, count)[0]

        compiled = text_of(run, jnp.ones((128, 128)), jnp.ones((128, 128)))
        return Program(compiled.as_text()).traffic(), compiled.cost_analysis()["bytes accessed"]

    (three, once), (seven, same) = steps(3), steps(7)
    assert once == same  # XLA's own count does not know
    body = (seven - three) / 4
    assert 3 * body <= three <= 3 * body + 4 * 128 * 128 * 4
    assert 3 * 128 * 128 * 4 <= body <= 8 * 128 * 128 * 4


def test_a_loop_counts_the_rows_that_it_reads_and_writes():
    def run(rows):
        return jax.lax.map(lambda row: jnp.sin(row) + 1, rows)

    traffic = [
        Program(text_of(run, jnp.ones((count, 1024))).as_text()).traffic() for count in (8, 64)
    ]
    assert traffic[1] / traffic[0] == pytest.approx(8, rel=0.2)  # not 64, as whole arrays would


@pytest.mark.thorough
def test_blocks_in_a_loop_move_about_what_blocks_one_by_one_do():
    changes = {"model__depth": 4, "training__batch_size": 32, "data__length": 32}
    traffic, flops = [], []
    for loop in (False, True):
        config = tiny_config(model__remat="block", model__scan_layers=loop, **changes)
        plan = make_plan(config, here(1 << 40))
        traffic.append(plan.traffic)
        flops.append(plan.step_flops)
    assert flops[0] == flops[1]
    assert 0.9 < traffic[1] / traffic[0] < 2  # parameters are stacked


def test_a_plan_says_what_is_held_and_who_makes_the_largest_arrays(tiny_step):
    config, compiled = tiny_step
    plan = make_plan(config, here(1 << 40))
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
    sites = {held.site for held in Program(compiled.as_text()).largest(1000)}
    assert "block_*/feed_forward/up/dot_general" in sites
    assert any(site.startswith("gradient of block_*/attention/") for site in sites)


def test_a_text_that_is_not_there_is_not_needed():
    changes = {"data.source": "nowhere", "data.tokenizer": "bpe", "data.vocab_size": "5000"}
    for task in ("language_modelling", "masked_language_modelling"):
        architecture = "decoder" if task == "language_modelling" else "encoder"
        options = {"data.task": task, "model.architecture": architecture}
        made = stand_in(load_config(TINY, changes | options))
        assert made.sizes["vocab_size"] >= 5000
        assert made.batch(0, 0)["targets"].shape == (8, 16)
    assert stand_in(tiny_config()) is None
    with pytest.raises(InvalidInput, match=r"data\.source=nowhere.*\n.*data\.vocab_size"):
        stand_in(load_config(TINY, {"data.source": "nowhere"}))


def test_the_memory_of_a_job_is_that_of_its_group(tmp_path):
    root, own = tmp_path / "fs", tmp_path / "own"
    (root / "slurm" / "job_1").mkdir(parents=True)
    (root / "slurm" / "memory.max").write_text("max\n")
    (root / "slurm" / "job_1" / "memory.max").write_text("1000\n")
    own.write_text("0::/slurm/job_1/step_0\n")
    there = [path for path in memory._limits_of_groups(own, root) if path.exists()]
    assert {path.read_text() for path in there} == {"1000\n", "max\n"}
    (root / "memory" / "job").mkdir(parents=True)
    (root / "memory" / "job" / "memory.limit_in_bytes").write_text("7")
    own.write_text("4:cpu,memory:/job\n2:pids:/job\n")
    there = [path for path in memory._limits_of_groups(own, root) if path.exists()]
    assert [path.read_text() for path in there] == ["7"]


def test_a_step_that_does_not_fit_is_refused_and_leaves_its_directory(tmp_path, monkeypatch):
    from transformer_jax.training.loop import train

    monkeypatch.setattr(memory, "device_memory", lambda device: 600_000)
    with pytest.raises(InvalidInput) as error:
        train(tiny_config(), tmp_path / "run")
    lines = str(error.value).splitlines()
    assert lines[0].startswith("the training step needs 0.0 GiB, this cpu has 0.0")
    assert "  --config.model.remat=block --config.model.scan_layers=True" in lines
    assert len(lines) <= 8
    assert not (tmp_path / "run" / "config.json").exists()
    monkeypatch.setattr(memory, "device_memory", lambda device: 1000)
    with pytest.raises(InvalidInput, match="parameters, optimizer and gradients need"):
        train(tiny_config(), tmp_path / "run")
    make_plan(tiny_config(), here(1 << 40))  # for another device
    monkeypatch.undo()
    train(tiny_config(model__depth=1), tmp_path / "run")  # another config may have the directory


def test_a_compiler_that_refuses_says_how_much_it_wanted():
    class Refused(jax.errors.JaxRuntimeError):
        pass

    def wanted(text):
        return memory.bytes_refused(Refused(text))

    hbm = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO "
    assert wanted(hbm + "temporaries (47.66G) exceeds available HBM (15.75G).") == int(
        47.66 * 2**30
    )
    assert wanted("RESOURCE_EXHAUSTED: Used 512.50M of 15.75G hbm.") == int(512.5 * 2**20)
    assert wanted("RESOURCE_EXHAUSTED: something") == 0
    assert wanted("INVALID_ARGUMENT: something") is None

    assert wanted("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1024 bytes.") == 1024
    assert wanted("RESOURCE_EXHAUSTED: Used 17.50M of 16.00M vmem.") is None
    assert wanted("RESOURCE_EXHAUSTED: Shared memory size limit exceeded") is None
    for text, said in (("Used 512.50M of 15.75G hbm.", r"0\.5 GiB"), ("x", "more memory than")):
        with (
            pytest.raises(InvalidInput, match=f"the training step needs {said}"),
            memory.refusal_explained(tiny_config()),
        ):
            raise Refused(f"RESOURCE_EXHAUSTED: {text}")
    with pytest.raises(Refused), memory.refusal_explained(tiny_config()):
        raise Refused("INTERNAL: x")


def test_remedies_are_those_that_a_config_can_take():
    def names(**changes):
        return list(memory.remedies_for(tiny_config(**changes)))

    assert names(data__length=256) == [
        "loss in chunks",
        "bfloat16",
        "attention in chunks",
        "blocks computed again",
        "the batch in parts",
    ]
    assert names() == ["bfloat16", "blocks computed again", "the batch in parts"]
    taken = names(model__remat="block", model__dtype="bfloat16", training__batch_size=7)
    assert taken == []
    digits = load_config(str(ROOT / "configs/digits.py"), {})
    assert "loss in chunks" not in memory.remedies_for(digits)


def test_devices_are_refused_by_name_and_without_their_compiler():
    with pytest.raises(InvalidInput, match=r"--device=v5: expected one of .* did you mean"):
        find_device("v5")
    with pytest.raises(InvalidInput, match=r"--device=v5e: .*train,tpu\]"):
        find_device("v5e")
    for name in ("h100", "h200"):
        with pytest.raises(InvalidInput, match=rf"--device={name}: .*train,cuda\]"):
            find_device(name)
    with pytest.raises(InvalidInput, match=r"--device=gpu: jax sees none here"):
        find_device("gpu")


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


def test_what_plan_cannot_read_is_refused():
    done = attempt("plan", f"--config={TINY}", "--compare=model.depth")
    assert done.returncode == 2
    assert "--compare=model.depth: expected KEY=VALUE" in done.stderr
    done = attempt("plan", f"--config={TINY}", "--compare=model.depth='3")
    assert done.returncode == 2
    assert "No closing quotation" in done.stderr
    done = attempt("plan", f"--config={TINY}", "--out=nowhere/plan.json")
    assert done.returncode == 2
    assert "--out=nowhere/plan.json: expected a file" in done.stderr
    refused(
        attempt("plan", f"--config={TINY}", "--device=v5e", "--steps=2"), "--steps=2", "cpu or gpu"
    )
    done = attempt("plan", f"--config={TINY}", "--compare=model.dept=3")
    assert done.returncode == 2
    assert "model.depth" in done.stderr


def test_help_names_every_device(capsys):
    with pytest.raises(SystemExit):
        plan_main(["--help"])
    shown = capsys.readouterr().out
    assert all(name in shown for name in DEVICES)


@pytest.mark.parametrize(
    "name",
    a_few_of(
        (
            *("gpt2_124m", "gpt2_350m", "gpt_1300m", "gpt_1300m_v5e_4x4", "gpt_1300m_h100_8"),
            *("llama_7b_v5p_4x4x4", "llama_7b_v5e_8x16", "llama_7b_h100_8"),
        ),
        ("gpt2_124m",),
    ),
)
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
        assert plan["sent"]
        assert 0 < plan["sending"] < 0.5
        assert plan["held"]["optimizer"] < 8.1 * plan["parameters"] / math.prod(
            plan["mesh"].values()
        )
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
    program = Program(AS_ON_A_TPU)
    row = 8 * 128 * 4  # 100 columns take 128
    # Of the stack a row; the result, written and read again; the copy stays on the chip.
    assert program.traffic() == 12 * 3 * row
    (held,) = program.largest(1)
    assert (held.nbytes, held.shape, held.site) == (row, "f32[8,100]", "block_*/up/dot")


# As compilers write what devices send: groups as lists, as a reshaped range, as axes of a mesh.
SENDING = """HloModule jit_f

%body (b: (s32[], f32[64,256])) -> (s32[], f32[64,256]) {
  %b = (s32[], f32[64,256]) parameter(0)
  %i = s32[] get-tuple-element(%b), index=0
  %x = f32[64,256]{1,0} get-tuple-element(%b), index=1
  %w = bf16[8,256]{1,0:T(8,128)S(1)} convert(%x)
  %whole = bf16[64,256]{1,0} all-gather(%w), channel_id=1, replica_groups=[4,8]<=[32], \
dimensions={0}, metadata={op_name="jit(f)/while/body/jvp(Decoder)/block_3/up/dot_general"}
  %sum = f32[64,256]{1,0} all-reduce(%x), channel_id=2, replica_groups={{0,1},{2,3}}, to_apply=%add
  %one = s32[] constant(1)
  %middle = s32[] add(%i, %one)
  %next = s32[] add(%middle, %one)
  ROOT %both = (s32[], f32[64,256]) tuple(%next, %sum)
}

%all-reduce-scatter.1 (input: f32[64,256]) -> f32[32,256] {
  %input = f32[64,256]{1,0} parameter(0)
  %whole.1 = f32[64,256]{1,0} all-reduce(%input), channel_id=4, replica_groups={{0,1}}, to_apply=%add
  %zero = s32[] constant(0)
  ROOT %mine = f32[32,256]{1,0} dynamic-slice(%whole.1, %zero, %zero), dynamic_slice_sizes={32,256}
}

%condition (c: (s32[], f32[64,256])) -> pred[] {
  %c = (s32[], f32[64,256]) parameter(0)
  %count = s32[] get-tuple-element(%c), index=0
  %end = s32[] constant(5)
  ROOT %goes_on = pred[] compare(%count, %end), direction=LT
}

ENTRY %main (x: f32[64,256]) -> f32[32,256] {
  %x.1 = f32[64,256]{1,0} parameter(0)
  %start = s32[] constant(0)
  %state = (s32[], f32[64,256]) tuple(%start, %x.1)
  %loop = (s32[], f32[64,256]) while(%state), condition=%condition, body=%body
  %last = f32[64,256]{1,0} get-tuple-element(%loop), index=1
  %half = f32[32,256]{1,0} fusion(%last), kind=kCustom, calls=%all-reduce-scatter.1, \
metadata={op_name="jit(f)/half"}
  %moved = (f32[64,256], f32[64,256]) collective-permute-start(%last), source_target_pairs={{0,1}}, \
metadata={op_name="jit(f)/while/body/transpose(jvp(Decoder))/block_1/(up/dot;jit(f)/x:down/dot:out/dot)"}
  %there = f32[64,256]{1,0} collective-permute-done(%moved)
  ROOT %part = f32[16,256]{1,0} reduce-scatter(%there), channel_id=3, \
replica_groups=mesh['a'=2,'b'=4,'c'=2], device_ids=([2,8]T(1,0)) {'b':(2)2,'c'}, dimensions={0}
}
"""


def test_what_devices_send_is_counted_by_ring_and_by_loop():
    row = 256 * 4
    sent = {(each.kind, each.site): each for each in Program(SENDING).sent()}
    gathered = sent["all-gather", "block_*/up/dot_general"]
    # Each of 8 devices passes on the 7 parts that are not its own; on the chip a part is small too.
    assert (gathered.nbytes, gathered.count) == (3 * 7 * 8 * 256 * 2, 3)
    assert sent["all-reduce", ""].nbytes == 3 * 2 * (1 / 2) * 64 * row
    merged = "gradient of block_*/up/dot and 2 more"
    assert sent["collective-permute", merged].nbytes == 64 * row
    # Groups of 2 x 2 devices; and one that a TPU writes as a fusion, of 2.
    assert sent["reduce-scatter", ""].nbytes == (3 / 4 + 1 / 2) * 64 * row


# As compilers write what is sent while something else is computed: a result names operands too, but
# for a sum.
STARTING = """HloModule jit_f

ENTRY %main (x: f32[64,256], y: f32[8,256]) -> f32[64,256] {
  %x = f32[64,256]{1,0} parameter(0)
  %y = f32[8,256]{1,0} parameter(1)
  %begun = (f32[8,256]{1,0}, f32[64,256]{1,0}) all-gather-start(%y), replica_groups={{0,1,2,3,4,5,6,7}}
  %whole = f32[64,256]{1,0} all-gather-done(%begun)
  %parts = ((f32[64,256]{1,0}), f32[8,256]{1,0}) reduce-scatter-start(%x), replica_groups=[1,8]<=[8]
  %part = f32[8,256]{1,0} reduce-scatter-done(%parts)
  %sums = (f32[64,256]{1,0}, f32[8,256]{1,0}) all-reduce-start(%whole, %part), to_apply=%add
  %both = (f32[64,256]{1,0}, f32[8,256]{1,0}) all-reduce-done(%sums)
  ROOT %sum = f32[64,256]{1,0} get-tuple-element(%both), index=0
}
"""


def test_traffic_of_what_is_sent_meanwhile():
    """Each reads its operands and writes its results once."""
    gathered, scattered, summed = 8 + 64, 64 + 8, 2 * (64 + 8)
    assert Program(STARTING).traffic() == (gathered + scattered + summed) * 256 * 4


def test_meshes_that_are_tried_are_those_that_cut_heads_evenly():
    meshes = meshes_of(8, tiny_config(model__num_heads=4, model__num_kv_heads=2))
    shapes = [tuple(mesh.values()) for mesh in meshes]
    assert not meshes_of(8, tiny_config(training__batch_size=1))  # some devices would have nothing
    assert len(shapes) == len(set(shapes)) == 7
    assert {data * fsdp * tensor for data, fsdp, tensor in shapes} == {8}
    assert {tensor for _, _, tensor in shapes} == {1, 2}


def test_the_page_on_costs_is_of_its_figures(tmp_path):
    """`python -m experiments.costs` writes both."""
    figures = json.loads((ROOT / "experiments/results/costs.json").read_text())
    points = [costs.Point(**figure) for figure in figures]
    assert costs.page(points) == (ROOT / "docs/costs.md").read_text()
    assert {p.how for p in points} == set(costs._STYLES)
    asked = {
        (device, name, value)
        for device, by_name in costs._VALUES.items()
        for name, values in by_name.items()
        for value in values
    }
    gpus = {p.device for p in points} - set(costs._VALUES)
    assert gpus
    made = {("gpu" if p.device in gpus else p.device, p.swept, p.value) for p in points}
    assert made == asked
    costs.draw(points, tmp_path / "costs.svg")
    assert (tmp_path / "costs.svg").stat().st_size > 10_000


def test_what_cannot_be_linked_is_refused():
    for name, words in (
        ("h100:16", "1 to 8"),
        ("v5e:16", "v5e:1x1"),
        ("cpu:3", "JAX_NUM_CPU_DEVICES"),
    ):
        with pytest.raises(InvalidInput, match=words):
            find_device(name)


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
    kinds = {each["kind"] for each in parted["sent"]}
    assert {"all-gather", "all-reduce"} <= kinds
    assert not alone["sent"]
    assert len(parted["taken"]["seconds"]) == len(alone["taken"]["seconds"]) == 3


@pytest.mark.commands
def test_the_fastest_mesh_is_looked_for():
    done = command(
        *("plan", "--config=tiny", "--device=cpu:2", "--meshes", "--config.model.num_heads=2"),
        "--json",
        JAX_NUM_CPU_DEVICES="2",
    )
    plans = json.loads(done.stdout)
    seconds = {name: plan["estimate"] for name, plan in plans.items() if plan["mesh"]}
    assert len(seconds) == 3
    fastest = min(seconds, key=seconds.__getitem__)
    assert f"fastest that fits: {fastest}\n" in done.stderr


def test_a_source_of_ones_own_is_read():
    changes = {"data.source": "tests.conftest.tiny_config", "data.tokenizer": "byte"}
    assert stand_in(load_config(TINY, changes)) is None

"""Arrays over several devices: where the tables put them, and that a mesh changes no result."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec

from tests.conftest import ROOT, TINY, attempt, command, refused, start_python, tiny_config
from tests.meshes import CASES, holds
from transformer_jax import load_run
from transformer_jax.config_files import load_config
from transformer_jax.errors import InvalidInput
from transformer_jax.paths import by_path
from transformer_jax.placement import cut_at_site
from transformer_jax.sharding import AXES, Rules, Sharding, make_sharding
from transformer_jax.training import hooks
from transformer_jax.training.prepared import prepare
from transformer_jax.training.sharding_remarks import remarks_on_sharding

EIGHT = {"JAX_NUM_CPU_DEVICES": "8"}


def over(rules=None, **sizes):
    """A sharding over devices that are not there."""
    shape = tuple(sizes.get(axis, 1) for axis in AXES)
    return Sharding(AbstractMesh(shape, AXES), rules or Rules())


def test_a_hook_gathers_only_what_it_asks_for(tmp_path, monkeypatch):
    (tmp_path / "counting.py").write_text("def steps(step):\n    return {'number': step}\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(hooks, "whole", None)
    for names, numbers in (((), {}), (("counting:steps",), {"steps/number": 7.0})):
        assert hooks.call_hooks(None, "state", names, None, 0, 7, {"counting"})[1] == numbers


@pytest.mark.parametrize(
    ("path", "shape", "spec"),
    [
        ("block_3/attention/query/kernel", (32, 64), (("fsdp",), ("tensor",))),
        ("block_3/attention/out/kernel", (64, 32), (("tensor",), ("fsdp",))),
        ("block_3/feed_forward/down/kernel", (64, 32), (("tensor",), ("fsdp",))),
        ("block_3/feed_forward/up/kernel", (4, 32, 64), (None, ("fsdp",), ("tensor",))),  # experts
        ("blocks/block_0/attention/key/kernel", (12, 32, 64), (None, ("fsdp",), ("tensor",))),
        ("block_3/attention/query/bias", (64,), (("tensor",),)),
        ("block_3/attention/out/bias", (32,), ()),
        ("token_embedding/embedding", (65, 32), (None, ("fsdp",))),  # 2 does not divide 65
        ("positions/embedding", (16, 32), (None, ("fsdp",))),
        ("block_3/mixer/decay", (8, 16, 4), (None, ("fsdp",), None)),  # the largest
        ("blocks/block_0/mixer/decay", (12, 8, 4), (None, ("fsdp",), None)),  # of one block
        ("final_norm/scale", (32,), ()),
        # Adafactor keeps a row and a column of each kernel, here of one block and of twelve.
        ("v_row/block_0/attention/out/kernel", (32,), ()),
        ("v_row/blocks/block_0/attention/query/kernel", (12, 32), ()),
    ],
)
def test_parameters_and_the_optimizers_arrays_are_cut_by_path(path, shape, spec):
    sharding = over(fsdp=4, tensor=2)
    for prefix in ("", "params/", "opt_state/1/0/mu/"):
        assert sharding.of_parameter(prefix + path, shape).spec == PartitionSpec(*spec)


def test_nothing_is_cut_where_no_sharding_is_active():
    value = jnp.ones((4, 4))
    assert cut_at_site("block_0.residual", value) is value


@dataclasses.dataclass(frozen=True)
class Device:
    id: int
    slice_index: int = 0
    coords: tuple = ()
    platform: str = "gpu"
    device_kind: str = "H100"
    process_index: int = 0
    core_on_chip: int = 0


def fake(count, hosts=1):
    return [Device(n, n * hosts // count) for n in range(count)]


def slice_of_tpus(side, number=0, count=2):
    """One of several slices of v6e chips, which stand in a square."""
    places = [(x, y, 0) for y in range(side) for x in range(side)]
    first = number * side**2
    kind = {"platform": "tpu", "device_kind": "TPU v6 lite"}
    return [Device(first + n, number % count, place, **kind) for n, place in enumerate(places)]


def asked(**sizes):
    return {**dict.fromkeys(AXES, 1), **sizes}


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"data": 8, "fsdp": 2}, ["mesh.data=8 mesh.fsdp=2", "16 devices", "8 (H100)"]),
        (
            {"data": -1, "tensor": 3},
            [
                "mesh.data=-1 mesh.tensor=3",
                "8 (H100)",
                "expected a divisor of the device count, got 3",
            ],
        ),
        ({"data": -1, "tensor": 16}, ["expected a divisor of the device count, got 16"]),
    ],
)
def test_a_mesh_of_devices_that_are_not_there_is_refused(sizes, words):
    with pytest.raises(InvalidInput) as caught:
        make_sharding(asked(**sizes), Rules(), fake(8))
    for word in words:
        assert word in str(caught.value)


def test_one_device_has_no_mesh():
    for sizes in ({}, {"data": -1}):
        assert make_sharding(asked(**sizes), Rules(), fake(1)) is None


def laid_out(devices, **sizes):
    """The numbers of devices in a mesh, without its axes of one device."""
    mesh = make_sharding(asked(**sizes), Rules(), devices).mesh
    assert dict(mesh.shape) == asked(**sizes | {"data": mesh.shape["data"]})
    return np.vectorize(lambda device: device.id)(mesh.devices).squeeze()


def test_one_axis_takes_the_devices_that_are_left():
    made = make_sharding(asked(data=-1, tensor=2), Rules(), fake(8))
    assert str(made) == "8 devices, data=4 tensor=2"
    np.testing.assert_array_equal(laid_out(fake(8), data=-1, tensor=2), np.arange(8).reshape(4, 2))


def test_outer_axes_go_over_hosts_and_slices():
    """XLA gives the GPUs of each host a slice of their own; heads are cut within a host."""
    two = fake(16, hosts=2)
    np.testing.assert_array_equal(laid_out(two, data=-1), np.arange(16))
    np.testing.assert_array_equal(laid_out(two, data=2, tensor=8), np.arange(16).reshape(2, 8))
    across = laid_out(two, fsdp=4, tensor=4)
    np.testing.assert_array_equal(across // 8, [[0] * 4] * 2 + [[1] * 4] * 2)
    tpus = [*slice_of_tpus(4), *slice_of_tpus(4, 1)]
    np.testing.assert_array_equal(laid_out(tpus, data=2, fsdp=16) // 16, [[0] * 16, [1] * 16])
    uneven = "mesh.data=1 mesh.fsdp=12 .*: hosts or slices have 8, 4 devices; expected equal"
    with pytest.raises(InvalidInput, match=uneven):
        laid_out(two[:12], fsdp=12)


def test_a_mesh_is_refused_as_any_option_is(tmp_path):
    many = attempt("train", f"--config={TINY}", f"--workdir={tmp_path}", "--config.mesh.data=8")
    refused(many, "mesh.data=8: the mesh needs 8 devices, but there is 1", "JAX_NUM_CPU_DEVICES=8")
    assert [entry.name for entry in tmp_path.iterdir()] == [".lock"]
    for changes, words in (
        ({"mesh.data": "0"}, "an integer >= 1, or -1"),
        ({"mesh.data": "-1", "mesh.fsdp": "-1"}, "only one axis can take"),
        ({"mesh.rules": "defualt"}, "default, or your own MODULE:NAME"),
    ):
        with pytest.raises(InvalidInput, match=words):
            load_config(TINY, changes)


def test_what_a_mesh_leaves_idle_or_whole_is_told(monkeypatch):
    array = lambda *shape: jax.ShapeDtypeStruct(shape, np.float32)
    table = {"token_embedding": {"embedding": array(50257, 768)}}
    block = {"up": {"kernel": array(768, 3000)}, "down": {"kernel": array(3000, 768)}}
    examples = {"training.batch_size": (12, 1), "evaluation.batch_size": (16, 1)}
    counts = {"tensor": {"model.num_heads": 6}, "sequence": {"places of tokens": 64}}
    rules = Rules([("embedding$", (None, None))])
    for sharding, state, given, begin, end in (
        (over(data=8), table, examples, "12 examples over 8 devices: at most 2 each",
         "training.batch_size=16 costs no more time"),
        (over(data=3, fsdp=2), {}, examples, "", "evaluation.batch_size=18 costs no more time"),
        (over(tensor=16, fsdp=2), table | {"block_0": block}, {},
         "mesh.tensor=16 does not divide block_0/down/kernel [3000, 768] and 2 more",
         ", in all 165 MiB"),
        (over(rules, fsdp=2), table, {},
         "mesh.rules do not cut token_embedding/embedding [50257, 768]", ", in all 147 MiB"),
    ):  # fmt: skip
        (line,) = remarks_on_sharding(sharding, state, given)
        assert line.startswith(begin)
        assert line.endswith(end)
    assert not remarks_on_sharding(over(data=4), table, {"training.batch_size": (12, 3)})
    (line, _) = remarks_on_sharding(over(tensor=8, sequence=2), table, {}, counts)
    assert line.startswith("mesh.tensor=8 does not divide model.num_heads=6")
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    (line,) = remarks_on_sharding(None, table, examples)
    assert line == "7 of 8 devices stay idle; --config.mesh.data=-1 uses all"
    (line,) = remarks_on_sharding(over(data=6), table, {})
    assert line.startswith("2 of 8 devices stay idle")


def on_eight(*cases):
    """Returns results of `tests.meshes` by the name of the case."""
    process = start_python("-m", "tests.meshes", *cases, **EIGHT, TF_CPP_MIN_LOG_LEVEL="0")
    said, _ = process.communicate()
    assert process.returncode == 0, said[-2000:]
    told = [json.loads(line) for line in said.splitlines() if line.startswith('{"case"')]
    return {one["case"]: one for one in told}, said


@pytest.mark.thorough
def test_eight_devices_give_what_one_gives():
    told, said = on_eight("mixed")
    holds(told["mixed"])
    places = told["mixed"]["places"]
    assert places["block_0/attention/query/kernel"] == "P('fsdp', 'tensor')"
    assert places["block_0/attention/out/kernel"] == "P('tensor', 'fsdp')"
    assert "rematerialization" not in said  # XLA found a way between any two cuts


@pytest.mark.thorough
def test_gradients_of_texts_in_parts_are_those_of_whole_ones():
    apart = on_eight("texts in parts")[0]["texts in parts"]["apart"]
    assert {"rotary logits", "t5 block_0/attention/key/kernel"} <= apart.keys()
    assert max(apart.values()) < 5e-6, apart


@pytest.mark.thorough
@pytest.mark.parametrize(
    "half", [pytest.param(n, marks=pytest.mark.xdist_group(f"meshes {n}")) for n in range(2)]
)
def test_every_architecture_and_mixed_rows_give_what_one_device_gives(half):
    cases = list(CASES)[half::2]
    told, _ = on_eight(*cases)
    assert list(told) == cases
    for one in told.values():
        holds(one)


@pytest.mark.commands
def test_one_override_takes_a_config_to_eight_devices():
    done = command("train", "--config=shakespeare", "--fast", "--config.mesh.data=8", **EIGHT)
    assert done.returncode == 0, done.stderr
    assert "8 devices, data=8" in done.stdout
    assert "12 examples over 8 devices: at most 2 each, some with fewer" in done.stdout


@pytest.mark.commands
def test_a_run_goes_on_over_another_mesh(tmp_path):
    """Same data, and losses within the tolerance; weights go from one device to eight too."""
    few = ["--config=tiny", "--config.checkpoint.every=25", "--config.logging.every=1"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    assert not attempt("train", *few, f"--workdir={whole}").returncode
    begun = command("train", *few, f"--workdir={parts}", "--config.mesh.fsdp=-1", **EIGHT)
    assert begun.returncode == 0, begun.stderr
    assert "8 devices, fsdp=8" in begun.stdout
    # A bit of the newest is flipped: on one device it goes on from what eight had saved before.
    files = [file for file in parts.glob("checkpoints/00000050/state/**/*") if file.is_file()]
    largest = max(files, key=lambda file: file.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1] + bytes([largest.read_bytes()[-1] ^ 1]))
    (parts / "STATUS").write_text("running\n")
    again = command("train", *few, f"--workdir={parts}")
    assert again.returncode == 0, again.stderr
    assert "SKIPPED 00000050" in again.stdout
    assert "resuming from step 25" in again.stdout
    assert "mesh changed since this run began" in again.stdout
    one, many = (
        [(row["step"], row["train/loss"]) for row in load_run(path).metrics if "train/loss" in row]
        for path in (whole, parts)
    )
    np.testing.assert_allclose(one, many, rtol=0, atol=2e-5)
    from_weights = [f"--config.initial.weights={whole}", "--config.mesh.fsdp=4"]
    for short in ("--dry_run", "--fast"):
        done = command("train", "--config=tiny", *from_weights, short, **EIGHT)
        assert done.returncode == 0, done.stderr
    assert "arrays" in done.stdout
    # What is trained is scored and sampled over another mesh than it was trained on.
    for verb, more in (("evaluate", ["--split=test"]), ("sample", ["--temperature=0"])):
        asked = (verb, f"--workdir={whole}", "--json", *more)
        on_one, on_many = attempt(*asked), command(*asked, "--mesh=fsdp=2,tensor=4", **EIGHT)
        assert on_many.returncode == 0, on_many.stderr
        one_said, many_said = (json.loads(done.stdout) for done in (on_one, on_many))
        if verb == "sample":
            assert one_said == many_said
        else:
            assert one_said["means"] == pytest.approx(many_said["means"], abs=5e-6)
    manifest = json.loads((parts / "manifest.json").read_text())
    assert manifest["mesh"]["fsdp"] == -1
    assert manifest["launches"][1]["mesh"]["fsdp"] == 1


def test_a_run_is_loaded_over_devices_that_are_there(tiny_run):
    run = load_run(tiny_run, mesh={"data": 1})
    assert run.sharding is None
    for mesh, words in (
        ("fsdp=8", ["mesh.fsdp=8: the mesh needs 8 devices, but there is 1"]),
        ("fdsp=1", ["mesh.fdsp", "mesh.fsdp?"]),
        ("fsdp", ["--mesh", "fsdp: expected each axis once, with a number of devices"]),
        ("fsdp=2,fsdp=4", ["--mesh", "fsdp=2,fsdp=4: expected each axis once"]),
    ):
        refused(attempt("sample", f"--workdir={tiny_run}", f"--mesh={mesh}"), *words)


def test_rules_of_ones_own_take_the_place_of_ours(tmp_path, monkeypatch):
    (tmp_path / "my_rules.py").write_text(
        "from transformer_jax.sharding import Rules\n"
        "def nothing() -> Rules:\n"
        '    """Cuts no array."""\n'
        "    return Rules(parameters=((r'.*', ()),), sites=())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = tiny_config(mesh__rules="my_rules:nothing", mesh__data=2)
    prepared = prepare(config, devices=fake(2))
    assert prepared.sharding.rules == Rules(parameters=((".*", ()),), sites=())
    places = by_path(prepared.sharding.of_state(prepared.template)).values()
    assert all(place.is_fully_replicated for place in places)
    with pytest.raises(InvalidInput, match=r"Rules.sites: \*out: there is no axis 'tenser'"):
        Rules(sites=[("*out", ["tenser"])])
    with pytest.raises(InvalidInput, match="no_such"):
        load_config(TINY, {"mesh.rules": "my_rules:no_such"})


def test_the_rules_on_the_page_are_rules():
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/devices.md").read_text(), re.DOTALL)
    space = {}
    exec(code, space)
    sharding = over(space["whole_embedding"](), fsdp=4, tensor=2)
    table = "token_embedding/embedding"
    assert sharding.of_parameter(table, (64, 32)).is_fully_replicated
    assert not over(fsdp=4, tensor=2).of_parameter(table, (64, 32)).is_fully_replicated


def test_a_states_places_are_those_of_its_tables():
    template = prepare(tiny_config()).template
    sharding = over(fsdp=8)
    places = by_path(sharding.of_state(template))
    assert places["params/block_0/attention/query/kernel"].spec == PartitionSpec(("fsdp",), None)
    kernel = "block_1/feed_forward/up/kernel"
    moments = [path for path in places if path.endswith(kernel) and path.startswith("opt_state")]
    assert len(moments) == 2
    assert {places[path].spec for path in moments} == {places[f"params/{kernel}"].spec}

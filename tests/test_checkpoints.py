"""Checkpoints survive damage, strays, full disks and kills, or say so."""

import os
import pickle
import random
import shutil
import signal
import subprocess
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from tests.conftest import start_python
from transformer_jax.errors import InvalidInput
from transformer_jax.runs import checkpoints
from transformer_jax.runs.checkpoints import Checkpoints, SaveFailed, damage_of


def over(*shape):
    """An array's place over all devices: of a mesh's two axes, the second cuts its rows."""
    mesh = Mesh(np.array(jax.devices()).reshape(shape), ("columns", "rows"))
    return NamedSharding(mesh, PartitionSpec("rows", "columns"))


ALL = jax.device_count()  # one; eight in the last of these tests, which runs all of them again
KERNEL = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
STATE = {"params": {"kernel": jax.device_put(KERNEL, over(1, ALL))}, "step": jnp.int32(7)}


@pytest.fixture
def said():
    return []


@pytest.fixture
def store(tmp_path, said):
    return Checkpoints(tmp_path / "checkpoints", keep=2, say=said.append)


def at(step):
    return {"params": {"kernel": STATE["params"]["kernel"] + step}, "step": jnp.int32(step)}


def save_steps(store, *steps):
    for step in steps:
        store.save(step, at(step), {"pending": [[0.1 * step, 1.0]]})


def test_what_is_saved_comes_back_bit_for_bit(store):
    save_steps(store, 3)
    restored = store.restore(jax.eval_shape(lambda: STATE))
    assert restored.step == 3
    assert restored.extra == {"pending": [[0.1 * 3, 1.0]]}
    jax.tree.map(np.testing.assert_array_equal, restored.state, at(3))
    assert restored.state["step"].dtype == jnp.int32


def test_it_comes_back_on_another_mesh_bit_for_bit(store):
    save_steps(store, 3)
    for there in (over(1, ALL), over(ALL // 2 or 1, min(ALL, 2)), over(ALL // 4 or 1, min(ALL, 4))):
        kernel = jax.ShapeDtypeStruct(KERNEL.shape, KERNEL.dtype, sharding=there)
        restored = store.restore(STATE | {"params": {"kernel": kernel}}).state
        assert restored["params"]["kernel"].sharding.is_equivalent_to(there, 2)
        jax.tree.map(np.testing.assert_array_equal, restored, at(3))


def test_a_state_is_written_as_it_was_while_its_memory_goes_on(store, monkeypatch):
    go_on, sync = threading.Event(), checkpoints._sync
    monkeypatch.setattr(checkpoints, "_sync", lambda folder: go_on.wait(30) and sync(folder))
    state = jax.tree.map(jnp.copy, at(3))
    store.begin_save(3, state, {})
    assert store.steps() == []
    add = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf + 1, tree), donate_argnums=0)
    jax.block_until_ready(add(state))
    go_on.set()
    store.begin_save(4, at(4), {})
    assert 3 in store.steps()
    store.settle()
    assert store.steps() == [3, 4]
    shutil.rmtree(store._folder / f"{4:08d}")
    jax.tree.map(np.testing.assert_array_equal, store.restore(STATE).state, at(3))


def test_c12_no_write_begins_on_a_disk_that_is_too_small(store, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=100)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(SaveFailed, match=r"No space left on device.*about 132 bytes, 100 are"):
        save_steps(store, 3)
    usage = usage._replace(total=0)  # some file systems tell no sizes
    save_steps(store, 4)
    assert store.steps() == [4]


def test_nothing_there_is_none(store):
    assert store.restore(STATE) is None
    store.tidy()


def test_c21_the_newest_are_kept(store):
    save_steps(store, 1, 2, 3, 10)
    assert store.steps() == [3, 10]


def files_of(store, step):
    folder = store._folder / f"{step:08d}"
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def damage(path, kind):
    data = bytearray(path.read_bytes() or b"x")
    data[len(data) // 2] ^= kind == "flip"
    content = {"flip": data, "truncate": data[: len(data) // 2], "zero": bytes(len(data))}
    if kind == "delete":
        path.unlink()
    else:
        path.write_bytes(content[kind])


@pytest.mark.parametrize("kind", ["flip", "truncate", "zero", "delete"])
def test_c13_damage_to_any_file_falls_back_loudly(tmp_path, kind):
    pristine = Checkpoints(tmp_path / "pristine", say=lambda _: None)
    save_steps(pristine, 1, 2)
    names = files_of(pristine, 2)
    assert "manifest.json" in names
    assert len(names) >= 5
    for number, name in enumerate(names):
        folder = tmp_path / f"damaged-{number}"
        shutil.copytree(tmp_path / "pristine", folder)
        victim = folder / "00000002" / name
        if kind in ("truncate", "zero") and victim.stat().st_size == 0:
            continue
        damage(victim, kind)
        said = []
        store = Checkpoints(folder, say=said.append)
        store.tidy()
        restored = store.restore(STATE)
        assert restored.step == 1, name
        jax.tree.map(np.testing.assert_array_equal, restored.state, at(1))
        (line,) = said
        assert "SKIPPED 00000002" in line
        assert name.removeprefix("state/") in line
        assert (folder / "damaged-00000002").is_dir()


def test_c13_an_extra_file_is_damage_too(store):
    save_steps(store, 1)
    path = store._folder / "00000001"
    assert damage_of(path) is None
    (path / "state" / "extra").write_bytes(b"x")
    assert "state/extra was changed: expected sha256 no such file" in damage_of(path)


@pytest.mark.parametrize("kind", ["truncate", "delete"])
def test_all_damaged_is_refused_and_not_restarted(store, kind):
    save_steps(store, 1, 2)
    for step in (1, 2):
        damage(store._folder / f"{step:08d}" / "manifest.json", kind)
    for _ in range(2):  # the second launch must not take the emptied folder for a fresh one
        store.tidy()
        with pytest.raises(InvalidInput, match="no checkpoint is intact; damaged: 2"):
            store.restore(STATE)


def test_what_another_version_wrote_is_refused_and_left_where_it_is(store, monkeypatch):
    monkeypatch.setattr(checkpoints, "_FORMAT", 2)
    save_steps(store, 1)
    monkeypatch.setattr(checkpoints, "_FORMAT", 1)
    with pytest.raises(InvalidInput, match="written in format 2, but this version reads 1"):
        store.restore(STATE)
    assert store.steps() == [1]


def test_c14_strays_are_named_and_saving_goes_on(store, said):
    save_steps(store, 1)
    folders = ("900", "00000900", "step_x", ".writing-00000005-123", "00000012")
    for name in folders:
        (store._folder / name).mkdir()
    for name in ("00000012/foreign", ".DS_Store"):
        (store._folder / name).write_text("x")
    store.tidy()
    for name in (*folders, ".DS_Store"):
        assert name in "\n".join(said)
    assert store.restore(STATE).step == 1
    save_steps(store, 2, 900)
    assert store.steps() == [2, 900]
    assert not (store._folder / ".writing-00000005-123").exists()


def with_kernel(kernel):
    return {"params": {"kernel": kernel}, "step": jnp.int32(0)}


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (with_kernel(jnp.zeros((8, 5))), r"params/kernel: stored \(8, 4\) float32, expected \(8"),
        (with_kernel(jnp.zeros((8, 4), jnp.bfloat16)), "expected .* bfloat16"),
        ({"params": STATE["params"]}, "step: stored .* int32, expected nothing"),
        ({**STATE, "ema": jnp.zeros(1)}, "ema: stored nothing"),
    ],
)
def test_c16_c17_another_model_is_refused(store, template, message):
    save_steps(store, 1)
    with pytest.raises(InvalidInput, match=message):
        store.restore(template)


def test_c18_a_state_that_is_not_finite_is_not_saved(store):
    save_steps(store, 1)
    broken = at(2) | {"params": {"kernel": jnp.array([1.0, jnp.nan])}}
    with pytest.raises(SaveFailed, match="step 2: params/kernel is not finite"):
        store.save(2, broken, {})
    assert store.steps() == [1]


# An array that is cut over all devices there are.
CUT = """
import pathlib, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from transformer_jax.runs.checkpoints import Checkpoints, SaveFailed

def cut(array):
    mesh = Mesh(np.array(jax.devices()), ("fsdp",))
    return jax.device_put(array, NamedSharding(mesh, PartitionSpec("fsdp")))
"""
DISK_FULL = (
    CUT
    + """
import resource, signal
store = Checkpoints(pathlib.Path(sys.argv[1]), keep=1)
state = {"kernel": cut(np.random.default_rng(0).normal(size=1_000_000).astype(np.float32))}
store.save(1, state, {})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
try:
    store.save(2, state, {})
except SaveFailed as error:
    print("refused:", error)
print("listed", store.steps(), sorted(p.name for p in store._folder.iterdir()))
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
assert store.restore(state).step == 1
store.save(2, state, {})
print("listed", store.steps())
"""
)


# One device, and eight: every file of a checkpoint then holds parts of arrays.
several = pytest.mark.parametrize(
    "devices", [pytest.param("1"), pytest.param("8", marks=pytest.mark.thorough)]
)


@several
def test_c12_a_full_disk_loses_nothing(tmp_path, devices):
    process = start_python("-c", DISK_FULL, str(tmp_path / "c"), JAX_NUM_CPU_DEVICES=devices)
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert "the checkpoint of step 2 could not be written" in said
    assert "needs about 4,000,000 bytes" in said
    assert "listed [1] ['00000001']" in said
    assert "listed [2]" in said


SAVE_LOOP = (
    CUT
    + """
store = Checkpoints(pathlib.Path(sys.argv[1]), keep=2, say=lambda _: None)
store.tidy()
restored = store.restore({"kernel": cut(np.zeros(200_000, np.float32))})
step = restored.step if restored else 0
assert restored is None or (restored.state["kernel"] == step).all()
while True:
    step += 1
    save = store.save if step % 2 else store.begin_save  # which settles the one before alone
    save(step, {"kernel": cut(np.full(200_000, step, np.float32))}, {})
    print(step if step % 2 else step - 1, flush=True)
"""
)


@several
def test_c10_c11_kills_at_random_moments_leave_whole_checkpoints(tmp_path, devices):
    folder, acknowledged = tmp_path / "c", 0
    moments = random.Random(0)
    for _ in range(4):
        process = start_python("-c", SAVE_LOOP, str(folder), JAX_NUM_CPU_DEVICES=devices)
        for _ in range(moments.randint(1, 4)):
            acknowledged = int(process.stdout.readline())  # else it died on what a kill left
        try:
            process.wait(moments.uniform(0, 0.3))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        process.stdout.close()
        store = Checkpoints(folder, say=lambda _: None)
        newest = store.steps()[-1]
        assert newest >= acknowledged
        assert damage_of(folder / f"{newest:08d}") is None
    store.tidy()
    assert len(list(folder.iterdir())) <= 3
    restored = store.restore({"kernel": jnp.zeros(200_000)})
    assert (restored.state["kernel"] == restored.step).all()


def test_c73_a_planted_pickle_is_never_run(store, tmp_path):
    marker = tmp_path / "marker"

    class Bomb:
        def __reduce__(self):
            return os.system, (f"touch {marker}",)

    save_steps(store, 1, 2)
    path = store._folder / "00000002"
    for name in files_of(store, 2):
        (path / name).write_bytes(pickle.dumps(Bomb()))
    assert store.restore(STATE).step == 1
    assert not marker.exists()


@pytest.mark.thorough
def test_all_of_it_holds_of_states_that_are_cut_over_eight_devices():
    words = ("-m", "pytest", "-q", "--numprocesses=0", "tests/test_checkpoints.py")
    process = start_python(*words, JAX_NUM_CPU_DEVICES="8")
    said, _ = process.communicate()
    assert process.returncode == 0, said
    assert said.count(".") > 20

"""Cells are found by what they compute, however the code is arranged that computes it."""

import dataclasses
import json
import re
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import ROOT, TINY, tiny_config, user_environment
from transformer_jax.programs import trace
from transformer_jax.runs import provenance
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.asking import cells
from transformer_jax.studies.asking.cells import cell_hash, hash_of_code
from transformer_jax.studies.asking.design import load_design
from transformer_jax.studies.running import launch
from transformer_jax.studies.running.canonical import canonical
from transformer_jax.studies.running.computation import code_of, computation_of, digest_of
from transformer_jax.training.prepared import prepare

DEVICE = {"kind": "cpu", "platform": "cpu", "count": 1}
AROUND = {"device": DEVICE, "packages": {"jax": "1"}, "environment": {}}


def computed(**changes):
    prepared = prepare(tiny_config(model__depth=1, **changes))
    return computation_of(prepared, digest_of(prepared.task))


def test_the_code_of_a_run_is_all_of_the_package_but_studies_and_options(tmp_path, monkeypatch):
    assert (cells.PACKAGE / "layers" / "attention.py").exists()
    copy, before = tmp_path / "transformer_jax", cells.code_hash()
    shutil.copytree(cells.PACKAGE, copy)
    monkeypatch.setattr(cells, "PACKAGE", copy)
    hash_now = cells.code_hash.__wrapped__
    for file, differs in (("studies/judging/judge.py", False), ("layers/attention.py", True)):
        with (copy / file).open("a") as opened:
            opened.write("\nADDED = 1\n")
        assert (hash_now() != before) == differs, file


def test_the_hash_covers_what_decides_and_nothing_else():
    what = {"programs": "x"}

    def hashed(config=None, what=what, how="alone", initial=None, **changes):
        return cell_hash(config or tiny_config(), what, how, {**AROUND, **changes}, initial)[0]

    base = hashed()
    gpu = {"kind": "H200", "platform": "gpu", "count": 1}
    assert hashed(tiny_config(seed=5)) == base
    assert hashed(tiny_config(logging__every=1, checkpoint__keep=1)) == base
    assert hashed(packages={"jax": "1", "flax": "2"}) == base  # flax's part is in the programs
    assert hashed(device=gpu) == hashed(device={**gpu, "count": 8})
    others = [
        hashed(what={"programs": "y"}),
        hashed(tiny_config(seeds__order=1)),
        hashed(tiny_config(seeds__perturbation=1e-7)),
        hashed(how="together"),
        hashed(device=gpu),
        hashed(device={**DEVICE, "count": 2}),
        hashed(packages={"jax": "2"}),
        hashed(environment={"JAX_ENABLE_X64": "1"}),
        hashed(initial={"weights": "abc"}),
    ]
    assert len({base, *others}) == 1 + len(others)


def test_moves_concern_the_configs_that_they_name():
    of = provenance.numerics_of
    assert of({"model.attention": "softmax", "model.position": "learned"}) == 1
    assert of({"model.attention": "linear", "model.position": "learned"}) == 2
    assert of({"model.attention": "linear", "model.position": "t5"}) == 3
    both = {"model.wiring": "deep_norm", "model.architecture": "encoder_decoder"}
    assert of(both) == 4
    assert of({**both, "model.scan_layers": True}) == 5
    assert of({"model.attention": "gated_delta"}) == 6
    experts = {"model.feed_forward": "mixture"}
    assert of({**experts, "model.feed_forward_options.mixture.num_chosen": 2}) == 1
    of_a_type = {f"model.layer_types.M.{k.removeprefix('model.')}": v for k, v in experts.items()}
    of_a_type["model.layer_types.M.feed_forward_options.mixture.num_chosen"] = 1
    assert of({"model.feed_forward": "mlp", **of_a_type}) == 7
    one = {**experts, "model.feed_forward_options.mixture.num_chosen": 1}
    assert of(one) == 7
    rounded = {"model.position": "shaw", "model.dtype": "bfloat16"}
    assert of(rounded) == 8
    assert of({"training.weight_ema": None}) == 1
    assert of({"training.weight_ema": 0.99}) == 9
    weighed = {"optimizer.name": "schedule_free", "schedule.name": "warmup_constant"}
    assert of(weighed) == provenance.NUMERICS == 10
    assert of({**weighed, "schedule.name": "constant"}) == 1
    assert of({**rounded, "model.dtype": "float32"}) == 1
    assert of({**both, "model.architecture": "decoder"}) == 1


def test_numerics_that_moved_bits_of_a_config_decide_and_others_do_not(monkeypatch):
    key = lambda: cell_hash(tiny_config(), {"programs": "x"}, "alone", AROUND)[0]
    base = key()
    monkeypatch.setitem(provenance.MOVES, 99, {"model.attention": ("linear",)})
    assert key() == base
    monkeypatch.setitem(provenance.MOVES, 99, {})
    assert key() != base


def test_what_is_computed_decides_and_not_how_it_is_said():
    base = computed()
    assert computed(evaluation__batch_size=8, evaluation__every=50, seed=3) == base
    assert computed(model__num_kv_heads=4) == base  # as many as there are heads
    others = [
        computed(**change)
        for change in (
            {"model__init_std": 0.03},
            {"optimizer__learning_rate": 0.003},
            {"evaluation__stride": 8},
            {"data__length": 8},
            {"training__steps": 51},
            {"model__attention_scale": 1.0},
        )
    ]
    kinds = [json.dumps(each, sort_keys=True) for each in [base, *others]]
    assert len(set(kinds)) == len(kinds)


def test_a_digest_is_of_what_the_data_gives(monkeypatch):
    task = prepare(tiny_config()).task
    base, kind = digest_of(task), type(task)
    assert digest_of(dataclasses.replace(task)) == base
    batch, evaluated = kind.batch, kind.evaluation_batches
    monkeypatch.setattr(
        kind, "batch", lambda self, seed, step: batch(self, seed, step + (step > 99))
    )
    otherwise_ordered = digest_of(task)
    monkeypatch.setattr(kind, "batch", batch)
    monkeypatch.setattr(kind, "evaluation_batches", lambda *a: list(evaluated(*a))[:-1])
    assert len({base, otherwise_ordered, digest_of(task)}) == 3


def test_a_program_is_what_it_computes():
    def plain(x, y):
        return jnp.where(x > 0, x * y + 2.0, jnp.exp(y))

    @jax.jit
    def product(first, second):
        return first * second

    def otherwise_written(a, b):
        unused = jnp.sin(a)
        del unused
        return jax.jit(lambda p, q: jnp.where(p > 0, product(p, q) + 2.0, jnp.exp(q)))(a, b)

    def of(function):
        return canonical(trace(function, np.ones(3, np.float32), np.ones(3, np.float32)))

    assert of(otherwise_written) == of(plain)
    others = [
        of(lambda x, y: jnp.where(x > 0, x * y - 2.0, jnp.exp(y))),
        of(lambda x, y: jnp.where(x > 0, x * y + 2.5, jnp.exp(y))),
        of(lambda x, y: jnp.where(x > 0, y * y + 2.0, jnp.exp(y))),
        of(lambda x, y: jnp.where(x > 0, x * y + jnp.array([2.0, 2, 1]), jnp.exp(y))),
        of(lambda x, y: {"named": plain(x, y)}),
        of(lambda x, y: jax.lax.scan(lambda c, _: (c * y + 2.0, None), x, length=3)[0]),
        of(lambda x, y: jax.lax.scan(lambda c, _: (c * y - 2.0, None), x, length=3)[0]),
    ]
    assert len({of(plain), *others}) == 1 + len(others)


def test_docstrings_and_comments_are_no_code():
    plain = "def f(x):\n    return x + 1\n"
    told = '"""About."""\n\n\ndef f(x):\n    """Adds one."""\n    return x + 1  # why\n'
    assert hash_of_code(plain) == hash_of_code(told)
    assert hash_of_code(plain) != hash_of_code(plain.replace("1", "2"))


HOST = """
from {library} import helper
LIMIT = {limit}
TABLE = {{"row": 1{rows}}}

class Data:
    def batch(self, seed: {kind}):
        "{about}"
        return helper(seed) % LIMIT + TABLE["row"]
"""
LIBRARY = "def helper(value):\n    return value {sign} 1\n"


def test_the_hosts_code_is_followed_by_name_and_not_by_place(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def hashed(number, *, limit=7, rows="", kind="int", about="", sign="+"):
        host, library = f"host_code_{number}", f"host_library_{number}"
        text = HOST.format(limit=limit, rows=rows, kind=kind, about=about, library=library)
        (tmp_path / f"{host}.py").write_text(text)
        (tmp_path / f"{library}.py").write_text(LIBRARY.format(sign=sign))
        return code_of([__import__(host).Data], ("host_",))

    base = hashed(0)
    assert hashed(1) == base  # in files of other names
    assert hashed(2, rows=', "more": 2', kind="object", about="Other words.") == base
    assert len({base, hashed(3, limit=8), hashed(4, sign="-")}) == 3


_PROBE = """
import json, sys
from transformer_jax.options.config import load_config
from transformer_jax.studies.running.computation import computation_of, digest_of
from transformer_jax.training.prepared import prepare
for config in sys.argv[1:] or ["tiny"]:
    prepared = prepare(load_config(f"configs/{config}.py", {"model.depth": "1"}))
    print(json.dumps(computation_of(prepared, digest_of(prepared.task)), sort_keys=True))
"""
CHANGES = {
    "as it is": [],
    "a row more": [
        ("layers/feedforward.py", '    "relu": relu,', '    "relu": relu,\n    "same": relu,'),
        ("data/tasks/__init__.py", '    "synthetic":', '    "more": SyntheticTask.load,\n    "synthetic":'),
    ],
    "an option more": [
        ("options/sections.py", "    clip_norm:", "    patience: Natural = 0\n    clip_norm:"),
        ("models/parts.py", "    num_heads: Count", "    patience: int = 0\n    num_heads: Count"),
    ],
    "another sign": [("layers/weights.py", "scaled_LK = query /", "scaled_LK = -query /")],
    "another order": [
        ("data/order.py", "np.arange(step * batch_size, (", "np.arange((step + 1) * batch_size, (1 + ")
    ],
}  # fmt: skip


@pytest.mark.commands
def test_a_changed_package_finds_the_cells_whose_computation_is_the_same(tmp_path):
    """Another process, a moved file, a row and an option more find them; a changed sign does not."""

    def probed(name, edits, moved=()):
        tree = tmp_path / name.replace(" ", "_")
        for folder in ("transformer_jax", "configs"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / folder, tree / folder, ignore=ignored)
        for file, old, new in edits:
            path = tree / "transformer_jax" / file
            assert old in path.read_text(), (file, old)
            path.write_text(path.read_text().replace(old, new))
        for old, new in moved:
            (tree / "transformer_jax" / f"{old}.py").rename(tree / "transformer_jax" / f"{new}.py")
            for path in (tree / "transformer_jax").rglob("*.py"):
                names = [f"transformer_jax.{place.replace('/', '.')}" for place in (old, new)]
                whole = rf"{re.escape(names[0])}\b"  # and no name that goes on
                path.write_text(re.sub(whole, names[1], path.read_text()))
        return subprocess.run(
            [sys.executable, "-c", _PROBE], cwd=tree, check=True, capture_output=True, text=True,
            env=user_environment(PYTHONPATH=str(tree), PYTHONHASHSEED=str(len(name))),
        ).stdout  # fmt: skip

    found = {name: probed(name, edits) for name, edits in CHANGES.items()}
    moves = (("layers/linear", "layers/affine"), ("data/order", "data/sources/sequence"))
    found["moved files"] = probed("moved files", [], moves)
    same = {name for name, computation in found.items() if computation == found["as it is"]}
    assert same == set(found) - {"another sign", "another order"}


@pytest.mark.commands
def test_two_processes_agree_on_what_each_task_computes():
    configs = ("tiny", "digits", "movies", "translation", "masked_lm", "ablations/reverse")
    found = [
        subprocess.run(
            [sys.executable, "-c", _PROBE, *configs], cwd=ROOT, check=True, capture_output=True,
            env=user_environment(PYTHONHASHSEED=seed), text=True,
        ).stdout.splitlines()
        for seed in ("1", "2")
    ]  # fmt: skip
    assert found[0] == found[1]
    assert len(set(found[0])) == len(configs)


# ---------------------------------------------------------------- taken over


QUICK = {"training.steps": "6", "schedule.warmup_cosine.warmup_steps": "2", "model.depth": "1"}


class Told(Silent):
    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, text):
        self.lines.append(text)


def under_another_key(study):
    """Renames cells as if older code had computed them."""
    for arm in study.arms.values():
        folder = study.root / "cells" / arm["hash"]
        folder.rename(folder.with_name("g" + arm["hash"][1:]))  # no digit of any hash


@pytest.mark.thorough
def test_cells_of_another_key_are_taken_over_where_one_comes_out_equal(tmp_path, monkeypatch):
    design = load_design(TINY, QUICK, ["model.num_heads=4,1"])
    study = launch.run(design, tmp_path / "one", range(3), progress=Silent())
    scores = {(row["arm"], row["seed"]): row["test/loss"] for row in study.rows()}
    shutil.rmtree(study.cell("num_heads=1", 0).path / "checkpoints")
    under_another_key(study)
    trained = []
    run = launch.Workers.run

    def counted(self, arms, waiting, total):
        trained.extend((cell.arm, cell.seed) for cell in waiting)
        run(self, arms, waiting, total)

    monkeypatch.setattr(launch.Workers, "run", counted)
    told = Told()
    again = launch.run(design, tmp_path / "two", range(3), adopt=True, progress=told)
    assert trained == [("num_heads=4", 0), ("num_heads=1", 1)]
    assert {(row["arm"], row["seed"]): row["test/loss"] for row in again.rows()} == scores
    manifest = RunDirectory(again.cell("num_heads=1", 2).path).manifest()
    assert manifest["cell"] == again.arms["num_heads=1"]["hash"] != manifest["adopted_from"]
    assert sum("2 cells taken over" in line for line in told.lines) == 2


def test_cells_that_come_out_otherwise_are_trained_anew(tmp_path):
    design = load_design(TINY, QUICK, ["model.num_heads=4,1"])
    study = launch.run(design, tmp_path / "one", range(2), progress=Silent())
    for seed in range(2):
        shutil.rmtree(study.cell("num_heads=1", seed).path / "checkpoints")
    under_another_key(study)
    for path in (study.root / "cells").glob("g*/s0/evaluation.json"):
        scored = json.loads(path.read_text())
        scored["test"]["loss"] += 1e-9
        path.write_text(json.dumps(scored))
    told = Told()
    again = launch.run(design, tmp_path / "two", range(2), adopt=True, progress=told)
    assert sum("comes out otherwise: seed 0" in line for line in told.lines) == 1
    assert sum("were removed: nothing can be compared" in line for line in told.lines) == 1
    assert all("adopted_from" not in RunDirectory(c.path).manifest() for c in again.cells())
    assert {row["state"] for row in again.rows()} == {"done"}

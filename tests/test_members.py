"""Several runs by one program: what they may differ in, and whose numbers each of them has."""

import jax
import numpy as np
import pytest
from ml_collections import ConfigDict

from tests.conftest import ROOT, a_few_of, fingerprint_of, tiny_config, tree_hash
from transformer_jax.config_files import load_config
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.interruption import Interrupted, StopSignal
from transformer_jax.runs.progress import Silent
from transformer_jax.training import program as programs
from transformer_jax.training.build import make_task
from transformer_jax.training.diagnosis import NonFinite
from transformer_jax.training.loop import Member, train, train_members
from transformer_jax.training.optimizers import OPTIMIZERS, make_optimizer, traced_numbers
from transformer_jax.training.prepared import prepare
from transformer_jax.training.program import Program, StepRequest

STEPS = 8
SHARED = {
    "base": {},
    "learning rate": {"optimizer__learning_rate": 0.01},
    "no decay": {"optimizer__weight_decay": 0.0},
    "betas": {"optimizer__b1": 0.8, "optimizer__b2": 0.95, "optimizer__eps": 1e-6},
    "other seeds": {"seed": 5, "seeds__dropout": 7},
    "rarely logged": {"logging__every": 50},
}
OTHERS = {
    "dropout": {"model__dropout_rate": 0.3},
    "warm-up": {"schedule__warmup_steps": 5},
    "wide": {"model__width": 64},
    "deep": {"model__depth": 2},
    "not clipped": {"training__clip_norm": None},
    "another optimizer": {"optimizer__name": "lion"},
}


@pytest.fixture(scope="module")
def task():
    return make_task(tiny_config())


def prepared_of(task, **changes):
    return prepare(tiny_config(**{"model__depth": 1, **changes}), task=task)


def request_of(prepared, seed, steps=STEPS, config=None):
    """Steps of a run from its beginning."""
    config = ConfigDict(config or prepared.config)
    with config.unlocked():
        config.seed = seed
    state, batches = prepared.draw(np.uint32(seed)), prepared.stacked_batches(seed, 0, steps)
    return StepRequest(prepared.numbers(config), state, batches, np.int32(steps))


def test_members_differ_in_seeds_and_traced_options_alone(task):
    keys = {name: prepared_of(task, **changes).program_key for name, changes in SHARED.items()}
    assert len({*keys.values()}) == 1
    others = {prepared_of(task, **changes).program_key for changes in OTHERS.values()}
    assert len(others - {*keys.values()}) == len(OTHERS)
    numbers = prepared_of(task, optimizer__b1=0.8, seeds__dropout=7).numbers()
    assert (numbers["seed"], numbers["optimizer.b1"]) == (7, np.float32(0.8))


def test_one_after_another_each_has_the_bits_of_a_run_of_its_own(task):
    shared = Program(prepared_of(task))
    for name in ("learning rate", "no decay", "betas"):
        own = prepared_of(task, **SHARED[name])
        (ours,), (theirs,) = (p.take([request_of(own, 3)]) for p in (shared, Program(own)))
        assert tree_hash(ours.state) == tree_hash(theirs.state)
        np.testing.assert_array_equal(ours.records.loss, theirs.records.loss)


@pytest.mark.parametrize("width", a_few_of([1, 4, 16, 32], (4,)))
@pytest.mark.parametrize("config", a_few_of(["tiny", "shakespeare"], ("tiny",)))
def test_under_vmap_each_is_its_own_run_to_rounding(config, width):
    prepared = prepare(load_config(ROOT / f"configs/{config}.py", {}))
    steps = 2 if config == "shakespeare" else STEPS
    requests = [request_of(prepared, seed, steps) for seed in range(width)]
    alone = Program(prepared)
    losses = [alone.take([request])[0].records.loss[:steps] for request in requests]
    assert len({loss[-1] for loss in losses}) == width
    requests = [request_of(prepared, seed, steps) for seed in range(width)]  # taken means donated
    for result, loss in zip(Program(prepared, width).take(requests), losses, strict=True):
        assert int(result.state.step) == steps
        np.testing.assert_allclose(result.records.loss[:steps], loss, rtol=1e-5)


def test_a_member_is_the_same_beside_others_and_alone_in_its_program(task):
    prepared, program = prepared_of(task), Program(prepared_of(task), 3)
    (few,) = program.take([request_of(prepared, 1)])
    many = program.take([request_of(prepared, seed, 3 + seed) for seed in (0, 1, 2)])
    again, _ = program.take([request_of(prepared, 1), request_of(prepared, 0, 5)])
    assert [int(result.state.step) for result in many] == [3, 4, 5]
    assert {result.num_steps for result in many} == {5}
    assert tree_hash(few.state) == tree_hash(again.state)
    np.testing.assert_array_equal(many[1].records.loss[:4], few.records.loss[:4])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_traced_numbers_are_those_of_the_config(name):
    stated = {"optimizer__learning_rate": 0.02, "optimizer__weight_decay": 0.3}
    stated |= {"optimizer__b2": 0.9} if name not in ("sgd", "adafactor") else {}
    config = tiny_config(optimizer__name=name, schedule__name="warmup_constant", **stated)
    numbers = {key: np.float32(value) for key, value in traced_numbers(config).items()}
    assert {key.replace(".", "__") for key in numbers} >= stated.keys()
    rng = np.random.default_rng(0)
    params = {"block_0": {"kernel": rng.normal(size=(4, 4)).astype(np.float32)}}

    def updated(numbers):
        optimizer = make_optimizer(config, numbers=numbers)
        state, new = optimizer.init(params), params
        for factor in (1, 3):
            # In the basis of a gradient that comes twice, SOAP would divide rounding by rounding.
            gradients = jax.tree.map(lambda leaf, factor=factor: jax.numpy.sin(factor * leaf), new)
            updates, state = optimizer.update(gradients, state, new)
            new = jax.tree.map(jax.numpy.add, new, updates)
        return new

    ours, theirs = jax.jit(updated)(numbers), jax.jit(updated)({})
    np.testing.assert_allclose(ours["block_0"]["kernel"], theirs["block_0"]["kernel"], 1e-5, 1e-6)


def test_a_user_defined_schedule_gets_plain_numbers(tmp_path, monkeypatch):
    assert traced_numbers(tiny_config()) == {
        "optimizer.b1": 0.9,
        "optimizer.b2": 0.99,
        "optimizer.eps": 1e-8,
        "optimizer.learning_rate": tiny_config().optimizer.learning_rate,
        "optimizer.weight_decay": 0.1,
    }
    (tmp_path / "my_schedules.py").write_text("def flat(peak, steps):\n    return lambda n: peak\n")
    monkeypatch.syspath_prepend(tmp_path)
    own = tiny_config(schedule__name="my_schedules:flat")
    assert traced_numbers(own) == {}


@pytest.fixture(scope="module")
def prepared(task):
    return prepared_of(task, training__steps=12, checkpoint__every=6)


@pytest.fixture(scope="module")
def pairs(prepared):
    """The program of two members."""
    return Program(prepared, 2)


def members_of(prepared, folder, stop, **changes_of):
    """Member by name, of configs that differ in a seed and numbers."""
    members = {}
    for name, changes in changes_of.items():
        config = tiny_config(model__depth=1, training__steps=12, checkpoint__every=6, **changes)
        directory, cell = RunDirectory(folder / name), {"members": len(changes_of)}
        members[name] = Member(config, directory, lambda: prepared, Silent(), stop, cell=cell)
    return members


def test_a_member_that_diverges_stops_alone(prepared, pairs, tmp_path):
    stop = StopSignal()
    infinite = {"seed": 1, "optimizer__learning_rate": 1e38, "optimizer__eps": 1e30}
    members = members_of(prepared, tmp_path, stop, good={"seed": 0}, bad=infinite)
    train_members([*members.values()], stop, pairs)
    assert isinstance(members["bad"].error, NonFinite)
    assert RunDirectory(tmp_path / "bad").status() == "failed"
    assert members["good"].error is None
    assert RunDirectory(tmp_path / "good").status() == "done"
    train(members["good"].config, tmp_path / "alone", Silent())
    rows = [RunDirectory(tmp_path / name).metrics()[-1] for name in ("good", "alone")]
    assert rows[0]["test/loss"] == pytest.approx(rows[1]["test/loss"], rel=1e-5)


def test_members_interrupted_go_on_with_the_same_bits(prepared, pairs, tmp_path, monkeypatch):
    """One was saved, the other is new: they are at different steps of one program."""
    stop, seeds = StopSignal(), {"first": {"seed": 0}, "second": {"seed": 1}}
    whole = members_of(prepared, tmp_path / "whole", stop, **seeds)
    train_members([*whole.values()], stop, pairs)
    monkeypatch.setattr("transformer_jax.training.loop._SECONDS_PER_CALL", 0.0)
    ended = StopSignal()
    ended.signal = 15
    first = members_of(prepared, tmp_path / "cut", ended, **seeds)["first"]
    train_members([first], ended, pairs)
    assert isinstance(first.error, Interrupted)
    members = members_of(prepared, tmp_path / "cut", stop, **seeds)
    train_members([*members.values()], stop, pairs)
    for name in seeds:
        assert fingerprint_of(tmp_path / "cut" / name) == fingerprint_of(tmp_path / "whole" / name)


def test_a_fault_of_one_member_is_told_in_its_directory_alone(prepared, pairs, tmp_path):
    def broken(*_):
        raise RuntimeError("the machine is on fire")

    stop = StopSignal()
    members = members_of(prepared, tmp_path, stop, good={"seed": 0}, bad={"seed": 1})
    members["bad"].progress.step = broken
    train_members([*members.values()], stop, pairs)
    assert "on fire" in str(members["bad"].error)
    assert "on fire" in (tmp_path / "bad" / "error.txt").read_text()
    assert RunDirectory(tmp_path / "good").status() == "done"


def test_members_that_do_not_fit_are_refused(task, monkeypatch):
    monkeypatch.setattr(programs, "device_memory", lambda device: 1 << 20)
    with pytest.raises(InvalidInput, match=r"--members=2.*0.0 GiB(.|\n)*--members=1"):
        _ = Program(prepared_of(task), 2).compiled

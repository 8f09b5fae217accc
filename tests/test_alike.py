"""Parts that compute the same are compiled as one, and give what they give one by one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import checkpoint_of, fingerprint_of, tiny_config
from tests.test_train import EndAt, terminate
from transformer_jax import intervenes, load_run
from transformer_jax.alike import on_stacks
from transformer_jax.models.stacking import stack_blocks, unstack_blocks
from transformer_jax.runs.interruption import Interrupted
from transformer_jax.runs.progress import Silent
from transformer_jax.training import loop as training_loop
from transformer_jax.training.loop import train
from transformer_jax.training.optimizers import OPTIMIZERS, make_optimizer
from transformer_jax.training.prepared import prepare
from transformer_jax.training.step import on_stacked_blocks

rng = np.random.default_rng(0)


def stacked(tree, join=jnp.stack, unit=1):
    return stack_blocks(tree, unit, join)


def tree_of(blocks, names=("w", "b"), shape=(2, 3)):
    draw = lambda: rng.normal(size=shape).astype(np.float32)
    found = {f"block_{number}": {name: draw() for name in names} for number in range(blocks)}
    return {**found, "head": draw()}


# ---------------------------------------------------------------- trees


@pytest.mark.parametrize(
    ("blocks", "unit", "names"),
    [
        (4, 1, ["block_0:4:1", "head"]),
        (5, 2, ["block_0:4:2", "block_1:4:2", "block_4", "head"]),
        (3, 2, ["block_0", "block_1", "block_2", "head"]),
    ],
)
def test_stacks_of_blocks_come_apart_again(blocks, unit, names):
    tree = tree_of(blocks)
    found = stack_blocks({"of": (tree, 1)}, unit)
    assert sorted(found["of"][0]) == names
    jax.tree.map(np.testing.assert_array_equal, unstack_blocks(found)["of"][0], tree)


def test_twelve_blocks_stay_in_their_order():
    tree = {f"block_{number}": np.float32(number) for number in range(12)}
    found = stack_blocks(dict(sorted(tree.items())), 1)["block_0:12:1"]
    np.testing.assert_array_equal(found, np.arange(12))


def test_blocks_of_other_shapes_are_not_stacked():
    tree = tree_of(2)
    tree["block_1"]["w"] = np.ones(7)
    with pytest.raises(ValueError, match="Cannot stack"):
        stack_blocks(tree, 1)


# ---------------------------------------------------------------- functions


def each(tree):
    return jax.tree.map(lambda leaf: jnp.tanh(leaf) * 2 + jnp.sum(leaf), tree)


def over_all(tree):
    norm = optax.tree.norm(tree)
    return jax.tree.map(lambda leaf: jnp.where(norm > 1, leaf / norm, leaf), tree)


def by_number(tree):
    return {
        name: jax.tree.map(lambda leaf, factor=factor: leaf * factor, part)
        for factor, (name, part) in enumerate(sorted(tree.items()))
    }


def of_the_next(tree):
    shifted = {**tree, "block_0": tree["block_1"], "block_1": tree["block_0"]}
    return jax.tree.map(lambda one, other: one + jnp.sort(other, -1), tree, shifted)


def turned_round(tree):
    blocks = sorted(name for name in tree if name != "head")
    return {**tree, **{name: tree[other] for name, other in zip(blocks, blocks[::-1], strict=True)}}


def constants(tree):
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape) + 3, tree)


def in_a_loop(tree):
    step = lambda index, leaf: leaf @ leaf.T @ leaf + index
    return jax.tree.map(lambda leaf: jax.lax.fori_loop(0, 3, step, leaf), tree)


@pytest.mark.parametrize(
    "function", [each, over_all, by_number, of_the_next, turned_round, constants, in_a_loop]
)
def test_functions_of_stacks_give_what_they_give_one_by_one(function):
    tree = tree_of(3)
    found = unstack_blocks(on_stacks(function, stacked, unstack_blocks)(stacked(tree)))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), found, function(tree))


@pytest.mark.parametrize("function", [each, over_all, in_a_loop])
def test_more_members_are_no_more_operations_but_for_sums_across(function):
    def operations(blocks):
        run = on_stacks(function, stacked, unstack_blocks)
        made = jax.make_jaxpr(run)(stacked(tree_of(blocks))).jaxpr.eqns
        return sum(e.primitive.name not in ("add", "slice", "squeeze", "copy") for e in made)

    assert operations(9) == operations(3)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_optimizer_updates_stacks_as_it_updates_blocks(name):
    """Five blocks in units of two; one block has a learning rate of its own."""
    changes = {
        "optimizer__learning_rate_multipliers": "('block_2=3',)",
        "schedule__name": "warmup_constant" if name == "schedule_free" else "constant",
    }
    optimizer = make_optimizer(tiny_config(**changes, optimizer__name=name))
    params = {"tree": tree_of(5, ("kernel", "scale"))}
    gradients = jax.tree.map(np.sin, params)

    @jax.jit
    def one_by_one(gradients, params):
        state = optimizer.init(params)
        return optimizer.update(gradients, state, params)

    @jax.jit
    def on_two_stacks(*trees):
        gradients, params = (stack_blocks(tree, 2) for tree in trees)
        stacks = on_stacked_blocks(optimizer, 2)
        state = stacks.init(params)
        assert "block_0:4:2" in str(jax.tree_util.tree_flatten_with_path(state)) or name == "sgd"
        return stacks.update(gradients, state, params)

    found = unstack_blocks(on_two_stacks(gradients, params))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-8)
    jax.tree.map(close, found, one_by_one(gradients, params))


def test_a_deeper_loop_of_blocks_is_no_longer_a_program():
    def length(depth):
        fields = {"model__scan_layers": True, "model__remat": "block", "model__depth": depth}
        prepared = prepare(tiny_config(**fields))
        arguments = (np.uint32(0), prepared.stacked_template, prepared.stacked_batches(0, 0, 1))
        return len(jax.jit(prepared.advance).lower(*arguments, np.int32(1)).as_text().splitlines())

    assert length(8) < 1.1 * length(4)


def test_blocks_that_an_optimizer_takes_unlike_are_stacked_where_the_loop_begins():
    prepared = prepare(tiny_config(model__scan_layers=True, model__depth=3))
    mask = {name: name != "block_1" for name in prepared.template.params}
    prepared = dataclasses.replace(prepared, optimizer=optax.masked(optax.adam(0.1), mask))
    assert {"block_0", "block_1"} <= prepared.stacked_template.params.keys()
    arguments = (prepared.stacked_template, prepared.stacked_batches(0, 0, 1))
    jax.eval_shape(prepared.advance, np.uint32(0), *arguments, np.int32(1))


# ---------------------------------------------------------------- runs


@intervenes
def shrinks(state):
    """Takes the third block's first kernel, by the name that it has without a loop."""
    state.params["block_2"]["attention"]["query"]["kernel"] *= 0.5
    return state


@pytest.mark.thorough
@pytest.mark.usefixtures("one_program")
def test_a_run_in_a_loop_is_kept_looked_at_and_resumed_block_by_block(tmp_path, monkeypatch):
    monkeypatch.setattr(training_loop, "_SECONDS_PER_CALL", 0.0)
    own = {"hooks__functions": f"{shrinks.__module__}:shrinks", "hooks__every": "4"}
    fields = {
        "model__depth": 3,
        "training__steps": 9,
        "schedule__name": "constant",
        "training__weight_ema": 0.9,
        **own,
    }
    config = tiny_config(**fields, model__scan_layers=True)
    with pytest.raises(Interrupted):
        train(config, tmp_path / "a", EndAt(5, terminate))
    train(config, tmp_path / "a", Silent())
    train(config, tmp_path / "b", Silent())
    assert fingerprint_of(tmp_path / "a") == fingerprint_of(tmp_path / "b")
    train(tiny_config(**fields), tmp_path / "plain", Silent())
    ends = [checkpoint_of(tmp_path / name).state for name in ("a", "plain")]
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), *ends)
    assert {"block_0", "block_2"} <= load_run(tmp_path / "a").params.keys()


# ---------------------------------------------------------------- initial values


@pytest.mark.parametrize(
    "changes",
    [
        {"model__depth": 3, "training__weight_ema": 0.9, "model__initialisation": "depth_scaled"},
        {"model__depth": 3, "model__initialisation": "xavier", "model__position": "t5"},
        {"model__depth": 2, "model__mixer": "state_space", "model__position": "none"},
    ],
)
def test_initial_values_in_loops_are_those_one_by_one(changes):
    """Bit by bit; kernels of other deviations and shapes lie between those that are alike."""
    prepared = prepare(tiny_config(**changes))
    drawn, expected = prepared.draw(np.uint32(5)), jax.jit(prepared.initial_state)(np.uint32(5))
    jax.tree.map(np.testing.assert_array_equal, drawn, expected)


def test_deeper_models_are_drawn_by_no_more_operations():
    def drawn_by(depth):
        prepared = prepare(tiny_config(model__depth=depth))
        return str(jax.make_jaxpr(prepared.draw)(np.uint32(0))).count("random_bits")

    assert drawn_by(6) == drawn_by(2) > 0

"""Programs that differ in numbers alone are one: what is shared, and that no bit changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import tiny_config, tree_hash
from transformer_jax.programs import differing, trace, with_numbers
from transformer_jax.studies.running.batched import Group, first_arguments, group_arms
from transformer_jax.training.build import make_task
from transformer_jax.training.coroutine import StepRequest
from transformer_jax.training.prepared import prepare

STEPS = 8
CHANGES = {
    "base": {},
    "learning rate": {"optimizer__learning_rate": 0.01},
    "decay": {"optimizer__weight_decay": 0.3},
    "betas": {"optimizer__b1": 0.8, "optimizer__b2": 0.95},
    "clipping": {"training__clip_norm": 0.3},
    "initial scale": {"model__init_std": 0.07},
    "warm-up": {"schedule__warmup_steps": 5},
    "dropout": {"model__dropout_rate": 0.3},
}


@pytest.fixture(scope="module")
def arms():
    task = make_task(tiny_config())
    return {
        name: prepare(tiny_config(**changes, model__depth=1), task=task)
        for name, changes in CHANGES.items()
    }


def calls_of(group, members):
    """One call a member, (arm, seed), from its own initial state over its own batches."""
    calls = []
    for arm, seed in members:
        prepared = group.arms[arm]
        state = prepared.draw(np.uint32(seed))
        batches = prepared.stacked_batches(seed, 0, STEPS)
        arguments = (np.uint32(seed), state, batches, np.int32(STEPS))
        calls.append((arm, StepRequest(prepared, arguments)))
    return calls


@pytest.fixture(scope="module")
def alone(arms):
    """Every arm with seeds 0 and 3 as a run of its own computes it: numbers are constants."""
    found = {}
    for name, prepared in arms.items():
        program = jax.jit(prepared.advance)
        for seed in (0, 3):
            state = prepared.draw(np.uint32(seed))
            batches = prepared.stacked_batches(seed, 0, STEPS)
            state, records = program(np.uint32(seed), state, batches, np.int32(STEPS))
            found[name, seed] = tree_hash(state), np.asarray(records.loss)[:STEPS]
    return found


@pytest.mark.commands
def test_a_loop_shares_all_but_divisors_and_changes_no_bit(arms, alone):
    groups = group_arms(arms, "loop")
    # A keep rate and a length of warm-up divide: a constant divisor is compiled as a product.
    assert sorted(sorted(group.arms) for group in groups) == [
        sorted(set(CHANGES) - {"dropout", "warm-up"}),
        ["dropout"],
        ["warm-up"],
    ]
    for group in groups:
        for arm in group.arms:
            for seed in (0, 3):
                (answer,) = group.answer(calls_of(group, [(arm, seed)]), 1)
                assert tree_hash(answer.state) == alone[arm, seed][0], (arm, seed)


@pytest.mark.commands
@pytest.mark.parametrize("how", ["scan", "devices"])
def test_members_one_after_another_in_one_call_have_the_same_bits(arms, alone, how):
    group = max(group_arms(arms, how), key=lambda group: len(group.arms))
    members = [("base", 0), ("learning rate", 3), ("decay", 0)]
    for member, answer in zip(members, group.answer(calls_of(group, members), 4), strict=True):
        assert tree_hash(answer.state) == alone[member][0], member


@pytest.mark.commands
def test_a_vmapped_member_is_its_own_run_within_1e_5(arms, alone):
    (group,) = group_arms(arms, "vmap")  # here divisors are shared too
    members = [("base", 0), ("dropout", 3), ("learning rate", 3), ("betas", 0)]
    for member, answer in zip(members, group.answer(calls_of(group, members), 4), strict=True):
        np.testing.assert_allclose(answer.records.loss[:STEPS], alone[member][1], rtol=1e-5)


def test_members_that_are_missing_stand_still(arms):
    (group,) = group_arms({"base": arms["base"]}, "vmap")
    (answer,) = group.answer(calls_of(group, [("base", 0)]), 2)
    assert int(answer.state.step) == STEPS


def test_another_shape_or_operation_is_another_program(arms):
    task = arms["base"].task
    others = {
        "wide": prepare(tiny_config(model__width=64, model__depth=1), task=task),
        "relu": prepare(tiny_config(model__activation="relu", model__depth=1), task=task),
        "deep": prepare(tiny_config(model__depth=2), task=task),
        "no dropout": prepare(tiny_config(model__dropout_rate=0.0, model__depth=1), task=task),
    }
    assert len(group_arms({"base": arms["base"], **others}, "vmap")) == 5


@pytest.mark.commands
def test_what_does_not_fit_is_halved(arms, monkeypatch):
    (group,) = group_arms({"base": arms["base"]}, "scan")
    honest, widths = group.program, []

    def small(width, arguments):
        widths.append(width)
        if width > 1:
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating")
        return honest(width, arguments)

    monkeypatch.setattr(group, "program", small)
    answers = group.answer(calls_of(group, [("base", 0), ("base", 1), ("base", 2)]), 3)
    assert [int(answer.state.step) for answer in answers] == [STEPS] * 3
    assert widths == [3, 2, 1, 1, 1]


# ---------------------------------------------------------------- tracing


def test_equal_operations_on_other_trees_are_not_one_program():
    x = jnp.ones(3)
    one, other = trace(lambda t: (t[0] * 2,), (x,)), trace(lambda t: [t["a"] * 2], {"a": x})
    assert one.structure != other.structure
    assert one.structure == trace(lambda t: (t[0] * 3,), (x,)).structure


def test_starts_are_shared_where_they_draw_the_same():
    base, fast = prepare(tiny_config()), prepare(tiny_config(optimizer__learning_rate=0.01))
    free, wide = (
        prepare(tiny_config(training__clip_norm=None)),
        prepare(tiny_config(model__init_std=0.1)),
    )
    assert base.draw is fast.draw
    assert len({id(p.draw) for p in (base, free, wide)}) == 3


def test_numbers_in_every_kind_of_inner_program():
    """cond, while, jit and a custom derivative, beside a scan; the result is the function's."""

    def make(a, b, c, d):
        def function(x):
            x = jax.lax.cond(x.sum() > a, lambda y: y * b, lambda y: y + b, x)
            x = jax.lax.while_loop(lambda y: y.sum() < c, lambda y: y + d, x)
            x, rows = jax.lax.scan(lambda y, z: (y * 0.5 + z, y * 2), x, jnp.arange(3.0))
            return jax.nn.relu(x - b), rows * jnp.where(x > c, d, a)

        return function

    x = jnp.linspace(-1.0, 1.0, 4)
    one, other = make(0.5, 2.0, 3.0, 0.25), make(0.1, 3.0, 4.0, 0.5)
    traces = [trace(one, x), trace(other, x)]
    assert traces[0].structure == traces[1].structure
    places = differing(traces)
    assert places
    shared = jax.jit(with_numbers(traces[0], places))
    for function, traced in zip((one, other), traces, strict=True):
        numbers = [traced.numbers[place] for place in places]
        for ours, theirs in zip(shared(numbers, x), jax.jit(function)(x), strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_numbers_inside_a_loop_and_a_derivative_are_shared():
    def make(a):
        body = jax.checkpoint(lambda y, z: (jnp.sin(y * a) + z, y))
        return jax.grad(lambda x: jax.lax.scan(body, x, jnp.arange(3.0))[0].sum())

    x = jnp.ones(2)
    traces = [trace(make(a), x) for a in (0.5, 0.1)]
    assert traces[0].structure == traces[1].structure
    places = differing(traces)
    shared = with_numbers(traces[0], places)
    for traced, a in zip(traces, (0.5, 0.1), strict=True):
        numbers = [traced.numbers[place] for place in places]
        np.testing.assert_allclose(shared(numbers, x), make(a)(x), rtol=1e-6)
    again = jax.make_jaxpr(shared)(numbers, x)
    assert str(again).count("remat2") == str(traces[0].program).count("remat2") > 0


def test_accumulation_shares_the_learning_rate():
    accumulated = {"training__accumulation": 2, "model__depth": 1}
    arms = {
        str(rate): prepare(tiny_config(optimizer__learning_rate=rate, **accumulated))
        for rate in (0.001, 0.01)
    }
    assert len(group_arms(arms, "loop")) == 1


def test_a_key_that_is_a_constant_is_refused():
    key = jax.random.key(3)
    with pytest.raises(ValueError, match="seed as an argument"):
        trace(lambda x: x + jax.random.normal(key, x.shape), jnp.ones(3))


def test_first_arguments_are_those_of_a_run(arms):
    seed, state, batches, steps = first_arguments(arms["base"])
    assert (int(seed), int(state.step), int(steps)) == (0, 0, 1)
    assert batches["weights"].shape[0] == arms["base"].capacity
    assert isinstance(group_arms({"a": arms["base"]}, "loop")[0], Group)

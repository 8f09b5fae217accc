"""Optimizers by name: each takes the steps of optax's own, with decay, rates and means by path."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from tests.conftest import tiny_config
from transformer_jax.paths import path_text
from transformer_jax.training.optimizers import (
    OPTIMIZERS,
    evaluated_params,
    is_hidden_kernel,
    make_optimizer,
    make_schedule,
    weight_mean,
)
from transformer_jax.training.schedules import SCHEDULES, warmup_linear, warmup_stable_decay

PARAMS = {
    "block_0": {
        "attention": {"query": {"kernel": (4, 6), "bias": (6,)}},
        "feed_forward": {"up": {"kernel": (3, 4, 8)}},  # of three experts
        "attention_norm": {"scale": (4,)},
    },
    "token_embedding": {"embedding": (5, 4)},
}


def drawn(seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32),
        PARAMS,
        is_leaf=lambda leaf: isinstance(leaf, tuple),
    )


def config(**changes):
    plain = {"training__clip_norm": None, "schedule__name": "constant"}
    plain |= {"optimizer__learning_rate": 0.01, "optimizer__weight_decay": 0.1}
    return tiny_config(**plain | changes)


def train(optimizer, steps=4, params=None):
    params = drawn(0) if params is None else params
    state = optimizer.init(params)

    @jax.jit
    def take(params, state, noise):
        gradients = jax.tree.map(jnp.add, params, noise)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    for step in range(steps):
        params, state = take(params, state, drawn(10 + step))
    return params, state


def close(actual, expected, **tolerances):
    tolerances = {"rtol": 1e-5, "atol": 1e-6} | tolerances
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, **tolerances), actual, expected)


def decays(params):
    names = ("kernel", "embedding")
    return jax.tree_util.tree_map_with_path(lambda path, _: path[-1].key in names, params)


def muon_dimensions(params):
    dimensions = optax.contrib.MuonDimensionNumbers(reduction_axis=-2, output_axis=-1)
    return jax.tree_util.tree_map_with_path(
        lambda path, _: dimensions if is_hidden_kernel(path) else None, params
    )


def l2(rule):
    """Weight decay as a part of the gradient, as torch's Adam and SGD have it."""
    return optax.chain(optax.add_decayed_weights(0.1, decays), rule)


# name -> the same optimizer as optax puts it together itself
THEIRS = {
    "adamw": lambda: optax.adamw(0.01, 0.9, 0.99, 1e-8, weight_decay=0.1, mask=decays),
    "adam": lambda: l2(optax.adam(0.01, 0.9, 0.999)),
    "sgd": lambda: l2(optax.sgd(0.01, 0.9)),
    "lion": lambda: optax.lion(0.01, 0.9, 0.99, weight_decay=0.1, mask=decays),
    "adafactor": lambda: optax.adafactor(
        0.01, multiply_by_parameter_scale=False, weight_decay_rate=0.001, weight_decay_mask=decays
    ),
    "muon": lambda: optax.contrib.muon(
        0.01, adam_b1=0.9, adam_b2=0.99, adam_learning_rate=0.01, nesterov=False,
        consistent_rms=0.2,
        muon_weight_dimension_numbers=muon_dimensions,
    ),
    "schedule_free": lambda: optax.contrib.schedule_free_adamw(
        0.01, b1=0.9, b2=0.99, weight_decay=0.0
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_optax(name):
    # optax's muon lets all of Adam's parameters decay, and look ahead as Muon does.
    changes = {"optimizer__weight_decay": 0.0} if name in ("schedule_free", "muon") else {}
    changes |= {"optimizer__nesterov": False} if name == "muon" else {}
    ours, state = train(make_optimizer(config(optimizer__name=name, **changes)))
    theirs, their_state = train(THEIRS[name]())
    close(ours, theirs)
    if name == "schedule_free":
        mean = optax.contrib.schedule_free_eval_params(their_state, theirs)
        close(evaluated_params(state, ours), mean)
        assert not np.allclose(
            ours["token_embedding"]["embedding"], mean["token_embedding"]["embedding"]
        )


def test_options_of_a_row_reach_it_and_not_another():
    base, _ = train(make_optimizer(config(optimizer__momentum=0.1)))
    other, _ = train(make_optimizer(config(optimizer__b1=0.1)))
    close(base, train(make_optimizer(config()))[0], rtol=0)
    assert not np.allclose(
        base["block_0"]["attention_norm"]["scale"], other["block_0"]["attention_norm"]["scale"]
    )


def test_muon_takes_stacked_kernels_one_by_one():
    """Experts stacked in one array move as each alone does: by name, not by number of axes."""
    optimizer = make_optimizer(config(optimizer__name="muon"))
    moved, _ = train(optimizer, steps=1)
    stacked = moved["block_0"]["feed_forward"]["up"]["kernel"]
    for expert in range(3):
        alone = jax.tree.map(lambda leaf: leaf, drawn(0))
        noise = drawn(10)
        for tree in (alone, noise):
            kernel = tree["block_0"]["feed_forward"]["up"]["kernel"]
            tree["block_0"]["feed_forward"]["up"]["kernel"] = kernel[expert]
        state = optimizer.init(alone)
        updates, _ = optimizer.update(jax.tree.map(jnp.add, alone, noise), state, alone)
        single = optax.apply_updates(alone, updates)["block_0"]["feed_forward"]["up"]["kernel"]
        np.testing.assert_allclose(stacked[expert], single, rtol=1e-5, atol=1e-6)


def test_rates_by_path():
    multipliers = "block_0/attention=0.5,token_embedding=0"
    moved, _ = train(
        make_optimizer(config(optimizer__learning_rate_multipliers=multipliers)), steps=1
    )
    plain, _ = train(make_optimizer(config()), steps=1)
    start = drawn(0)
    for path, value in jax.tree_util.tree_leaves_with_path(moved):
        name = path_text(path)
        factor = 0.5 if name.startswith("block_0/attention/") else float("token" not in name)
        whole = jax.tree_util.tree_leaves_with_path(plain)
        step = dict((path_text(p), v) for p, v in whole)[name]
        begin = dict((path_text(p), v) for p, v in jax.tree_util.tree_leaves_with_path(start))[name]
        np.testing.assert_allclose(value - begin, factor * (step - begin), rtol=1e-4, atol=1e-7)


def test_a_mean_of_weights_is_what_is_evaluated():
    optimizer = make_optimizer(config(training__weight_ema=0.9))
    params, state = train(optimizer, steps=3)
    plain, mean = drawn(0), drawn(0)
    single = make_optimizer(config())
    for steps in (1, 2, 3):
        plain, _ = train(single, steps)
        mean = jax.tree.map(lambda m, p: 0.9 * m + 0.1 * p, mean, plain)
    close(params, plain)
    close(evaluated_params(state, params), mean)


def test_a_mean_of_what_stays_stays_to_the_bit():
    """As decay m + (1 - decay) p it would shrink by 1e-4 over 50,000 updates at 0.9999."""
    params = drawn(0)
    still, rule = jax.tree.map(jnp.zeros_like, params), weight_mean(0.9999)
    state = rule.init(params)
    for _ in range(20):
        _, state = rule.update(still, state, params)
    jax.tree.map(np.testing.assert_array_equal, state.mean, params)


def test_schedule_free_weighs_an_update_by_its_own_rate():
    changes = {"schedule__name": "warmup_constant", "optimizer__name": "schedule_free"}
    changes["schedule__warmup_steps"] = 10
    asked = config(**changes)
    _, state = train(make_optimizer(asked), steps=3)
    is_ours = lambda node: isinstance(node, optax.contrib.ScheduleFreeState)
    (found,) = [s for s in jax.tree.leaves(state, is_leaf=is_ours) if is_ours(s)]
    rates = [float(make_schedule(asked)(count)) for count in range(3)]
    assert rates[0] < rates[1] < rates[2]
    np.testing.assert_allclose(found.weight_sum, sum(rate**2 for rate in rates), rtol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_frozen_parameters_stay_to_the_bit_and_so_does_their_mean(name):
    frozen = make_optimizer(
        config(optimizer__name=name, training__frozen="token_embedding,block_0/attention")
    )
    params, state = train(frozen)
    for tree in (params, evaluated_params(state, params)):
        for place in (("token_embedding",), ("block_0", "attention")):
            kept, start = tree, drawn(0)
            for key in place:
                kept, start = kept[key], start[key]
            close(kept, start, rtol=1e-6, atol=1e-6)
        assert not np.allclose(
            tree["block_0"]["attention_norm"]["scale"],
            drawn(0)["block_0"]["attention_norm"]["scale"],
        )


def test_mup_slows_the_kernels_of_blocks_alone_and_not_their_decay():
    wide = {"model__parametrisation": "mup", "model__parametrisation_options__base_width": 8}
    start, plain, moved = drawn(0), {}, {}
    for decay in (0.0, 0.1):
        changes = {"model__width": 32, "optimizer__weight_decay": decay}
        plain[decay], _ = train(make_optimizer(config(**changes)), steps=1)
        moved[decay], _ = train(make_optimizer(config(**changes, **wide)), steps=1)
    kernel = lambda tree: tree["block_0"]["attention"]["query"]["kernel"]
    step = lambda tree: kernel(tree) - kernel(start)
    np.testing.assert_allclose(step(moved[0.0]), step(plain[0.0]) / 4, rtol=1e-4, atol=1e-6)
    by_decay = [step(trees[0.1]) - step(trees[0.0]) for trees in (moved, plain)]
    np.testing.assert_allclose(*by_decay, atol=1e-6)
    for trees in (moved, plain):
        embedding = trees[0.1]["token_embedding"]["embedding"]
        np.testing.assert_array_equal(embedding, plain[0.1]["token_embedding"]["embedding"])


def test_schedules_at_their_corners():
    linear = warmup_linear(0.5, 100, 10, 0.2)
    assert [float(linear(n - 1)) for n in (1, 10, 55, 100)] == pytest.approx([0.05, 0.5, 0.3, 0.1])
    stable = warmup_stable_decay(0.5, 100, 10, 0.2, 0.0)
    places = (1, 10, 50, 80, 90, 100)
    assert [float(stable(n - 1)) for n in places] == pytest.approx([0.05, 0.5, 0.5, 0.5, 0.25, 0.0])
    assert float(SCHEDULES["warmup_constant"](0.5, 100, 10)(99)) == 0.5


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_moves_at_once_and_never_beyond_the_peak(name):
    rates = [float(SCHEDULES[name](1.0, 50, **_short(name))(n)) for n in range(50)]
    assert 0 < rates[0] <= 1
    assert max(rates) == pytest.approx(1.0)


def _short(name):
    return {} if name == "constant" else {"warmup_steps": 5}

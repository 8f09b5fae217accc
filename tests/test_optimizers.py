"""Optimizers by name: each takes the steps of optax's own, with decay, rates and means by path."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest
from flax import traverse_util

from tests.conftest import tiny_config
from transformer_jax.paths import by_path
from transformer_jax.training import optimizers
from transformer_jax.training.preconditioned import scale_by_soap
from transformer_jax.training.schedules import SCHEDULES

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
        lambda path, _: dimensions if optimizers.is_hidden_kernel(path) else None, params
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
    "ademamix": lambda: optax.contrib.ademamix(
        0.01, 0.9, 0.999, 0.9999, 8.0, weight_decay=0.1, mask=decays
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain():
    """Parameters that the default optimizer gives, by the number of steps."""
    return {steps: train(optimizers.make_optimizer(config()), steps)[0] for steps in (1, 2, 3, 4)}


def scale(params):
    return params["block_0"]["attention_norm"]["scale"]


def embedding(params):
    return params["token_embedding"]["embedding"]


def up(params):
    return params["block_0"]["feed_forward"]["up"]["kernel"]


@pytest.mark.parametrize("name", THEIRS)
def test_steps_are_those_of_optax(name):
    # optax's muon lets all of Adam's parameters decay, and look ahead as Muon does.
    changes = {"optimizer__weight_decay": 0.0} if name in ("schedule_free", "muon") else {}
    changes |= {"optimizer__nesterov": False} if name == "muon" else {}
    ours, state = train(optimizers.make_optimizer(config(optimizer__name=name, **changes)))
    theirs, their_state = train(THEIRS[name]())
    close(ours, theirs)
    if name == "schedule_free":
        mean = optax.contrib.schedule_free_eval_params(their_state, theirs)
        close(optimizers.evaluated_params(state, ours), mean)
        assert not np.allclose(embedding(ours), embedding(mean))


def test_options_of_a_row_reach_it_and_not_another(plain):
    """AdamW, the default, has b1 and no momentum."""
    close(train(optimizers.make_optimizer(config(optimizer__momentum=0.1)))[0], plain[4], rtol=0)
    other, _ = train(optimizers.make_optimizer(config(optimizer__b1=0.1)))
    assert not np.allclose(scale(other), scale(plain[4]))


def gradients_of(optimizer, steps):
    """Gradients in float64 that `train` takes, and the parameters before each."""
    found = []
    for step in range(steps):
        params, _ = train(optimizer, step)
        found.append((by_path(jax.tree.map(jnp.add, params, drawn(10 + step))), by_path(params)))
    return [
        tuple({k: np.asarray(v, np.float64) for k, v in tree.items()} for tree in pair)
        for pair in found
    ]


KERNELS = ("block_0/attention/query/kernel", "block_0/feed_forward/up/kernel")


def test_soap_is_adam_in_the_basis_of_both_sides(rng):
    """Algorithm 3 in float64, with a new basis at every second update; the first only finds it."""
    given = rng.normal(size=(5, 2, 4, 4))
    rule = scale_by_soap(0.95, 0.9, 1e-8, 2)
    state, take = rule.init(jnp.zeros((2, 4, 4))), jax.jit(rule.update)
    found = []
    for gradient in given:
        step, state = take(jnp.asarray(gradient, jnp.float32), state)
        found.append(step)
    for kernel in range(2):
        left = right = mean = square = np.zeros((4, 4))
        u = v = np.eye(4)
        for number, g in enumerate(given[:, kernel]):
            expected = np.zeros((4, 4))
            if number:
                mean = 0.95 * mean + 0.05 * g
                square = 0.9 * square + 0.1 * (u.T @ g @ v) ** 2
                size = np.sqrt(1 - 0.9**number) / (1 - 0.95**number)
                expected = size * u @ (u.T @ mean @ v / (np.sqrt(square) + 1e-8)) @ v.T
            np.testing.assert_allclose(found[number][kernel], expected, atol=1e-3)
            left, right = 0.9 * left + 0.1 * g @ g.T, 0.9 * right + 0.1 * g.T @ g
            if number == 0:
                u, v = (np.linalg.eigh(side)[1][:, ::-1] for side in (left, right))
            elif number % 2 == 0:
                u, v = np.linalg.qr(left @ u)[0], np.linalg.qr(right @ v)[0]


def test_soap_moves_the_kernels_of_blocks_and_adam_the_rest():
    soap, adam = (
        optimizers.make_optimizer(
            config(optimizer__name=name, optimizer__b1=0.9, optimizer__b2=0.99)
        )
        for name in ("soap", "adamw")
    )
    first, second = (train(soap, steps)[0] for steps in (1, 2))
    start, plain = drawn(0), train(adam, 2)[0]
    decay = 1 - 0.01 * 0.1
    for name in KERNELS:  # the first update finds the basis; weights decay all the same
        still = by_path(start)[name] * decay
        np.testing.assert_allclose(by_path(first)[name], still, rtol=1e-5)
        assert not np.allclose(by_path(second)[name], by_path(plain)[name], atol=1e-4)
    np.testing.assert_allclose(embedding(second), embedding(plain), rtol=1e-5)


def test_normuon_gives_each_neuron_a_step_of_the_same_size():
    changes = {"optimizer__weight_decay": 0.0}
    steps = 3
    optimizer = optimizers.make_optimizer(config(optimizer__name="normuon", **changes))
    taken = gradients_of(optimizer, steps)
    rule = optax.contrib.scale_by_muon(weight_dimension_numbers=muon_dimensions, nesterov=True)
    state = rule.init(muon_part(drawn(0)))
    squares = dict.fromkeys(KERNELS, 0.0)
    for gradients, _ in taken:
        tree = {name: jnp.asarray(gradients[name], jnp.float32) for name in KERNELS}
        updates, state = rule.update(muon_part(nested(tree)), state)
        updates = by_path(updates)
        for name in KERNELS:
            update = np.asarray(updates[name], np.float64)
            mean_square = (update**2).mean(-2, keepdims=True)
            squares[name] = 0.95 * squares[name] + 0.05 * mean_square
            even = update / np.sqrt(squares[name])
            norm = np.sqrt((even**2).sum((-2, -1), keepdims=True))
            updates[name] = 0.2 * even * np.sqrt(np.prod(update.shape[-2:])) / norm
    before, after = taken[-1][1], by_path(train(optimizer, steps)[0])
    for name in KERNELS:
        step = np.asarray(after[name], np.float64) - before[name]
        np.testing.assert_allclose(step, -0.01 * updates[name], rtol=1e-3, atol=1e-6)


def nested(flat):
    return traverse_util.unflatten_dict(flat, sep="/")


def muon_part(tree):
    return nested({name: leaf for name, leaf in by_path(tree).items() if name in KERNELS})


def test_ademamix_grows_its_slow_mean():
    """Alpha and b3 over four updates (appendix D): the first update is that of a fourth of each."""
    optimizer = optimizers.make_optimizer(config(optimizer__name="ademamix", optimizer__warmup=4))
    first = {"alpha": 2.0, "b3": np.exp(1 / (0.25 / np.log(0.9999) + 0.75 / np.log(0.9)))}
    first = {f"optimizer__{name}": value for name, value in first.items()}
    plain = optimizers.make_optimizer(config(optimizer__name="ademamix", **first))
    close(train(optimizer, 1)[0], train(plain, 1)[0])


def test_cautious_decay_shrinks_only_what_the_update_shrinks():
    both = [config(optimizer__cautious_decay=cautious) for cautious in (False, True)]
    (plain, _), (cautious, _) = (train(optimizers.make_optimizer(each), 1) for each in both)
    without, _ = train(optimizers.make_optimizer(config(optimizer__weight_decay=0.0)), 1)
    start = drawn(0)
    shrinks = np.sign(embedding(start) - embedding(without)) == np.sign(embedding(start))
    assert 0 < shrinks.mean() < 1
    expected = np.where(shrinks, embedding(plain), embedding(without))
    np.testing.assert_allclose(embedding(cautious), expected, atol=1e-7)


def test_muon_takes_stacked_kernels_one_by_one():
    """Experts stacked in one array move as each alone does: by name, not by number of axes."""
    optimizer = optimizers.make_optimizer(config(optimizer__name="muon"))
    stacked = up(train(optimizer, steps=1)[0])
    for expert in range(3):
        alone, noise = drawn(0), drawn(10)
        for tree in (alone, noise):
            tree["block_0"]["feed_forward"]["up"]["kernel"] = up(tree)[expert]
        gradients = jax.tree.map(jnp.add, alone, noise)
        updates, _ = optimizer.update(gradients, optimizer.init(alone), alone)
        single = up(optax.apply_updates(alone, updates))
        np.testing.assert_allclose(stacked[expert], single, rtol=1e-5, atol=1e-6)


def test_rates_by_path(plain):
    multipliers = "block_0/attention=0.5,token_embedding=0"
    optimizer = optimizers.make_optimizer(config(optimizer__learning_rate_multipliers=multipliers))
    moved, start, whole = map(by_path, (train(optimizer, steps=1)[0], drawn(0), plain[1]))
    for name, value in moved.items():
        factor = 0.5 if name.startswith("block_0/attention/") else float("token" not in name)
        step = factor * (whole[name] - start[name])
        np.testing.assert_allclose(value - start[name], step, rtol=1e-4, atol=1e-7)


def test_a_mean_of_weights_is_what_is_evaluated(plain):
    params, state = train(optimizers.make_optimizer(config(training__weight_ema=0.9)), steps=3)
    mean = drawn(0)
    for steps in (1, 2, 3):
        mean = jax.tree.map(lambda m, p: 0.9 * m + 0.1 * p, mean, plain[steps])
    close(params, plain[3])
    close(optimizers.evaluated_params(state, params), mean)


def test_a_mean_of_what_stays_stays_to_the_bit():
    """As decay m + (1 - decay) p it would shrink by 1e-4 over 50,000 updates at 0.9999."""
    params = drawn(0)
    still, rule = jax.tree.map(jnp.zeros_like, params), optimizers.weight_mean(0.9999)
    state = rule.init(params)
    for _ in range(20):
        _, state = rule.update(still, state, params)
    jax.tree.map(np.testing.assert_array_equal, state.mean, params)


def test_schedule_free_weighs_an_update_by_its_own_rate():
    schedule = {"schedule__name": "warmup_constant", "schedule__warmup_steps": 10}
    asked = config(optimizer__name="schedule_free", **schedule)
    _, state = train(optimizers.make_optimizer(asked), steps=3)
    is_ours = lambda node: isinstance(node, optax.contrib.ScheduleFreeState)
    (found,) = [s for s in jax.tree.leaves(state, is_leaf=is_ours) if is_ours(s)]
    rates = [float(optimizers.make_schedule(asked)(count)) for count in range(3)]
    assert rates[0] < rates[1] < rates[2]
    np.testing.assert_allclose(found.weight_sum, sum(rate**2 for rate in rates), rtol=1e-5)


@pytest.mark.parametrize("name", optimizers.OPTIMIZERS)
def test_frozen_parameters_stay_and_so_does_their_mean(name):
    frozen = optimizers.make_optimizer(
        config(optimizer__name=name, training__frozen="token_embedding,block_0/attention")
    )
    (params, state), start = train(frozen), drawn(0)
    for tree in (params, optimizers.evaluated_params(state, params)):
        close(embedding(tree), embedding(start), rtol=1e-6, atol=1e-6)
        attention = tree["block_0"]["attention"]
        close(attention, start["block_0"]["attention"], rtol=1e-6, atol=1e-6)
        assert not np.allclose(scale(tree), scale(start))


def test_mup_slows_the_kernels_of_blocks_alone_and_not_their_decay():
    wide = {"model__parametrisation": "mup", "model__parametrisation_options__base_width": 8}
    start, plain, moved = drawn(0), {}, {}
    for decay in (0.0, 0.1):
        changes = {"model__width": 32, "optimizer__weight_decay": decay}
        plain[decay], _ = train(optimizers.make_optimizer(config(**changes)), steps=1)
        moved[decay], _ = train(optimizers.make_optimizer(config(**changes, **wide)), steps=1)
    kernel = lambda tree: tree["block_0"]["attention"]["query"]["kernel"]
    step = lambda tree: kernel(tree) - kernel(start)
    np.testing.assert_allclose(step(moved[0.0]), step(plain[0.0]) / 4, rtol=1e-4, atol=1e-6)
    by_decay = [step(trees[0.1]) - step(trees[0.0]) for trees in (moved, plain)]
    np.testing.assert_allclose(*by_decay, atol=1e-6)
    np.testing.assert_array_equal(embedding(moved[0.1]), embedding(plain[0.1]))


@pytest.mark.parametrize(
    ("name", "options", "rates"),
    [
        ("constant", (), {1: 0.5, 8: 0.5, 100: 0.5}),
        ("warmup_constant", (10,), {1: 0.05, 10: 0.5, 100: 0.5}),
        ("warmup_linear", (10, 0.2), {1: 0.05, 10: 0.5, 55: 0.3, 100: 0.1}),
        ("warmup_stable_decay", (10, 0.2), {10: 0.5, 50: 0.5, 80: 0.5, 90: 0.25, 100: 0.0}),
    ],
)
def test_schedules_at_their_corners(name, options, rates):
    rate = SCHEDULES[name](0.5, 100, *options)
    assert {step: float(rate(step - 1)) for step in rates} == pytest.approx(rates)


def test_a_config_makes_its_schedule():
    changes = {"schedule__warmup_steps": 10, "schedule__final_fraction": 0.2}
    rate = optimizers.make_schedule(
        tiny_config(training__steps=100, optimizer__learning_rate=0.5, **changes)
    )
    assert [float(rate(n - 1)) for n in (1, 10, 55, 100)] == pytest.approx([0.05, 0.5, 0.3, 0.1])


def test_the_first_transformers_schedule_is_the_papers():
    """width^-0.5 * min(n^-0.5, n * warmup^-1.5), equation 3, with width 512 and 4,000 updates."""
    schedule = SCHEDULES["inverse_square_root"]((512 * 4000) ** -0.5, 100_000, 4000)
    for n in (1, 100, 4000, 4001, 50_000):
        expected = 512**-0.5 * min(n**-0.5, n * 4000**-1.5)
        assert float(schedule(n - 1)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_moves_at_once_and_never_beyond_the_peak(name):
    short = {} if name == "constant" else {"warmup_steps": 5}
    rates = [float(SCHEDULES[name](1.0, 50, **short)(n)) for n in range(50)]
    assert 0 < rates[0] <= 1
    assert max(rates) == pytest.approx(1.0)

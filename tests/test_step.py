"""Loss, metrics, optimizer and the update itself."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.templates.objective import Mine as ZLoss
from tests.conftest import a_few_of, random_params, tiny_config
from transformer_jax import Decoder
from transformer_jax.errors import InvalidInput
from transformer_jax.jaxprs import operations_of, subprograms
from transformer_jax.metrics import METRICS
from transformer_jax.runs.records import StepLog
from transformer_jax.training.build import make_model, make_task
from transformer_jax.training.compatibility import refuse_unknown_prefixes
from transformer_jax.training.evaluation import make_score
from transformer_jax.training.loss_in_chunks import sums_in_chunks
from transformer_jax.training.objectives import (
    LARGE_VOCABULARY,
    MANY_LOGITS,
    CrossEntropy,
    chunk_length,
    cross_entropy,
    sums_of,
    total,
)
from transformer_jax.training.optimizers import decay_multiplier, evaluated_params, make_optimizer
from transformer_jax.training.prepared import prepare
from transformer_jax.training.step import draw_state, make_run_steps, make_train_step

VOCAB = 13


def setup(**overrides):
    small = {"data__length": 8, "model__width": 16, "model__depth": 1}
    config = tiny_config(**small | overrides)
    model, optimizer = make_model(config, {"vocab_size": VOCAB}), make_optimizer(config)
    return config, model, optimizer, draw_state(model, optimizer, config.seed)


def random_batch(seed, *leading, weights=None, length=8):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, VOCAB, (*leading, 8, length + 1))
    weights = np.ones((*leading, 8, length), np.float32) if weights is None else weights
    return {
        "inputs": {"tokens": tokens[..., :-1].astype(np.int32)},
        "targets": tokens[..., 1:].astype(np.int32),
        "weights": weights,
    }


def leaves_equal(first, second):
    jax.tree.map(np.testing.assert_array_equal, first, second)


def leaves_close(first, second, **tolerances):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerances), first, second)


@pytest.fixture(scope="module")
def plain():
    """Model, optimizer and state without dropout, and the jitted step, compiled once."""
    _, model, optimizer, state = setup(model__dropout_rate=0.0)
    return model, optimizer, state, jax.jit(make_train_step(model, optimizer, 0))


@pytest.fixture(scope="module")
def run_six():
    """Model and optimizer, the state at step 0, and up to six steps in one call, compiled once."""
    _, model, optimizer, state = setup()
    return model, optimizer, state, jax.jit(make_run_steps(make_train_step(model, optimizer, 0)))


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.int8, jnp.uint8])
def test_cross_entropy_of_known_logits(dtype):
    logits = jnp.log(jnp.array([[0.5, 0.25, *[0.25 / 298] * 298]]))
    loss = cross_entropy(logits, jnp.array([1], dtype))
    np.testing.assert_allclose(loss, [math.log(4)], rtol=1e-5)


@pytest.mark.parametrize("label", [-1, -100, 3])
def test_c53_a_label_outside_the_vocabulary_is_not_somebody_elses_loss(label):
    loss = cross_entropy(jnp.zeros((1, 3)), jnp.array([label]))
    assert jnp.isnan(loss).all()
    with pytest.raises(ValueError, match="targets: expected integers, got float32"):
        cross_entropy(jnp.zeros((1, 3)), jnp.array([0.5]))


def test_weights_of_another_shape_than_the_targets_are_refused(plain):
    _, _, state, step = plain
    batch = random_batch(0, weights=np.ones((8, 1), np.float32))
    with pytest.raises(ValueError, match=r"weights: expected shape \(8, 8\), got \(8, 1"):
        step(state, batch)


def test_weight_zero_hides_anything():
    def loss(logits):
        return total(sums_of(cross_entropy, logits, targets, weights)).loss

    targets, weights = jnp.array([[0, -100]]), jnp.array([[1.0, 0.0]])
    logits = jnp.array([[[1.0, 2.0], [jnp.nan, 0.0]]])
    value, gradient = jax.value_and_grad(loss)(logits)
    assert value == pytest.approx(math.log(1 + math.e))
    assert (gradient[0, 1] == 0).all()


def test_c42_bfloat16_logits_are_scored_in_float32():
    logits = jax.random.normal(jax.random.key(0), (4, 100, 50)).astype(jnp.bfloat16)
    targets, weights = jnp.zeros((4, 100), int), jnp.ones((4, 100))
    sums = total(sums_of(cross_entropy, logits, targets, weights))
    exact = total(sums_of(cross_entropy, logits.astype(jnp.float32), targets, weights))
    assert sums.loss.dtype == jnp.float32
    np.testing.assert_allclose(sums.loss, exact.loss, rtol=1e-6)


def test_losses_agree_under_jit_vmap_and_grad():
    logits = jax.random.normal(jax.random.key(0), (3, 4, 5))
    targets = jnp.arange(12).reshape(3, 4) % 5
    eager = cross_entropy(logits, targets)
    for transformed in (jax.jit(cross_entropy), jax.vmap(cross_entropy)):
        np.testing.assert_allclose(transformed(logits, targets), eager, atol=1e-6)
    gradient = jax.grad(lambda x: cross_entropy(x, targets).sum())(logits)
    expected = jax.nn.softmax(logits) - jax.nn.one_hot(targets, 5)
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_means_divide_once():
    columns = {"loss": [19.0, 1.0], "correct": [1.0, 2.0], "weight": [2.0, 8.0], "bytes": [30, 10]}
    columns = {key: np.array(column) for key, column in columns.items()}
    means = [METRICS[name](columns) for name in ("loss", "accuracy", "bits_per_byte")]
    assert means == pytest.approx([2, 0.3, 20 / math.log(2) / 40])


def test_decay_goes_by_name_even_for_stacked_parameters():
    config = tiny_config(
        optimizer__decay_multipliers="block_0=0.5,block_0/attention=0.5",
        training__frozen="token_embedding",
    )
    model = make_model(tiny_config(model__use_bias=True), {"vocab_size": VOCAB})
    single = random_params(model)
    stacked = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), single)
    for params in (single, stacked):
        decays = jax.tree.map_with_path(lambda path, _: decay_multiplier(path, config), params)
        attention = decays["block_0"]["attention"]["query"]
        assert attention == {"kernel": pytest.approx(0.25), "bias": 0}
        assert decays["block_0"]["feed_forward"]["up"]["kernel"] == pytest.approx(0.5)
        assert decays["final_norm"] == {"scale": 0, "bias": 0}
        assert decays["token_embedding"]["embedding"] == 0  # frozen


def test_c8_accumulation_equals_the_whole_batch_with_unequal_tokens(plain):
    model, optimizer, state, step = plain
    weights = np.ones((8, 8), np.float32)
    weights[:3, 2:] = 0
    weights[6] = 0
    batch = random_batch(0, weights=weights)
    whole, of_whole = step(state, batch)
    parts, record = jax.jit(make_train_step(model, optimizer, 0, accumulation=4))(state, batch)
    np.testing.assert_allclose(record.loss, of_whole.loss, rtol=1e-6)
    np.testing.assert_allclose(record.gradient_norm, of_whole.gradient_norm, rtol=1e-5)
    leaves_close(parts.opt_state, whole.opt_state, atol=1e-6)


def test_loss_is_the_token_weighted_mean(plain):
    model, _, state, step = plain
    batch = random_batch(0)
    batch["weights"][:, 4:] = 0
    _, record = step(state, batch)
    logits = jax.jit(model.apply)({"params": state.params}, **batch["inputs"])
    log_p = jax.nn.log_softmax(logits[:, :4])
    chosen = jnp.take_along_axis(log_p, batch["targets"][:, :4, None], -1)
    np.testing.assert_allclose(record.loss, -chosen.mean(), rtol=1e-5)


def test_c41_a_batch_without_targets_changes_no_parameter_by_gradient():
    config, model, optimizer, state = setup(optimizer__weight_decay=0.0)
    batch = random_batch(0, weights=np.zeros((8, 8), np.float32))
    after, record = jax.jit(make_train_step(model, optimizer, 0))(state, batch)
    assert (bool(record.applied), record.gradient_norm) == (True, 0)
    log = StepLog(2, 4, lambda step: 0.1, "tokens", lambda: (0.0, 0.0))
    rows = log.add(1, [record.loss, 3.0, np.nan, np.nan], 4 * [1.0], 1.0, 1)
    assert [row.get("train/loss") for row in rows] == [3.0, None]
    assert after.step == 1
    leaves_equal(after.params, state.params)


@pytest.mark.parametrize("cuts", [(2, 3, 1), (1, 1, 1, 1, 1, 1)])
def test_c9_cutting_the_steps_into_calls_changes_no_bit(run_six, cuts):
    (_, _, state, run_steps), batches = run_six, random_batch(0, 6)
    whole, records = run_steps(state, batches, 6)
    compiled = run_steps._cache_size()
    losses, first = [], 0
    for cut in cuts:
        part = jax.tree.map(lambda x, f=first, c=cut: np.resize(x[f : f + c], x.shape), batches)
        state, record = run_steps(state, part, cut)
        losses += list(np.asarray(record.loss[:cut]))
        first += cut
    leaves_equal(whole, state)
    np.testing.assert_array_equal(records.loss, losses)
    assert run_steps._cache_size() == compiled


def test_an_objective_of_ones_own_takes_the_place_of_the_cross_entropy(plain):
    model, optimizer, state, step = plain
    batch, own = random_batch(0), make_train_step(model, optimizer, 0, objective=ZLoss(0.5))
    (_, record), (_, other) = step(state, batch), jax.jit(own)(state, batch)
    logits = jax.jit(model.apply)({"params": state.params}, **batch["inputs"])
    weights = batch["weights"]
    fine = (weights * jax.nn.logsumexp(logits, axis=-1) ** 2).sum() / weights.sum()
    assert float(other.loss - record.loss) == pytest.approx(0.5 * float(fine), rel=1e-5)
    assert other.gradient_norm != record.gradient_norm


@dataclasses.dataclass(frozen=True)
class Capped:
    """Cross-entropy of logits that a soft cap bends."""

    def losses(self, logits, targets):
        return cross_entropy(3 * jnp.tanh(logits / 3), targets)


@pytest.mark.parametrize("objective", [CrossEntropy(0.2), ZLoss(0.5), Capped()])
def test_a_loss_in_chunks_is_the_loss(objective):
    _, model, _, state = setup(model__dropout_rate=0.3)
    weights = np.random.default_rng(5).uniform(0, 2, (8, 8)) * (np.arange(8) % 3 > 0)
    batch = random_batch(0, weights=weights.astype(np.float32))
    sgd = optax.sgd(1.0)
    state = state._replace(opt_state=sgd.init(state.params))
    whole, parted = (
        jax.jit(make_train_step(model, sgd, 0, objective=objective, chunk=chunk))(state, batch)
        for chunk in (None, 3)  # which does not divide the 8 of a text
    )
    assert float(parted[1].loss) == pytest.approx(float(whole[1].loss), rel=1e-6)
    leaves_close(parted[0], whole[0], rtol=1e-5, atol=1e-7)


def test_everything_that_a_loss_in_chunks_depends_on_has_its_derivative():
    draw = np.random.default_rng(3).normal
    hidden, kernel = (draw(size=size).astype(np.float32) for size in ((3, 10, 4), (4, 7)))
    targets = np.arange(30).reshape(3, 10) % 7
    weights = np.abs(draw(size=(3, 10))).astype(np.float32)

    def loss_of(in_chunks, hidden, kernel, weights):
        project = lambda part: jnp.sin(part) @ kernel
        if in_chunks:
            score = functools.partial(sums_of, CrossEntropy(0.1).losses)
            return 3 * sums_in_chunks(score, project, hidden, targets, weights, 4)[0]
        return 3 * (weights * cross_entropy(project(hidden), targets, 0.1)).sum()

    ours, expected = (
        jax.value_and_grad(functools.partial(loss_of, in_chunks), (0, 1, 2))
        for in_chunks in (True, False)
    )
    given = hidden, kernel, weights
    leaves_close(jax.jit(ours)(*given), expected(*given), rtol=2e-5, atol=1e-6)
    members = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), given)
    leaves_close(jax.vmap(ours)(*members), jax.vmap(expected)(*members), rtol=2e-5, atol=1e-5)


def test_a_large_vocabulary_is_never_a_whole_array_of_logits_nor_scattered():
    assert chunk_length((16, 1024, LARGE_VOCABULARY), None) == 128
    assert chunk_length((1, 1001, MANY_LOGITS), None) == 125
    assert chunk_length((16, 1024, LARGE_VOCABULARY - 1), None) == 1024
    assert chunk_length((15, 1024, LARGE_VOCABULARY), None) == 1024
    assert chunk_length((1, 4, MANY_LOGITS), None) == 1
    assert chunk_length((16, 10, 5), 64) == 10
    options = {"max_length": 16, "width": 4, "depth": 1, "num_heads": 1}
    vocab_size = MANY_LOGITS // 8 // 16
    model = Decoder.of(vocab_size=vocab_size, **options)
    sgd, batch = optax.sgd(1.0), random_batch(0, length=16)
    state = jax.eval_shape(lambda: draw_state(model, sgd, 0))
    texts = [
        jax.jit(make_train_step(model, sgd, 0, chunk=chunk)).lower(state, batch).as_text()
        for chunk in (None, 16)
    ]
    assert [f"8x16x{vocab_size}x" in text for text in texts] == [False, True]
    assert [f"8x2x{vocab_size}x" in text for text in texts] == [True, False]
    scatters = [text.count('"stablehlo.scatter"') for text in texts]
    assert scatters == [2, 2]  # the derivatives of looking up tokens and positions
    score = make_score(model)
    assert f"8x16x{vocab_size}x" not in score.lower(state.params, batch).as_text()


def test_a_loss_in_chunks_is_that_of_an_evaluation():
    _, model, _, state = setup()
    batch = random_batch(0)
    ours, expected = (make_score(model, chunk)(state.params, batch) for chunk in (2, None))
    leaves_close(ours, expected, rtol=1e-6)


def test_products_of_the_logits_gradient_are_in_the_dtype_of_the_model():
    def dots(dtype):
        model = Decoder.of(vocab_size=11, max_length=8, width=4, depth=0, num_heads=1, dtype=dtype)
        sgd = optax.sgd(1.0)
        state = jax.eval_shape(lambda: draw_state(model, sgd, 0))
        step = jax.make_jaxpr(make_train_step(model, sgd, 0))(state, random_batch(0))
        return {v.aval.dtype.name for e in equations(step, "dot_general") for v in e.invars}

    def equations(program, name):
        for equation in operations_of(program).eqns:
            if equation.primitive.name == name:
                yield equation
            for inner in subprograms(equation):
                yield from equations(inner, name)

    assert dots(jnp.bfloat16) == {"bfloat16"}
    assert dots(jnp.float32) == {"float32"}


class Largest(CrossEntropy):
    """An objective of the user's that looks at a whole text."""

    def sums(self, hidden, project, targets, weights, key):
        logits = project(hidden)
        sums = sums_of(cross_entropy, logits, targets, weights)
        return sums._replace(loss=cross_entropy(logits, targets).max(-1))


def test_an_objective_of_whole_texts_takes_the_plain_path(plain):
    model, optimizer, state, step = plain
    own = make_train_step(model, optimizer, 0, objective=Largest())
    (_, record), (_, other) = (each(state, random_batch(0)) for each in (step, jax.jit(own)))
    assert 8 * other.loss > record.loss  # each is divided by the number of targets
    options = {"objective__name": f"{Largest.__module__}:Largest"}
    prepare(tiny_config(**options))
    with pytest.raises(InvalidInput, match=r"loss_chunk=8: objective.name=.* cannot be computed"):
        prepare(tiny_config(**options, training__loss_chunk=8))


class Centred:
    """An objective of the user's whose losses depend on each other."""

    def losses(self, logits, targets):
        losses = cross_entropy(logits, targets)
        return losses - losses.mean()


class OneNumber:
    def losses(self, logits, targets):
        return cross_entropy(logits, targets).mean()


@pytest.mark.parametrize("objective", [Centred, OneNumber])
def test_losses_that_are_not_of_one_row_each_are_refused(objective):
    name = f"{objective.__module__}:{objective.__name__}"
    with pytest.raises(InvalidInput, match="the loss of each target from its own row of logits"):
        prepare(tiny_config(objective__name=name))


def test_c60_dropout_differs_by_step_and_by_part(run_six):
    model, optimizer, state, run_steps = run_six
    batch = jax.tree.map(lambda leaf: np.stack(6 * [leaf]), random_batch(0))
    _, records = run_steps(state, batch, 1)
    _, again = run_steps(state, batch, 1)
    _, later = run_steps(state._replace(step=state.step + 1), batch, 1)
    assert records.loss[0] == again.loss[0] != later.loss[0]
    # Two equal halves: with one mask for both parts, the sum would be that of one part, twice.
    halves = jax.tree.map(lambda leaf: np.concatenate([leaf[:4], leaf[:4]]), random_batch(0))
    parts = jax.jit(make_train_step(model, optimizer, 0, accumulation=2))
    key = jax.random.fold_in(jax.random.split(jax.random.key(0))[1], state.step)
    keys = {"dropout": jax.random.split(key, 2)[0]}
    tokens = halves["inputs"]["tokens"][:4]
    apply = jax.jit(functools.partial(model.apply, train=True))
    one_mask = apply({"params": state.params}, tokens, rngs=keys)
    doubled = total(sums_of(cross_entropy, one_mask, halves["targets"][:4], halves["weights"][:4]))
    _, record = parts(state, halves)
    assert abs(float(record.loss - doubled.loss / doubled.weight)) > 1e-6


@pytest.mark.parametrize("where", ["weights", "params"])
def test_c45_a_step_that_is_not_finite_touches_nothing(run_six, where):
    _, _, state, run_steps = run_six
    batches, good = random_batch(0, 6), 3 if where == "weights" else 0
    if where == "weights":
        batches["weights"][good, 2, 2] = np.inf
        expected, _ = run_steps(state, batches, good)
    else:
        broken = state.params["final_norm"]["scale"].at[0].set(jnp.nan)
        state = state._replace(params=state.params | {"final_norm": {"scale": broken}})
        expected = state
    after, records = run_steps(state, batches, 6)
    assert after.step == good
    assert records.applied.tolist() == [True] * good + [False] * (6 - good)
    leaves_equal(after, expected)


def test_c47_the_step_counts_beyond_2_to_the_24(plain):
    _, _, state, step = plain
    after, _ = step(state._replace(step=jnp.int32(2**24 + 1)), random_batch(0))
    assert after.step == 2**24 + 2


def test_vmapped_training_of_seeds_is_near_single_runs(plain):
    model, optimizer, _, step = plain
    seeds = [draw_state(model, optimizer, seed) for seed in (0, 1)]
    many = jax.tree.map(lambda *leaves: jnp.stack(leaves), *seeds)
    batch = random_batch(0)
    together, _ = jax.jit(jax.vmap(make_train_step(model, optimizer, 0), (0, None)))(many, batch)
    for index, state in enumerate(seeds):
        of_one = jax.tree.map(lambda leaf, i=index: leaf[i], together.params)
        leaves_close(of_one, step(state, batch)[0].params, atol=1e-5)


MIXTURE = {"model__feed_forward": "mixture", "model__dropout_rate": 0.0}
BALANCE = "model__feed_forward_options__balance"


def one_step(**overrides):
    config, model, optimizer, state = setup(**overrides)
    parts = config.training.accumulation
    step = jax.jit(make_train_step(model, optimizer, config.seed, parts))
    return step(state, random_batch(0))


@pytest.mark.thorough
def test_the_balance_of_experts_moves_the_weights_and_not_the_loss_that_is_shown():
    state, record = one_step(**MIXTURE, **{BALANCE: 0.0})
    balanced, same = one_step(**MIXTURE, **{BALANCE: 10.0})
    assert float(record.loss) == pytest.approx(float(same.loss))
    router = lambda state: np.asarray(state.params["block_0"]["feed_forward"]["router"]["kernel"])
    assert not np.allclose(router(state), router(balanced))
    assert float(same.gradient_norm) > float(record.gradient_norm)


def test_parts_of_a_batch_are_balanced_as_the_whole():
    whole, _ = one_step(**MIXTURE, **{BALANCE: 10.0})
    parts, _ = one_step(**MIXTURE, **{BALANCE: 10.0}, training__accumulation=4)
    leaves_close(whole.params, parts.params, atol=2e-5)


@pytest.mark.parametrize("name", a_few_of(("schedule_free", "muon"), ("muon",)))
def test_optimizers_that_ask_for_more_take_the_trainers_steps(name):
    constant = {"schedule__name": "constant", "optimizer__learning_rate": 0.01}
    _, model, optimizer, state = setup(optimizer__name=name, model__dropout_rate=0.1, **constant)
    step = jax.jit(make_train_step(model, optimizer, 0))
    batch, losses = random_batch(0), []
    for _ in range(20):
        state, record = step(state, batch)
        losses.append(float(record.loss))
    assert losses[-1] < losses[0] - 0.1
    means = evaluated_params(state.opt_state, state.params)
    logits = jax.jit(model.apply)({"params": means}, **batch["inputs"])
    assert jnp.isfinite(logits).all()
    assert (means is state.params) == (name != "schedule_free")


def test_a_prefix_is_read_and_not_predicted():
    """Targets that a prefix of three shows have no weight, so a leak is no success."""
    prefix = {"model__mask": "prefix", "model__mask_options__length": 3}
    task = make_task(tiny_config(**prefix, data__unscored=2, data__length=8))
    weights = task.batch(0, 0)["weights"]
    assert (weights == np.array([0, 0, 1, 1, 1, 1, 1, 1])).all()
    assert task.protocol["unscored"] == 2


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("training.frozen", "token_embeding"),
        ("optimizer.learning_rate_multipliers", "block_9=0.1"),
        ("optimizer.decay_multipliers", "block_0/atention=2"),
    ],
)
def test_an_option_by_path_that_names_no_parameter_is_refused(plain, key, text):
    config = tiny_config(**{key.replace(".", "__"): text})
    with pytest.raises(InvalidInput, match=f"{key}: no parameter's path"):
        refuse_unknown_prefixes(plain[2].params, config)

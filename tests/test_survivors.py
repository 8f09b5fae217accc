"""Small tests of what no other test saw go wrong in seconds, each for a mutant of mutants.py."""

import json
import os
import signal
import types
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

from tests.conftest import tiny_config
from transformer_jax.data.tokenizers import CharTokenizer
from transformer_jax.generation import generate, windowed_next_logits
from transformer_jax.laws import small_decoder
from transformer_jax.layers.attention import MultiHeadAttention
from transformer_jax.layers.blocks import Block
from transformer_jax.layers.cache import advance_cache, append_to_cache, nan_on_overflow
from transformer_jax.layers.norms import RMSNorm
from transformer_jax.layers.pooling import ClassToken
from transformer_jax.layers.position_terms import PositionTerms, Rotation
from transformer_jax.layers.positions import LearnedPositions
from transformer_jax.models import EncoderDecoder, parts
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.interruption import Interrupted
from transformer_jax.runs.progress import Silent
from transformer_jax.studies.asking.cells import Cell
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.inference import statistics
from transformer_jax.studies.inference.new_text import beyond_this_text
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.training import loop
from transformer_jax.training.losses import cross_entropy
from transformer_jax.training.objectives import CrossEntropy
from transformer_jax.training.optimizers import make_optimizer
from transformer_jax.training.showcases import streams_of
from transformer_jax.training.step import TrainState, make_train_step
from transformer_jax.training.sums import sums_of

# ---------------------------------------------------------------- layers


def test_turning_queries_and_keys_alike_changes_no_weight(rng):
    inputs = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    module = MultiHeadAttention(num_heads=1, kernel_init=jax.nn.initializers.normal(1.0))
    variables = {"params": module.init(jax.random.key(0), inputs)["params"]}

    def attend(angle):
        angles = jnp.full((3, 2), angle)
        terms = PositionTerms(rotation=Rotation(jnp.cos(angles), jnp.sin(angles)))
        return module.apply(variables, inputs, terms=terms)

    np.testing.assert_allclose(attend(1.0), attend(0.0), atol=1e-5)


def test_the_size_of_a_normed_key_does_not_matter(rng):
    inputs = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    module = MultiHeadAttention(num_heads=1, use_bias=False, query_key_norm=RMSNorm)
    params = module.init(jax.random.key(0), inputs)["params"]
    for name in ("query", "key"):
        louder = params | {name: {"kernel": 1e3 * params[name]["kernel"]}}
        loudest = params | {name: {"kernel": 1e6 * params[name]["kernel"]}}
        ours, theirs = (module.apply({"params": tree}, inputs) for tree in (louder, loudest))
        np.testing.assert_allclose(ours, theirs, rtol=1e-3)


def test_a_learned_position_is_the_row_of_its_number():
    table = jnp.arange(8.0).reshape(4, 2)
    encoding = LearnedPositions(max_length=4, width=2)
    terms = encoding.apply({"params": {"embedding": table}}, jnp.array([0, 1, 3]))
    np.testing.assert_array_equal(terms.embedding, table[jnp.array([0, 1, 3])])


def test_later_blocks_are_left_out_more_often(monkeypatch):
    shares = []

    def block(*fields, **named):
        shares.append(named["branch_dropout_rate"])
        return Block(*fields, **named)

    monkeypatch.setattr(parts, "Block", block)
    model = small_decoder(depth=4, stochastic_depth=0.4)
    jax.eval_shape(model.init, jax.random.key(0), **model.example_inputs())
    assert shares == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_embeddings_of_a_pair_are_multiplied_by_the_root_of_the_width():
    model = EncoderDecoder(vocab_size=5, max_length=3, width=16, depth=0, position="none")
    source = jnp.array([[4, 0, 2]])
    params = model.init(jax.random.key(0), **model.example_inputs())["params"]
    hidden, _ = model.apply({"params": params}, source, method="encode")
    table = params["token_embedding"]["embedding"]
    np.testing.assert_allclose(hidden, 4 * table[source], rtol=1e-6)


def test_a_stack_ends_with_a_norm_where_its_last_sum_has_none():
    for wiring, ends in (("pre", True), ("post", False)):
        model = small_decoder(wiring=wiring)
        shapes = jax.eval_shape(model.init, jax.random.key(0), **model.example_inputs())
        assert ("final_norm" in shapes["params"]) == ends


def test_the_class_token_stands_first():
    inputs = jnp.ones((2, 3, 4))
    outputs = ClassToken(jax.nn.initializers.zeros).init_with_output(jax.random.key(0), inputs)[0]
    assert (outputs[:, 0] == 0).all()
    assert (outputs[:, 1:] == 1).all()


class Reader(nn.Module):
    """Keeps what it reads, at most four rows, and says what stands at the new places."""

    @nn.compact
    def __call__(self, rows):
        place = advance_cache(self, len(rows), 4)
        held = append_to_cache(self, "rows", rows, place)
        return nan_on_overflow(held, place), place.rows(jnp.arange(4)[:, None])


def test_a_cache_holds_what_was_read_in_its_places_and_no_more():
    text, cache, place = jnp.arange(1.0, 6.0)[:, None], {}, 0
    for count in (2, 1, 1):
        new = text[place : place + count]
        (held, places), kept = Reader().apply({"cache": cache}, new, mutable=["cache"])
        assert places.ravel().tolist() == list(range(place, place + count))
        cache, place = kept["cache"], place + count
        assert held.ravel().tolist() == [*range(1, place + 1), *[0] * (4 - place)]
    (beyond, _), _ = Reader().apply({"cache": cache}, text[4:], mutable=["cache"])
    assert jnp.isnan(beyond).all()


# ---------------------------------------------------------------- generation, text


def sum_of_the_last_two(tokens):
    before = jnp.pad(tokens, (1, 0))[:-1]
    return jax.nn.one_hot((before + tokens) % 11, 11)


@pytest.mark.usefixtures("no_key_twice")
def test_what_is_drawn_follows_the_last_tokens_of_the_text_also_when_it_slides():
    next_logits = windowed_next_logits(sum_of_the_last_two)
    drawn = generate(next_logits, jnp.array([1, 2]), 9, jax.random.key(0), 6, temperature=0)
    assert drawn.tolist() == [3, 5, 8, 2, 10, 1, 0, 1, 1]


def test_characters_keep_the_numbers_of_a_stored_vocabulary():
    tokenizer = CharTokenizer("cab")
    assert tokenizer.encode("abc").tolist() == [1, 2, 0]
    assert tokenizer.decode([1, 2, 0]) == "abc"


def test_a_source_with_fewer_references_has_none_and_no_empty_one():
    assert streams_of([["a", "b"], ["c"]]) == [["a", "c"], ["b", None]]


# ---------------------------------------------------------------- losses, updates


def test_smoothing_is_a_mean_of_the_target_and_of_all_classes():
    logits = jnp.log(jnp.array([[0.5, 0.25, 0.25]]))
    loss = cross_entropy(logits, jnp.array([0]), jnp.ones(1), smoothing=0.3)
    nats = -np.log([0.5, 0.25, 0.25])
    np.testing.assert_allclose(loss, [0.7 * nats[0] + 0.3 * nats.mean()], rtol=1e-6)


def test_the_objective_smooths_what_training_sees():
    logits, targets, weights = jnp.array([[[2.0, 0.0, 1.0]]]), jnp.array([[0]]), jnp.ones((1, 1))
    sums = CrossEntropy(0.3).sums(logits, lambda hidden: hidden, targets, weights, None)
    np.testing.assert_allclose(sums.loss, cross_entropy(logits, targets, weights, 0.3)[0])
    assert sums.loss > sums_of(logits, targets, weights).loss


def test_a_target_of_weight_two_counts_twice_and_one_of_weight_0_never():
    logits, weights = jnp.zeros((1, 3, 4)), jnp.array([[2.0, 0.5, 0.0]])
    sums = sums_of(logits, jnp.zeros((1, 3), int), weights)
    np.testing.assert_allclose(sums.loss, [2.5 * np.log(4)], rtol=1e-6)
    np.testing.assert_allclose((sums.correct, sums.weight), [[2.5], [2.5]])


class OneNumber(nn.Module):
    """Gives logits and an addition to the loss that depend on one number."""

    logits_of: Callable
    added_of: Callable

    @nn.compact
    def __call__(self, tokens, train=False):
        number = self.param("number", nn.initializers.zeros, ())
        self.sow("losses", "added", jnp.full(len(tokens), self.added_of(number)))
        return jnp.broadcast_to(self.logits_of(number) * jnp.arange(5.0), (*tokens.shape, 5))


def one_update(logits_of, added_of):
    optimizer, params = optax.with_extra_args_support(optax.sgd(1.0)), {"number": jnp.zeros(())}
    state = TrainState(jnp.int32(0), params, optimizer.init(params))
    tokens = jnp.zeros((2, 3), jnp.int32)
    weights = jnp.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])
    batch = {"inputs": {"tokens": tokens}, "targets": tokens, "weights": weights}
    return make_train_step(OneNumber(logits_of, added_of), optimizer, 0)(state, batch)


def test_what_layers_add_to_the_loss_is_not_divided_by_the_targets():
    state, record = one_update(lambda number: 0 * number, lambda number: 3 * number)
    assert float(record.gradient_norm) == pytest.approx(3)
    assert float(state.params["number"]) == pytest.approx(-3)


def test_a_gradient_that_is_infinite_touches_nothing_though_the_loss_is_finite():
    state, record = one_update(jnp.sqrt, lambda number: 0 * number)
    assert jnp.isfinite(record.loss)
    assert not record.applied
    assert (int(state.step), float(state.params["number"])) == (0, 0.0)


def test_clipping_keeps_the_direction_of_the_gradient():
    plain = {"optimizer__name": "sgd", "schedule__name": "constant"}
    plain |= {"optimizer__learning_rate": 1.0, "optimizer__weight_decay": 0.0}
    params = {"kernel": jnp.zeros(2)}
    for gradient, expected in (([3.0, 4.0], [-0.6, -0.8]), ([0.3, 0.4], [-0.3, -0.4])):
        optimizer = make_optimizer(tiny_config(**plain, training__clip_norm=1.0))
        gradients = {"kernel": jnp.array(gradient)}
        updates, _ = optimizer.update(gradients, optimizer.init(params), params)
        np.testing.assert_allclose(updates["kernel"], expected, rtol=1e-5)


# ---------------------------------------------------------------- runs, studies


def test_rows_up_to_the_restored_step_stay_and_no_others(tmp_path):
    directory = RunDirectory(tmp_path)
    directory.append_metrics([{"step": step} for step in (5, 10, 11)])
    directory.cut_metrics(10)
    assert directory.metrics() == [{"step": 5}, {"step": 10}]


class EndAt(Silent):
    def __init__(self, step):
        super().__init__()
        self._step = step

    def step(self, step, *_):
        if step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


def test_rows_of_a_resumed_run_are_those_of_a_whole_one(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "_SECONDS_PER_CALL", 0.0)
    config = tiny_config(model__width=8, model__depth=1, model__num_heads=1)
    rows = []
    for folder, ends in (("whole", (5,)), ("cut", (3, 5))):
        for end in ends:
            with pytest.raises(Interrupted):
                loop.train(config, tmp_path / folder, EndAt(end))
        (row,) = RunDirectory(tmp_path / folder).metrics()
        rows.append({key: row[key] for key in row if not key.startswith("time/")})
    assert rows[0] == rows[1]


def test_a_run_no_better_than_a_guess_diverged_unless_it_learned_in_training(tmp_path):
    def state(loss, *trained):
        rows = "".join(json.dumps({"step": 1, "train/loss": each}) + "\n" for each in trained)
        (tmp_path / "STATUS").write_text("done")
        (tmp_path / "evaluation.json").write_text(json.dumps({"test": {"loss": loss}}))
        (tmp_path / "manifest.json").write_text('{"data": {}, "sizes": {"vocab_size": 11}}')
        (tmp_path / "metrics.jsonl").write_text(rows)
        return Cell("arm", 0, tmp_path).state()

    assert state(1.0, 9.0) == "done"
    assert state(9.0, 9.0, 1.0) == "done"
    assert state(9.5, 1.0, 9.0) == "diverged"
    assert state(9.9) == "diverged"


def test_new_text_by_hand():
    # Mean squares of seeds 9, of sequences 4, of what is left 1, so that V = (9 + 4 - 1) / 4.
    low, high = beyond_this_text(np.array([[1.0, 2.0], [3.0, 6.0]]))
    half = stats.t.ppf(0.975, 12**2 / (9**2 + 4**2 + 1**2)) * 3**0.5
    assert (low, high) == pytest.approx((3 - half, 3 + half))


def contrasts(values, arms, count):
    base = {seed: Outcome(0.0) for seed in range(count)}
    others = {f"arm{n}": {s: Outcome(values[s]) for s in range(count)} for n in range(arms)}
    return statistics.compare(base, others, 0.01, True)


def test_fewer_than_five_seeds_are_noted():
    values = [1e-5, -1e-5, 1e-5, -1e-5, 1e-5]
    assert contrasts(values, 1, 5)[0].words == "no different within 0.01"
    assert contrasts(values, 1, 4)[0].words == "no different within 0.01 (few seeds)"


def test_intervals_are_wider_the_more_arms_there_are():
    values = [0.1, 0.2, 0.3, 0.25, 0.15]
    (alone,), (first, *_) = contrasts(values, 1, 5), contrasts(values, 4, 5)
    for found, arms in ((alone, 1), (first, 4)):
        bound = stats.t.ppf(1 - 0.4 * 0.05 / arms, 4) * found.standard_error
        assert found.interval == pytest.approx((found.mean - bound, found.mean + bound))


def test_an_interval_says_each_word_up_to_its_bounds():
    words = {
        (0.5, 2.0): "better", (1.1, 2.0): "better by more than 1", (0.1, 0.9): "better, negligible",
        (-2.0, -0.5): "worse", (-2.0, -1.1): "worse by more than 1", (-0.9, -0.1): "worse, negligible",
        (-0.9, 0.9): "no different within 1", (-1.1, 0.9): "unresolved", (-0.9, 1.1): "unresolved",
        (0.0, 2.0): "unresolved", (-2.0, 0.0): "unresolved",
    }  # fmt: skip
    assert {bounds: statistics.read_off(*bounds, 1.0)[1] for bounds in words} == words


def test_a_margin_that_changed_after_the_first_cell_refuses_and_a_question_does_not(tmp_path):
    first = {
        "question": "why?",
        "margin": 0.1,
        "metric": "test/loss",
        "base": "a",
        "base_config": {},
        "arms": {"a": {}},
    }
    sealed_as = lambda **changes: types.SimpleNamespace(
        sealed=lambda: first | changes, exploratory=False, supersedes=""
    )
    study = Study(tmp_path)
    assert study.seal(sealed_as(), {}, [0]) == []
    assert study.seal(sealed_as(question="how?"), {}, [0]) == [
        "question changed after the first cell"
    ]
    assert study.record["refused"] == []
    assert study.seal(sealed_as(margin=0.2), {}, [0]) == ["margin changed after the first cell"]
    assert study.record["refused"] == ["margin"]
    assert study.sealed["margin"] == 0.1
    assert study.seal(sealed_as(), {}, [0]) == []  # taken back
    assert (study.record["refused"], study.record["exploratory"]) == ([], [])

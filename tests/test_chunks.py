"""Attention for some queries at a time: the same numbers as for all, and less memory."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import random_params, tiny_config
from transformer_jax.errors import InvalidInput
from transformer_jax.inspection import attention_maps
from transformer_jax.layers.attention import MultiHeadAttention
from transformer_jax.layers.weights import SoftmaxAttention
from transformer_jax.models import Decoder, EncoderDecoder
from transformer_jax.training.leaks import refuse_what_leaks
from transformer_jax.training.prepared import prepare

SMALL = {"vocab_size": 11, "max_length": 11, "width": 8, "depth": 1, "num_heads": 2}
rng = np.random.default_rng(0)
TOKENS = rng.integers(0, 11, (2, 11), dtype=np.int32)
SEGMENTS = np.array([[1] * 11, [1] * 5 + [2] * 4 + [0] * 2], np.int32)
PACKED = {"tokens": TOKENS, "segments": SEGMENTS}
MEMORY = {"source": TOKENS, "source_segments": np.minimum(SEGMENTS, 1), "tokens": TOKENS[:, :7]}
CASES = {
    "softmax": (Decoder(**SMALL), PACKED),
    "biases": (Decoder(**SMALL, position="t5"), PACKED),
    "values of distances": (
        Decoder(**SMALL, position="shaw", position_options={"values": True}),
        PACKED,
    ),
    "windows, one key head, sinks, a soft cap": (
        Decoder(
            **SMALL,
            num_kv_heads=1,
            mask="window",
            mask_options={"size": 3, "sinks": 1},
            position="rotary",
            attention_options={"soft_cap": 2.0},
        ),
        PACKED,
    ),
    "a prefix, scores of all heads": (
        Decoder(**SMALL, mask="prefix", mask_options={"length": 3}, attention="talking_heads"),
        PACKED,
    ),
    "a memory, parameters in the core": (EncoderDecoder(**SMALL, attention="sink"), MEMORY),
}


@pytest.mark.parametrize("name", CASES)
def test_chunks_give_the_numbers_of_the_whole(name):
    """Two queries a chunk: five loops' worth and one left over, gradients included."""
    model, inputs = CASES[name]
    params = random_params(model)

    def value(model):
        square = lambda params: (model.apply({"params": params}, **inputs) ** 2).sum()
        return jax.jit(jax.value_and_grad(square))(params)

    (whole, gradients), (parted, others) = value(model), value(model.clone(attention_chunk=2))
    assert float(parted) == pytest.approx(float(whole), rel=1e-6)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients))
    for ours, expected in zip(jax.tree.leaves(others), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6 * largest)


def test_memory_grows_with_the_length_and_not_with_its_square():
    def temporaries(length, chunk):
        attention = MultiHeadAttention(num_heads=2, chunk=chunk)
        inputs = jnp.ones((length, 8))
        params = attention.init(jax.random.key(0), inputs[:1])
        square = lambda params: (attention.apply(params, inputs) ** 2).sum()
        compiled = jax.jit(jax.grad(square)).lower(params).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(512, None) > 2 * 4 * 512 * 512
    assert temporaries(512, 32) < 0.25 * temporaries(512, None)
    assert temporaries(1024, 32) < 2.5 * temporaries(512, 32)


def test_each_chunk_draws_its_own_dropout():
    attention = MultiHeadAttention(num_heads=1, dropout_rate=0.5, chunk=2)
    inputs = jnp.broadcast_to(jax.random.normal(jax.random.key(0), (1, 8)), (12, 8))
    inputs = inputs + 0.1 * jax.random.normal(jax.random.key(1), (12, 1))
    params = attention.init(jax.random.key(2), inputs)
    key = {"dropout": jax.random.key(3)}
    rows = np.asarray(attention.apply(params, inputs, train=True, rngs=key))
    plain = np.asarray(attention.apply(params, inputs))
    assert len(np.unique(rows.round(6), axis=0)) == 12
    again = np.asarray(attention.apply(params, inputs, train=True, rngs=key))
    np.testing.assert_array_equal(rows, again)
    draw = lambda key: attention.apply(params, inputs, train=True, rngs={"dropout": key})
    many = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(4), 400))
    spread = np.std(many, axis=0) / 20
    assert (np.abs(np.mean(many, axis=0) - plain) < 5 * spread + 1e-6).all()


def test_weights_are_there_for_who_asks():
    model = Decoder(**SMALL, attention_chunk=2)
    params = random_params(model)
    ours = attention_maps(model, params, {"tokens": TOKENS})
    expected = attention_maps(model.clone(attention_chunk=None), params, {"tokens": TOKENS})
    jax.tree.map(np.testing.assert_array_equal, ours, expected)


class OverQueries(nn.Module):
    """A row of the user's whose weights of a query hang on the other queries."""

    @nn.compact
    def __call__(self, query, key, *, mask, bias):
        weights = SoftmaxAttention()(query, key, mask=mask, bias=bias)
        return weights / (1 + query.std(-2, keepdims=True).mean(-1, keepdims=True))


class Adding(nn.Module):
    """A row of the user's that adds to the loss."""

    @nn.compact
    def __call__(self, query, key, *, mask, bias):
        weights = SoftmaxAttention()(query, key, mask=mask, bias=bias)
        self.sow("losses", "size", (weights**2).sum())
        return weights


class Drawing(nn.Module):
    """A row of the user's that draws in training."""

    @nn.compact
    def __call__(self, query, key, *, mask, bias):
        if self.has_rng("dropout"):
            query = query + jax.random.normal(self.make_rng("dropout"), query.shape)
        return SoftmaxAttention()(query, key, mask=mask, bias=bias)


def test_a_row_that_draws_does_so_in_each_chunk():
    attention = MultiHeadAttention(num_heads=1, core=Drawing, chunk=2)
    inputs = jnp.broadcast_to(jax.random.normal(jax.random.key(0), (1, 8)), (12, 8))
    inputs = inputs + 0.1 * jax.random.normal(jax.random.key(1), (12, 1))
    params = attention.init(jax.random.key(2), inputs)
    params = jax.tree.map(lambda leaf: leaf * 20, params)
    train = attention.apply(params, inputs, train=True, rngs={"dropout": jax.random.key(3)})
    drawn = np.abs(train - attention.apply(params, inputs)).max(-1)
    assert (drawn > 1e-6).all()


def test_what_chunks_cannot_do_is_refused():
    model = Decoder(**SMALL, attention=Adding, attention_chunk=2)
    params = random_params(model)
    with pytest.raises(ValueError, match="Adding adds to the loss; expected None"):
        jax.eval_shape(lambda: model.apply({"params": params}, TOKENS))
    model = Decoder(**SMALL, attention="linear", attention_chunk=2)
    with pytest.raises(ValueError, match="LinearAttention mixes values itself; expected None"):
        model.init(jax.random.key(0), TOKENS)
    own = f"{OverQueries.__module__}:OverQueries"
    fields = {"model__attention": own, "model__depth": 1, "model__mask": "unmasked"}
    of_type = {"model__layers": "L", "model__layer_types__L__attention_chunk": 4}
    for chunks in ({"model__attention_chunk": 4}, of_type):
        prepared = prepare(tiny_config(**fields, **chunks))
        with pytest.raises(InvalidInput, match=r"a query's weights change with other queries"):
            refuse_what_leaks(prepared)

"""Attention for some queries at a time: the same numbers as for all, and less memory."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import a_few_of, random_params
from transformer_jax.attention import MultiHeadAttention
from transformer_jax.models import Decoder, EncoderDecoder
from transformer_jax.variants.chunked import ChunkedAttention

SMALL = {"vocab_size": 11, "max_length": 11, "width": 8, "depth": 1, "num_heads": 2}
rng = np.random.default_rng(0)
TOKENS = rng.integers(0, 11, (2, 11), dtype=np.int32)
SEGMENTS = np.array([[1] * 11, [1] * 5 + [2] * 4 + [0] * 2], np.int32)
PACKED = {"tokens": TOKENS, "segments": SEGMENTS}
MEMORY = {"source": TOKENS, "source_segments": np.minimum(SEGMENTS, 1), "tokens": TOKENS[:, :7]}
WINDOWS = {"mask": "window", "mask_options": {"size": 3, "sinks": 1}, "position": "rotary"}
WINDOWS |= {"num_kv_heads": 1, "attention_options": {"soft_cap": 2.0}}
CASES = {
    "softmax": (Decoder.of(**SMALL), PACKED),
    "biases": (Decoder.of(**SMALL, position="t5"), PACKED),
    "windows, one key head, a soft cap": (Decoder.of(**SMALL | WINDOWS), PACKED),
    "a bias of queries": (Decoder.of(**SMALL, position="shaw"), PACKED),
    "a prefix": (Decoder.of(**SMALL, mask="prefix", mask_options={"length": 3}), PACKED),
    "a memory": (EncoderDecoder.of(**SMALL), MEMORY),
}


@pytest.mark.parametrize("name", a_few_of(CASES, list(CASES)[2:]))
def test_chunks_give_the_numbers_of_the_whole(name):
    """Two queries a chunk: five loops' worth and one left over, gradients included."""
    model, inputs = CASES[name]
    params = random_params(model)

    def value(model):
        square = lambda params: (model.apply({"params": params}, **inputs) ** 2).sum()
        return jax.jit(jax.value_and_grad(square))(params)

    options = {**model.options.attention_options, "size": 2}
    chunked = model.with_options(attention="chunked", attention_options=options)
    (whole, gradients), (parted, others) = value(model), value(chunked)
    assert float(parted) == pytest.approx(float(whole), rel=1e-6)
    largest = max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradients))
    for ours, expected in zip(jax.tree.leaves(others), jax.tree.leaves(gradients), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6 * largest)


def chunks_of(size):
    return functools.partial(ChunkedAttention, size=size)


def test_memory_grows_with_the_length_and_not_with_its_square():
    def temporaries(length, chunk):
        attention = MultiHeadAttention(num_heads=2, variant=chunk and chunks_of(chunk))
        inputs = jnp.ones((length, 8))
        params = attention.init(jax.random.key(0), inputs[:1])
        square = lambda params: (attention.apply(params, inputs) ** 2).sum()
        compiled = jax.jit(jax.grad(square)).lower(params).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(512, None) > 2 * 4 * 512 * 512
    assert temporaries(512, 32) < 0.25 * temporaries(512, None)
    assert temporaries(1024, 32) < 2.5 * temporaries(512, 32)


def test_each_chunk_draws_its_own_dropout():
    attention = MultiHeadAttention(num_heads=1, dropout_rate=0.5, variant=chunks_of(2))
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

"""Sampling: what may be drawn, and that a sliding window forgets nothing that it should keep."""

import functools
import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict

from tests.conftest import random_params
from transformer_jax import Decoder
from transformer_jax.cache import with_capacity
from transformer_jax.errors import InvalidInput
from transformer_jax.feedforward import FeedForward
from transformer_jax.generation import (
    draw_token,
    generate,
    generate_from,
    generate_with_cache,
    restrict_logits,
    windowed_next_logits,
)
from transformer_jax.laws import small_decoder
from transformer_jax.models.recurrent import RecurrentDecoder
from transformer_jax.training.streaming import stream_from

pytestmark = pytest.mark.usefixtures("no_key_twice")
LOGITS = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 1, 1, 1]),
        ({"top_k": 2}, [1, 1, 0, 0]),
        ({"top_k": 99}, [1, 1, 1, 1]),
        ({"top_p": 0.7}, [1, 1, 0, 0]),
        ({"top_p": 0.81}, [1, 1, 1, 0]),
        ({"top_p": 0.0}, [1, 0, 0, 0]),
        ({"top_p": 1.0}, [1, 1, 1, 1]),
        ({"top_k": 3, "top_p": 0.5}, [1, 0, 0, 0]),
    ],
    ids=str,
)
def test_what_top_k_and_top_p_keep(options, expected):
    assert np.isfinite(restrict_logits(LOGITS, **options)).astype(int).tolist() == expected


def test_c48_edges_of_drawing():
    draw = lambda logits, **options: draw_token(jax.random.key(0), logits, **options)
    assert draw(LOGITS, temperature=0) == 0
    assert draw(jnp.zeros(4), temperature=0) == 0
    for temperature in (1e-29, 1e-37, 1e-39, 1e-50):
        assert draw(-LOGITS, temperature=temperature) == (-LOGITS).argmax()
    assert draw(LOGITS, top_p=0.0) == 0
    assert draw(LOGITS.at[1].set(jnp.nan)) == -1
    assert draw(jnp.full(4, -jnp.inf)) == -1
    for wrong in ({"top_k": -1}, {"top_k": 0}, {"top_p": np.nan}, {"temperature": -1.0}):
        with pytest.raises(InvalidInput, match=f"{next(iter(wrong))}: expected"):
            draw(LOGITS, **wrong)
    for name, value in (("temperature", 0.5), ("top_p", 0.4), ("top_k", 2)):
        for given in (jnp.asarray(value), np.asarray(value), np.asarray(value)[()]):
            drawn = jax.jit(functools.partial(draw, **{name: given}))(LOGITS)
            assert drawn == draw(LOGITS, **{name: value})


def test_draws_follow_the_probabilities():
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = jax.vmap(lambda key: draw_token(key, LOGITS, temperature=2.0))(keys)
    expected = jax.nn.softmax(LOGITS / 2)
    shares = np.bincount(drawn, minlength=4) / len(keys)
    np.testing.assert_allclose(shares, expected, atol=4 * np.sqrt(0.25 / len(keys)))


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_draws_what_float32_draws(dtype, rng):
    logits = jnp.asarray(rng.normal(size=2000), dtype)
    draw = jax.vmap(lambda key, logits: draw_token(key, logits, 0.7, top_p=0.99), (0, None))
    wide = logits.astype(jnp.float32)
    one, other = (draw(jax.random.split(jax.random.key(0), 50), each) for each in (logits, wide))
    np.testing.assert_array_equal(one, other)
    kept, expected = (restrict_logits(array, top_p=0.99) > -jnp.inf for array in (logits, wide))
    np.testing.assert_array_equal(kept, expected)


@pytest.fixture(scope="module")
def model():
    module = Decoder.of(vocab_size=11, max_length=6, width=16, depth=2, num_heads=2)
    params = random_params(module)
    return functools.partial(_apply, module, params)


def by_hand(model, prompt, num_tokens):
    """Greedy, by calling the model on the bare text each time."""
    text = list(prompt)
    for _ in range(num_tokens):
        text.append(int(model(jnp.array(text[-6:]))[-1].argmax()))
    return text[len(prompt) :]


@pytest.mark.parametrize("prompt", [[3], [1, 2, 3], [1, 2, 3, 4, 5, 6], [9, 8, 7, 6, 5, 4, 3, 2]])
def test_greedy_equals_calling_the_model_on_the_bare_text(model, prompt):
    drawn = generate(
        windowed_next_logits(model), jnp.array(prompt), 9, jax.random.key(0), 6, temperature=0
    )
    assert drawn.tolist() == by_hand(model, prompt, 9)


def test_agrees_under_jit_and_vmap_and_over_a_batch(model):
    prompts = jnp.array([[1, 2, 3], [4, 5, 6]])
    next_logits = windowed_next_logits(model)

    def one(prompt, seed):
        return generate(next_logits, prompt, 5, jax.random.key(seed), 6, 0.7, 5, 0.9)

    singles = jnp.stack([one(prompt, seed) for seed, prompt in enumerate(prompts)])
    np.testing.assert_array_equal(jax.jit(jax.vmap(one))(prompts, jnp.arange(2)), singles)
    greedy = lambda p: generate(next_logits, p, 5, jax.random.key(0), 6, temperature=0)
    np.testing.assert_array_equal(greedy(prompts), jnp.stack([greedy(p) for p in prompts]))


def test_broken_logits_show_as_minus_one():
    broken = lambda context, length, cache: (jnp.full(11, jnp.nan), cache)
    drawn = generate(broken, jnp.array([1]), 3, jax.random.key(0), 6)
    assert drawn.tolist() == [-1, -1, -1]


def test_a_cache_is_carried_from_token_to_token():
    def counting(context, length, calls):
        return jax.nn.one_hot(calls % 11, 11), calls + 1

    drawn = generate(
        counting, jnp.array([5]), 4, jax.random.key(0), 6, temperature=0, cache=jnp.int32(7)
    )
    assert drawn.tolist() == [7, 8, 9, 10]


def test_all_wrong_options_in_one_report(model):
    wrong = (-1, None, 6, float("nan"), 0, 1.5)
    with pytest.raises(InvalidInput) as error:
        generate(windowed_next_logits(model), jnp.zeros(0, int), *wrong)
    for word in ("prompt", "num_tokens", "temperature", "top_k", "top_p"):
        assert word in str(error.value)
    with pytest.raises(InvalidInput, match="num_tokens: expected an integer >= 0, below"):
        generate(windowed_next_logits(model), jnp.zeros(2, int), 3_000_000_000, None, 6)


@pytest.mark.parametrize("prompt", [jnp.array([1.9, 2.9]), jnp.array([True]), np.int32(3), [0.5]])
def test_prompts_that_are_no_integers_are_refused_with_and_without_a_cache(prompt):
    for mask in ("full", "prefix"):
        model = small_decoder(mask=mask)
        with pytest.raises(InvalidInput, match="prompt: expected integers"):
            generate_from(model, {}, prompt, jax.random.key(0), num_tokens=2)


@pytest.mark.thorough
def test_a_prompt_that_is_shorter_than_the_prefix_sees_no_padding():
    """Under a prefix mask places look ahead, where nothing has been written yet."""
    model = small_decoder(mask="prefix", mask_options=FrozenDict({"length": 6}))
    params, text = random_params(model), jnp.array([3, 1])
    options = {"num_tokens": 4, "temperature": jnp.float32(0)}
    drawn = generate_from(model, params, text, jax.random.key(0), **options)
    for token in drawn:
        assert int(model.apply({"params": params}, text)[-1].argmax()) == int(token)
        text = jnp.append(text, token)


@pytest.fixture(scope="module")
def decoder():
    fields = {"position": "learned", "mask": "window", "mask_options": FrozenDict({"size": 3})}
    model = small_decoder(max_length=6, depth=2, num_kv_heads=1, **fields)
    return model, random_params(model)


TWO = jnp.array([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])


def read(decoder, cache, tokens, **options):
    model, params = decoder
    return _read(model, params, cache, tokens, **options)


_read = jax.jit(
    lambda model, params, cache, tokens, **options: model.apply(
        {"params": params, "cache": cache}, tokens, **options, mutable=["cache"]
    ),
    static_argnums=0,
)
_apply = jax.jit(lambda m, params, tokens: m.apply({"params": params}, tokens), static_argnums=0)


@pytest.mark.parametrize("sizes", [(1,) * 6, (2, 2, 2), (4, 2), (6,), (0, 6)])
def test_c54_reading_in_pieces_equals_reading_at_once(decoder, sizes):
    cache, logits, place = {}, [], 0
    for size in sizes:
        piece, kept = read(decoder, cache, TWO[:, place : place + size])
        cache, place = kept["cache"], place + size
        logits.append(piece)
    np.testing.assert_allclose(jnp.concatenate(logits, 1), _apply(*decoder, TWO), atol=3e-5)
    # Keys and values of the one head that all queries share, as many as the model can hold.
    assert cache["block_1"]["attention"]["keys"].shape == (2 * 1, 6, 8)


def test_c52_a_cache_holds_as_many_tokens_as_it_is_given_room_for(decoder):
    whole = _apply(*decoder, TWO)
    _, kept = read(decoder, {}, TWO[:, :2])
    cache = with_capacity(kept["cache"], 3)
    assert cache["block_0"]["attention"]["keys"].shape == (2, 3, 8)
    third, kept = read(decoder, cache, TWO[:, 2:3])
    np.testing.assert_allclose(third, whole[:, 2:3], atol=3e-5)
    fourth, beyond = read(decoder, kept["cache"], TWO[:, 3:4])
    fifth, _ = read(decoder, beyond["cache"], TWO[:, 4:5])
    assert jnp.isnan(jnp.stack([fourth, fifth])).all()
    rest, _ = read(decoder, with_capacity(kept["cache"], 6), TWO[:, 3:])
    np.testing.assert_allclose(rest, whole[:, 3:], atol=3e-5)


def test_a_token_copies_nothing_that_is_kept_and_reads_no_empty_places():
    """XLA on CPU copies all keys and values where they are read in another shape than kept in."""
    model, prompt = small_decoder(max_length=64, num_heads=2, depth=2), jnp.zeros((3, 4), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0), prompt)["params"]
    drawn = functools.partial(generate_from, model, num_tokens=20, temperature=0)
    program = jax.jit(drawn).lower(params, prompt, jax.random.key(0)).compile()
    rows = re.findall(r"f32\[(6,\d+,8)\]\S* dynamic-update-slice\(", program.as_text())
    # 3 texts of 2 heads; 4 + 20 tokens, of which the last is not read.
    assert set(rows) == {"6,23,8"}
    assert not re.findall(r"f32\[(?:6|3,2),23,8\]\S* copy\(", program.as_text())


@pytest.mark.parametrize("option", ["segments", "positions"])
def test_a_cache_holds_one_text(decoder, option):
    with pytest.raises(ValueError, match="cache: holds one text"):
        read(decoder, {}, jnp.arange(4), **{option: jnp.ones(4, int)})


@pytest.mark.parametrize("cell", ["lstm", "gru", "rnn"])
def test_a_recurrent_net_reads_on_from_its_states(cell):
    model = RecurrentDecoder(vocab_size=11, max_length=6, width=8, recurrent_depth=2, cell=cell)
    params = random_params(model)
    first, kept = read((model, params), {}, TWO[:, :4])
    second, _ = read((model, params), kept["cache"], TWO[:, 4:])
    whole = _apply(model, params, TWO)
    np.testing.assert_allclose(jnp.concatenate([first, second], 1), whole, atol=1e-6)
    options = {"num_tokens": 2, "temperature": 0}
    drawn = generate_from(model, params, TWO[:, :4], jax.random.key(0), **options)
    assert drawn[:, 0].tolist() == whole[:, 3].argmax(-1).tolist()
    with pytest.raises(ValueError, match="segments: expected none with a cache, which holds"):
        read((model, params), {}, TWO, segments=jnp.ones_like(TWO))


def test_each_token_is_read_once_until_the_context_slides(decoder):
    """The same text as from whole contexts: the prompt but its last token, then one by one."""
    calls = []

    def once(tokens, cache):
        calls.append(tokens.shape[-1])
        with jax.disable_jit(False):
            logits, kept = read(decoder, cache, tokens)
        return logits, kept["cache"]

    again = windowed_next_logits(functools.partial(_apply, *decoder))
    prompt, greedy = jnp.array([[3, 1, 2], [4, 1, 7]]), {"temperature": 0}
    whole = generate(again, prompt, 9, jax.random.key(0), 6, **greedy)
    with jax.disable_jit():  # loops are Python's, so that calls can be counted
        drawn = generate_with_cache(once, again, prompt, 5, jax.random.key(0), 6, **greedy)
    np.testing.assert_array_equal(drawn, whole[:, :5])
    assert calls == [2, 1, 1, 1, 1]  # the fifth token needs a context that slid
    drawn = generate_from(*decoder, prompt, jax.random.key(0), num_tokens=9, **greedy)
    np.testing.assert_array_equal(drawn, whole)


@pytest.mark.parametrize("size", [1, 4, 9])
def test_a_text_in_pieces_is_the_same_text(decoder, size):
    """Also where the context slides; and whoever stops early has the beginning of it."""
    options = {"temperature": 0.9, "top_k": 5, "top_p": 0.9}
    prompt, key = jnp.array([3, 1, 2, 4, 1, 7, 2, 2, 5])[:size], jax.random.key(1)
    stream = functools.partial(stream_from, *decoder, prompt, key)
    whole = generate_from(*decoder, prompt, key, num_tokens=9, **options)
    pieces = list(stream(9, size=4, **options))
    assert [len(piece) for piece in pieces] == [4, 4, 1]
    np.testing.assert_array_equal(jnp.concatenate(pieces), whole)
    np.testing.assert_array_equal(next(stream(9, size=4, **options)), whole[:4])
    assert not list(stream(0))
    with pytest.raises(InvalidInput, match="temperature: expected"):
        next(stream(9, temperature=-1.0))


class Backwards(FeedForward):
    """A feed-forward layer that also looks at the place before, which no cache keeps."""

    @nn.compact
    def __call__(self, inputs):
        before = jnp.pad(inputs, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        return super().__call__(inputs) + 3 * before


def test_with_rows_of_ones_own_the_whole_text_is_read():
    model = small_decoder(max_length=6, feed_forward=Backwards)
    params, prompt = random_params(model), jnp.array([[3, 1]])
    again = windowed_next_logits(functools.partial(_apply, model, params))
    whole = generate(again, prompt, 6, jax.random.key(0), 6, temperature=0)
    options = {"num_tokens": 6, "temperature": 0}
    drawn = generate_from(model, params, prompt, jax.random.key(0), **options)
    np.testing.assert_array_equal(drawn, whole)
    pieces = stream_from(model, params, prompt[0], jax.random.key(0), 6, 4, temperature=0)
    np.testing.assert_array_equal(jnp.concatenate(list(pieces)), whole[0])
    assert not model.can_cache()
    assert small_decoder(feed_forward="gated").can_cache()

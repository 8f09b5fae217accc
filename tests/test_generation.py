"""Sampling: what may be drawn, and that a sliding window forgets nothing that it should keep."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.core import FrozenDict

from transformer_jax import Decoder
from transformer_jax.errors import InvalidInput
from transformer_jax.generation import (
    draw_token,
    generate,
    generate_from,
    restrict_logits,
    windowed_next_logits,
)

LOGITS = jnp.log(jnp.array([0.5, 0.3, 0.15, 0.05]))


def kept(**options):
    return np.isfinite(restrict_logits(LOGITS, **options)).astype(int).tolist()


def test_what_top_k_and_top_p_keep():
    assert kept() == [1, 1, 1, 1]
    assert kept(top_k=2) == [1, 1, 0, 0]
    assert kept(top_k=99) == [1, 1, 1, 1]
    assert kept(top_p=0.7) == [1, 1, 0, 0]
    assert kept(top_p=0.81) == [1, 1, 1, 0]
    assert kept(top_p=0.0) == [1, 0, 0, 0]
    assert kept(top_p=1.0) == [1, 1, 1, 1]
    assert kept(top_k=3, top_p=0.5) == [1, 0, 0, 0]


def test_c48_edges_of_drawing():
    draw = lambda logits, **options: draw_token(jax.random.key(0), logits, **options)
    assert draw(LOGITS, temperature=0) == 0
    assert draw(jnp.zeros(4), temperature=0) == 0
    assert draw(LOGITS, top_p=0.0) == 0
    assert draw(LOGITS.at[1].set(jnp.nan)) == -1


def test_draws_follow_the_probabilities():
    keys = jax.random.split(jax.random.key(0), 20_000)
    drawn = jax.vmap(lambda key: draw_token(key, LOGITS, temperature=2.0))(keys)
    expected = jax.nn.softmax(LOGITS / 2)
    shares = np.bincount(drawn, minlength=4) / len(keys)
    np.testing.assert_allclose(shares, expected, atol=4 * np.sqrt(0.25 / len(keys)))


@pytest.fixture(scope="module")
def model():
    module = Decoder(vocab_size=11, max_length=6, width=16, depth=2, num_heads=2, init_std=0.5)
    params = module.init(jax.random.key(0), jnp.zeros((1, 6), jnp.int32))["params"]
    return lambda tokens: module.apply({"params": params}, tokens)


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


def test_broken_logits_show_as_minus_one(model):
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
    with pytest.raises(InvalidInput) as error:
        generate(windowed_next_logits(model), jnp.zeros(0, int), -1, None, 6, float("nan"), 0, 1.5)
    for word in ("prompt", "num_tokens", "temperature", "top_k", "top_p"):
        assert word in str(error.value)


def test_a_prompt_that_is_shorter_than_the_prefix_sees_no_padding():
    """Under a prefix mask places look ahead, where nothing has been written yet."""
    from transformer_jax.laws import Subject, small_decoder

    model = small_decoder(mask="prefix", mask_options=FrozenDict({"length": 6}))
    params, prompt = Subject(model).params, jnp.array([3, 1])
    options = {"num_tokens": 4, "temperature": 0}
    drawn = generate_from(model, params, prompt, jax.random.key(0), **options)
    text = prompt
    for token in drawn:
        assert int(model.apply({"params": params}, text)[-1].argmax()) == int(token)
        text = jnp.append(text, token)

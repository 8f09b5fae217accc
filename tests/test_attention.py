"""Attention against worked numbers, a float64 loop, and its own definition."""

import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from tests.conftest import random_params
from transformer_jax import MultiHeadAttention, scaled_dot_product_attention
from transformer_jax.attention import AttentionVariant, attention_weights
from transformer_jax.positions import PositionTerms, Rotation


def loop_attention(query, key, value, mask=None, bias=None):
    """The definition, one number at a time, in float64."""
    query, key, value = (np.asarray(a, np.float64) for a in (query, key, value))
    outputs = np.zeros((query.shape[0], value.shape[1]))
    for i in range(query.shape[0]):
        allowed = [j for j in range(key.shape[0]) if mask is None or mask[i, j]]
        scores = {j: query[i] @ key[j] / math.sqrt(query.shape[1]) for j in allowed}
        if bias is not None:
            scores = {j: score + bias[i, j] for j, score in scores.items()}
        total = sum(math.exp(score) for score in scores.values())
        for j, score in scores.items():
            outputs[i] += math.exp(score) / total * value[j]
    return outputs


def random_inputs(rng, *leading, length=4, memory=6, size=8, value_size=5):
    shapes = [(length, size), (memory, size), (memory, value_size)]
    return [jnp.asarray(rng.normal(size=(*leading, *shape)), jnp.float32) for shape in shapes]


def test_worked_examples():
    """The softmax of 2, 1 and 0, and three rotations."""
    query, key = jnp.array([[1.0]]), jnp.array([[2.0], [1.0], [0.0]])
    np.testing.assert_allclose(attention_weights(query, key), [[0.665, 0.245, 0.090]], atol=5e-4)

    def rotation(angle):
        return jnp.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])

    query, key, value = (rotation(a * math.pi) for a in (-1 / 4, 1 / 8, 5 / 16))
    np.testing.assert_allclose(attention_weights(query, key)[0], [0.40548, 0.59452], atol=5e-6)
    mixed = scaled_dot_product_attention(query, key, value)
    expected = [[0.71960, -0.00685], [0.75307, 0.16142]]
    np.testing.assert_allclose(mixed, expected, atol=5e-6)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_equals_a_float64_loop(rng, masked, biased):
    inputs = random_inputs(rng)
    mask = rng.integers(0, 2, (4, 6)).astype(bool) if masked else None
    bias = rng.normal(size=(4, 6)) if biased else None
    ours = scaled_dot_product_attention(*inputs, *jax.tree.map(jnp.asarray, (mask, bias)))
    np.testing.assert_allclose(ours, loop_attention(*inputs, mask, bias), atol=1e-6)


def test_float64_is_kept_to_1e_14(rng):
    with jax.enable_x64(True):
        inputs = [jnp.asarray(a, jnp.float64) for a in random_inputs(rng)]
        ours = scaled_dot_product_attention(*inputs)
        assert ours.dtype == jnp.float64
        np.testing.assert_allclose(ours, loop_attention(*inputs), atol=1e-14)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("jit", [False, True])
def test_c40_fully_masked_row_is_exactly_zero(rng, dtype, jit):
    query, key, value = (a.astype(dtype) for a in random_inputs(rng))
    mask = jnp.ones((4, 6), bool).at[2].set(False)
    attend = jax.jit(scaled_dot_product_attention) if jit else scaled_dot_product_attention
    outputs = attend(query, key, value, mask)
    assert (outputs[2] == 0).all()
    assert (outputs[jnp.array([0, 1, 3])] != 0).all()

    def row_sum(query, key, value):
        return attend(query, key, value, mask)[2].astype(jnp.float32).sum()

    for gradient in jax.grad(row_sum, argnums=(0, 1, 2))(query, key, value):
        assert (gradient == 0).all()


def test_c40_masked_values_do_not_matter(rng):
    query, key, value = random_inputs(rng)
    mask = jnp.ones((4, 6), bool).at[:, 3].set(False)
    other_value, other_key = value.at[3].set(1e6), key.at[3].set(1e3)
    np.testing.assert_array_equal(
        scaled_dot_product_attention(query, key, value, mask),
        scaled_dot_product_attention(query, other_key, other_value, mask),
    )


def test_c43_softmax_stays_honest_at_the_edges(rng):
    query, key, _ = random_inputs(rng, length=2, memory=4096)
    sums = attention_weights(query.astype(jnp.bfloat16), key.astype(jnp.bfloat16)).sum(-1)
    np.testing.assert_allclose(sums, 1, atol=1e-3)
    huge = scaled_dot_product_attention(query * 6e4, key * 6e4, key)
    assert jnp.isfinite(huge).all()
    bias = jnp.zeros((2, 4096)).at[:, 5].set(-jnp.inf)
    assert (attention_weights(query, key, bias=bias)[:, 5] == 0).all()


def test_leading_axes_broadcast(rng):
    query, _, _ = random_inputs(rng, 2, 3)
    _, key, value = random_inputs(rng, 3)
    ours = scaled_dot_product_attention(query, key, value)
    assert ours.shape == (2, 3, 4, 5)
    for i, j in np.ndindex(2, 3):
        expected = loop_attention(query[i, j], key[j], value[j])
        np.testing.assert_allclose(ours[i, j], expected, atol=1e-6)


@pytest.mark.parametrize("queries", [1, 5])
def test_a_head_of_keys_serves_its_group_without_being_repeated(rng, queries):
    drawn = [(2, 6, queries, 4), (2, 2, 7, 4), (2, 2, 7, 3), (6, queries, 7)]
    query, key, value, bias = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in drawn)
    mask = jnp.asarray(rng.random((2, 1, queries, 7)) > 0.3)

    def attend(query, key, value):
        return scaled_dot_product_attention(query, key, value, mask, bias)

    def attend_repeated(query, key, value):
        return attend(query, jnp.repeat(key, 3, axis=1), jnp.repeat(value, 3, axis=1))

    ours, expected = (
        jax.value_and_grad(lambda *a, f=f: jnp.sin(f(*a)).sum(), (0, 1, 2))(query, key, value)
        for f in (attend, attend_repeated)
    )
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    made = [jax.make_jaxpr(f)(query, key, value).eqns for f in (attend, attend_repeated)]
    shapes = [{v.aval.shape for eqn in eqns for v in eqn.outvars} for eqns in made]
    assert [bool({(2, 6, 7, 4), (2, 2, 3, 7, 4)} & each) for each in shapes] == [False, True]
    with pytest.raises(ValueError, match="broadcast"):
        attend(query, key[:, :1].repeat(4, 1), value)


def test_agrees_under_jit_vmap_and_grad(rng):
    query, key, value = random_inputs(rng, 3)
    mask = jnp.asarray(rng.integers(0, 2, (4, 6)).astype(bool))
    eager = scaled_dot_product_attention(query, key, value, mask)
    by_example = jax.vmap(scaled_dot_product_attention, (0, 0, 0, None))
    for attend in (jax.jit(scaled_dot_product_attention), by_example):
        np.testing.assert_allclose(attend(query, key, value, mask), eager, atol=1e-6)
    with jax.enable_x64(True):
        wide = [jnp.asarray(a, jnp.float64) for a in (query[0], key[0], value[0])]
        attend = jax.jit(lambda *inputs: scaled_dot_product_attention(*inputs, mask))
        check_grads(attend, wide, order=2)


def test_wrong_inputs_are_refused_by_name(rng):
    query, key, value = random_inputs(rng)
    pair = [array[None] for array in (query, key, value)]
    cases = {
        r"key: expected \[\.\.\., M, K=8\].*K \(head size\) is 8 in": (query, key[:, :7], value),
        r"value: expected .*M \(memory length\) is 6 in key and 5": (query, key, value[:5]),
        r"query: expected \[\.\.\., L, K\], got \(8,\)": (query[0], key, value),
        r"mask: expected bool.*float32; pass numbers": (query, key, value, jnp.zeros((4, 6))),
        r"mask: expected \[\.\.\., L=4, M=6\]": (query, key, value, jnp.ones((6, 4), bool)),
        r"bias: expected \[\.\.\., L=4, M=6\]": (query, key, value, None, jnp.zeros(6)),
        # A mask never makes more than there is.
        r"mask: .*weights \(1, 4, 6\), got \(1, 1, 4, 6\)": (*pair, jnp.ones((1, 1, 4, 6), bool)),
        r"bias: .*weights \(1, 4, 6\), got \(3, 1, 4, 6\)": (*pair, None, jnp.zeros((3, 1, 4, 6))),
    }
    for message, arguments in cases.items():
        with pytest.raises(ValueError, match=message):
            scaled_dot_product_attention(*arguments)


def make_module(rng, **fields):
    module = MultiHeadAttention(num_heads=4, **fields)
    inputs = jnp.asarray(rng.normal(size=(2, 5, 16)), jnp.float32)
    return module, {"params": random_params(module, inputs, scale=0.3)}, inputs


def test_one_output_matrix_equals_the_sum_over_heads(rng):
    module, variables, inputs = make_module(rng, head_dim=3, value_dim=6)
    p = variables["params"]
    assert p["out"]["kernel"].shape == (4 * 6, 16)

    def projected(name, head, size):
        features = slice(head * size, (head + 1) * size)
        return inputs @ p[name]["kernel"][:, features] + p[name]["bias"][None, None, features]

    expected = np.zeros(inputs.shape) + np.asarray(p["out"]["bias"])
    for head in range(4):
        mixed = scaled_dot_product_attention(
            *(
                projected(name, head, size)
                for name, size in (("query", 3), ("key", 3), ("value", 6))
            )
        )
        expected += np.asarray(mixed @ p["out"]["kernel"][head * 6 : (head + 1) * 6])
    np.testing.assert_allclose(module.apply(variables, inputs), expected, atol=2e-6)


def test_cross_attention_takes_keys_and_values_from_the_memory(rng):
    module, variables, inputs = make_module(rng)
    memory = jnp.asarray(rng.normal(size=(2, 7, 16)), jnp.float32)
    mask = jnp.asarray(rng.integers(0, 2, (2, 5, 7)).astype(bool))
    outputs, state = module.apply(variables, inputs, memory, mask=mask, mutable=["intermediates"])
    (weights,) = state["intermediates"]["weights"]
    assert outputs.shape == inputs.shape
    assert weights.shape == (2, 4, 5, 7)
    assert (jnp.where(mask[:, None], 0.0, weights) == 0).all()
    np.testing.assert_array_equal(outputs, module.apply(variables, inputs, memory, mask=mask))


def test_projections_are_drawn_alike_whatever_the_number_of_heads():
    """Keys and values too, where each query has its own."""
    first, *others = (
        MultiHeadAttention(h, groups).init(jax.random.key(0), jnp.zeros((1, 5, 16)))["params"]
        for h, groups in ((1, None), (2, None), (8, None), (2, 1), (8, 2))
    )
    for other in others:
        same = [name for name in first if first[name]["bias"].shape == other[name]["bias"].shape]
        assert {"query", "out"} <= set(same)
        for name in same:
            jax.tree.map(np.testing.assert_array_equal, first[name], other[name])


def test_masks_of_flax_and_masks_per_head_mean_what_they_mean_there(rng):
    module, variables, inputs = make_module(rng)
    examples = jnp.asarray(rng.integers(0, 2, (2, 5, 5)).astype(bool))
    plain = module.apply(variables, inputs, mask=examples)
    every_head = jnp.broadcast_to(examples[:, None], (2, 4, 5, 5))
    for same in (examples[:, None], every_head):  # [B, 1, L, L], [B, H, L, L]
        np.testing.assert_array_equal(module.apply(variables, inputs, mask=same), plain)
    one_head = every_head.at[:, 1:].set(True)
    outputs, state = module.apply(variables, inputs, mask=one_head, mutable=["intermediates"])
    (weights,) = state["intermediates"]["weights"]
    assert plain.shape == outputs.shape == inputs.shape
    assert (jnp.where(examples, 0.0, weights[:, 0]) == 0).all()
    assert (weights[:, 1:] > 0).all()


@pytest.mark.parametrize("shape", [(2, 3, 5, 5), (3, 5, 5), (2, 1, 1, 5, 5), (2, 5, 4), (5,)])
def test_masks_of_other_shapes_are_refused_naming_the_shape(rng, shape):
    module, variables, inputs = make_module(rng)
    with pytest.raises(ValueError, match=rf"mask: expected .*got {re.escape(str(shape))}"):
        module.apply(variables, inputs, mask=jnp.ones(shape, bool))


def test_no_keys_at_all_give_exactly_0(rng):
    query, key = jnp.asarray(rng.normal(size=(1, 3, 4))), jnp.zeros((1, 0, 4))
    mixed, pullback = jax.vjp(lambda q: scaled_dot_product_attention(q, key, key), query)
    np.testing.assert_array_equal(mixed, jnp.zeros((1, 3, 4)))
    np.testing.assert_array_equal(*pullback(jnp.ones_like(mixed)), jnp.zeros_like(query))


def test_keys_of_a_memory_are_not_rotated_by_places_of_the_inputs(rng):
    module, variables, inputs = make_module(rng)
    angles = jnp.zeros((inputs.shape[-2], 2))
    terms = PositionTerms(rotation=Rotation(jnp.cos(angles), jnp.sin(angles)))
    with pytest.raises(ValueError, match="expected no rotation with a memory"):
        module.apply(variables, inputs, inputs, terms=terms)


class OneColumn(AttentionVariant):
    """Weights of a wrong shape, which would broadcast."""

    def weights(self, query, key, call):
        return attention_weights(query, key, *call.dense(query, key))[..., :1]


def test_weights_of_a_wrong_shape_are_refused(rng):
    _, variables, inputs = make_module(rng)
    module = MultiHeadAttention(num_heads=4, variant=OneColumn)
    message = r"expected weights of shape \(2, 4, 5, 5\), got \(2, 4, 5, 1\)"
    with pytest.raises(ValueError, match=message):
        module.apply(variables, inputs)


@pytest.mark.usefixtures("no_key_twice")
def test_dropout_on_the_weights_only_in_training(rng):
    module, variables, inputs = make_module(rng, dropout_rate=0.5)
    plain = module.apply(variables, inputs)
    np.testing.assert_array_equal(plain, module.clone(dropout_rate=0.0).apply(variables, inputs))
    first, again, other = (
        module.apply(variables, inputs, train=True, rngs={"dropout": jax.random.key(s)})
        for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.allclose(first, other)
    assert not np.allclose(first, plain)

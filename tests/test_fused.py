"""Fused attention: splash attention, interpreted, beside all weights; who takes which kernel."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import tiny_config
from transformer_jax.attention import AttentionCall
from transformer_jax.masks import Causal, Full, Mask, Places, Prefix, Window
from transformer_jax.models import Decoder
from transformer_jax.models.layouts import stack_blocks, unstack_blocks
from transformer_jax.training.announcement import kernels_of
from transformer_jax.training.prepared import prepare
from transformer_jax.variants.fused import FusedAttention, kernels_taken, mapped_as_examples

LENGTH = 256
SEGMENTS = np.repeat([1, 2, 0], [100, 120, 36])
POSITIONS = np.r_[np.arange(100), np.arange(120), np.zeros(36, int)]


def masked(rule, documents=False):
    index = jnp.arange(LENGTH)
    position = jnp.asarray(POSITIONS) if documents else index
    places = Places(index, position, jnp.asarray(SEGMENTS) if documents else None)
    return Mask(places, places, rule)


MASKS = {
    "none": None,
    "causal": masked(Causal()),
    "window": masked(Window(40) & Causal()),
    "window, both ways": masked(Window(40)),
    "documents": masked(Full(), documents=True),
    "causal documents": masked(Causal(), documents=True),
    "window, documents": masked(Window(40) & Causal(), documents=True),
}


def arrays(rng, groups=2, dtype=jnp.float32):
    shapes = [(2, 4, LENGTH, 16), *2 * [(2, groups, LENGTH, 16)]]
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def mix(variant, query, key, value, mask=None, bias=None, **told):
    call = AttentionCall(query, mask, bias, **told)
    return variant.apply({}, query, key, value, call)


def values_and_gradients(variant, given, mask):
    def loss(given):
        mixed = mix(variant, *given, mask)
        return (mixed * jnp.cos(jnp.arange(16.0))).sum(), mixed

    gradients, mixed = jax.jit(jax.grad(loss, has_aux=True))(given)
    return [mixed, *gradients]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mask", "groups", "soft_cap"),
    [*((name, 2, None) for name in MASKS), ("causal", 4, 5.0), ("window, documents", 1, 5.0)],
)
def test_splash_attention_gives_the_numbers_of_all_weights(rng, mask, groups, soft_cap):
    given = arrays(rng, groups)
    kernel = values_and_gradients(FusedAttention(soft_cap, interpret=True), given, MASKS[mask])
    plain = values_and_gradients(FusedAttention(soft_cap), given, MASKS[mask])
    for ours, theirs in zip(kernel, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
    if "documents" in mask:
        assert (np.asarray(kernel[0])[..., 220:, :] == 0).all()


def test_splash_attention_in_bfloat16_is_as_near_as_that_is(rng):
    given = arrays(rng, dtype=jnp.bfloat16)
    exact = [array.astype(jnp.float32) for array in given]
    kernel = mix(FusedAttention(interpret=True), *given, MASKS["causal"])
    assert kernel.dtype == jnp.bfloat16
    plain = mix(FusedAttention(), *exact, MASKS["causal"])
    np.testing.assert_allclose(np.asarray(kernel, np.float32), plain, rtol=2e-2, atol=2e-2)


def test_a_scale_of_ones_own_is_taken(rng):
    given, told = arrays(rng), {"mask": MASKS["causal"], "scale": 0.7}
    kernel = mix(FusedAttention(interpret=True), *given, **told)
    np.testing.assert_allclose(kernel, mix(FusedAttention(), *given, **told), atol=2e-5)


def test_a_window_of_other_positions_is_not_computed(rng):
    index = jnp.arange(LENGTH)
    places = Places(index, 2 * index)
    wide = Mask(places, places, Window(40) & Causal())
    assert np.isnan(mix(FusedAttention(interpret=True), *arrays(rng), wide)).all()


def taken(platform, *given, **told):
    with kernels_taken(platform) as said:
        jax.eval_shape(functools.partial(mix, FusedAttention(), **told), *given)
    return said


def test_what_a_kernel_cannot_do_is_said(rng):
    given, causal = arrays(rng), MASKS["causal"]
    assert taken("tpu", *given, mask=causal) == ["splash"]
    assert taken("cpu", *given, mask=causal) == ["all weights: no kernel for a cpu"]
    assert taken("gpu", *given, mask=causal)[0].startswith("all weights: ")  # no cuDNN here
    short, fewer = [array[:, :, :200] for array in given], [given[0][:, :, :128], *given[1:]]
    for reason, inputs, told in (
        ("a bias", given, {"bias": jnp.zeros((4, LENGTH, LENGTH))}),
        ("weights are dropped", given, {"dropout_rate": 0.1}),
        ("the mask is an array", given, {"mask": causal.dense()}),
        ("no kernel supports the mask prefix", given, {"mask": masked(Prefix(8))}),
        ("one with sinks", given, {"mask": masked(Window(8, sinks=2) & Causal())}),
        ("several windows", given, {"mask": masked(Window(8) & Window(9) & Causal())}),
        ("not multiples of 128", short, {}),
        ("no queries or no keys", [given[0], *(array[:, :, :0] for array in given[1:])], {}),
        ("the numbers of queries and keys differ", fewer, {"mask": causal.of_queries(0, 128)}),
    ):
        (said,) = taken("tpu", *inputs, **told)
        assert said.startswith("all weights: "), said
        assert reason in said


def test_what_a_kernel_cannot_do_is_computed_by_all_weights(rng):
    given, bias = arrays(rng), jnp.asarray(rng.normal(size=(4, LENGTH, LENGTH)), jnp.float32)
    kernel = mix(FusedAttention(interpret=True), *given, MASKS["causal"], bias)
    np.testing.assert_array_equal(kernel, mix(FusedAttention(), *given, MASKS["causal"], bias))


@pytest.mark.thorough
def test_a_decoder_in_a_scan_takes_the_kernel(rng):
    variant = functools.partial(FusedAttention, interpret=True)
    sizes = {"vocab_size": 11, "max_length": 128, "width": 16, "depth": 2, "num_heads": 2}
    tokens = jnp.asarray(rng.integers(0, 11, (2, 128)))

    def value_and_gradients(scan=False, **options):
        model = Decoder.of(**sizes, **options)
        params = model.init(jax.random.key(0), tokens)["params"]
        loss = lambda params: (model.apply({"params": params}, tokens) ** 2).mean()
        found = jax.jit(jax.value_and_grad(loss))(stack_blocks(params, 1) if scan else params)
        return found[0], unstack_blocks(found[1])

    plain = value_and_gradients()
    for options in ({}, {"scan": True, "remat": "block"}):
        jax.tree.map(
            lambda ours, theirs: np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=1e-6),
            value_and_gradients(attention=variant, **options),
            plain,
        )


def test_a_run_says_what_its_attention_is_computed_by():
    fused = {"model__attention": "fused", "data__length": 128}
    run = prepare(tiny_config(**fused, model__dropout_rate=0.0))
    assert kernels_of(run, "tpu") == ["splash"]
    assert kernels_of(run, "cpu") == ["all weights: no kernel for a cpu"]
    dropped = prepare(tiny_config(**fused))
    assert kernels_of(dropped, "tpu") == ["all weights: weights are dropped"]
    assert kernels_of(prepare(tiny_config()), "tpu") == []


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, 1)])
def test_a_kernel_under_vmap_is_one_call_with_more_examples(rng, axes):
    sizes = []

    @jax.custom_vjp
    def kernel(query, key, value):
        return plain(query, key, value)

    def plain(query, key, value):
        sizes.append(len(query))
        weights = jax.nn.softmax(jnp.einsum("nlk,nmk->nlm", query, key))
        return jnp.einsum("nlm,nmv->nlv", weights, value)

    def forward(*arrays):  # keeps an array that belongs to no example, as cuDNN's does
        return plain(*arrays), (arrays, jnp.zeros(0))

    kernel.defvjp(forward, lambda held, cotangent: jax.vjp(plain, *held[0])[1](cotangent))

    def found(function):
        def loss(*arrays):
            return (function(*arrays) ** 2).sum(), function(*arrays)

        return jax.vmap(jax.grad(loss, (0, 1, 2), has_aux=True), axes)

    given = [rng.normal(size=(3, 2, 4, 5)) for _ in axes]
    given = [
        array[0] if axis is None else np.moveaxis(array, 0, axis)
        for array, axis in zip(given, axes, strict=True)
    ]
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    expected = jax.jit(found(plain))(*given)
    sizes.clear()
    jax.tree.map(close, jax.jit(found(mapped_as_examples(kernel)))(*given), expected)
    assert 6 in sizes
    twice = jax.jit(jax.vmap(found(mapped_as_examples(kernel)), (None, 0, None)))
    more = twice(given[0], np.stack([given[1]] * 2), given[2])
    jax.tree.map(lambda both, one: close(both[1], one), more, expected)

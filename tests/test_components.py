"""Each component against loops in float64 and literal numbers."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxprs_in_params

from tests.conftest import random_params
from transformer_jax import AttentionVariant, MultiHeadAttention, attention_weights, causal_mask
from transformer_jax import scaled_dot_product_attention as attend
from transformer_jax.attention import ATTENTIONS, AttentionCall, weighted_sum
from transformer_jax.blocks import Context
from transformer_jax.feedforward import GatedFeedForward, gelu
from transformer_jax.laws import small_decoder
from transformer_jax.masks import (
    Causal,
    Full,
    Mask,
    OfPositions,
    Places,
    Prefix,
    Rule,
    Unmasked,
    Window,
    self_attention_rule,
)
from transformer_jax.models import Decoder, Encoder
from transformer_jax.models.stack import initializers
from transformer_jax.norms import layer_norm, rms_norm
from transformer_jax.options import entry_of
from transformer_jax.positions import RotaryPositions, Sizes, rotate
from transformer_jax.variants.experts import MixtureOfExperts
from transformer_jax.variants.gated_delta import GatedDeltaRule
from transformer_jax.variants.linear_attention import LinearAttention
from transformer_jax.variants.local import LocalAttention
from transformer_jax.variants.mamba import StateSpace
from transformer_jax.variants.mup import MaximalUpdate
from transformer_jax.variants.norms import DynamicTanh
from transformer_jax.variants.relative import ContextualPositions, ShawPositions, relative_buckets
from transformer_jax.variants.running_sums import running_sums
from transformer_jax.variants.weightings import DiffTransformer

HEADS, LENGTH, SIZE = 2, 5, 4
SIZES = Sizes(width=8, num_heads=HEADS, head_dim=SIZE, scale=SIZE**-0.5)


@pytest.fixture
def query_key_value(rng):
    shape = (3, HEADS, LENGTH, SIZE)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(3)]


def double(array):
    return np.asarray(array, np.float64)


def softmax(scores):
    exponentials = np.exp(scores - scores.max())
    return exponentials / exponentials.sum()


def by_loops(query, key, row):
    """Weights of a causal attention, one row of scores at a time: row(scores, query, keys)."""
    query, key = double(query), double(key)
    weights = np.zeros((*query.shape[:-1], LENGTH))
    for place in np.ndindex(query.shape[:-1]):
        *outer, head, i = place
        keys = key[(*outer, head)][: i + 1]
        scores = keys @ query[place] / math.sqrt(SIZE)
        weights[place][: i + 1] = row(scores, query[place], keys, head)
    return weights


def elu_plus_one(x):
    return np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1) + 1


def differential_row(scores, query, keys, head):
    half = SIZE // 2
    first = keys[:, :half] @ query[:half] / math.sqrt(half)
    second = keys[:, half:] @ query[half:] / math.sqrt(half)
    return softmax(first) - (0.3, 0.9)[head] * softmax(second)


ROWS = {
    "softmax": lambda scores, *_: softmax(scores),
    "sink": lambda scores, q, k, head: softmax(np.append(scores, (0.7, -0.4)[head]))[:-1],
    "sigmoid": lambda scores, *_: 1 / (1 + np.exp(-(scores - math.log(len(scores))))),
    "differential": differential_row,
}
PARAMS = {"sink": {"sink": [0.7, -0.4]}, "differential": {"lambda": [0.3, 0.9]}}


def weights_of(name, query, key, mask, bias=None, params=None, **options):
    module = entry_of(ATTENTIONS, name)(**options)
    params = jax.tree.map(jnp.asarray, params or {}, is_leaf=lambda leaf: isinstance(leaf, list))
    call = AttentionCall(query, mask, bias)
    return module.apply({"params": params}, query, key, call, method="weights")


@pytest.mark.parametrize("name", ROWS)
def test_weights_equal_a_loop_in_float64(name, query_key_value):
    query, key, _ = query_key_value
    weights = weights_of(name, query, key, causal_mask(LENGTH), params=PARAMS.get(name))
    np.testing.assert_allclose(weights, by_loops(query, key, ROWS[name]), atol=2e-6)


def test_talking_heads_equal_a_loop_in_float64(query_key_value, rng):
    query, key, _ = query_key_value
    mixes = [rng.normal(size=(HEADS, HEADS)) for _ in range(2)]
    params = {n: {"kernel": m.tolist()} for n, m in zip(("scores", "weights"), mixes, strict=True)}
    weights = weights_of("talking_heads", query, key, causal_mask(LENGTH), params=params)
    first, second = (np.eye(HEADS) + mix for mix in mixes)
    scores = np.einsum("...LK,...MK->...LM", double(query), double(key)) / math.sqrt(SIZE)
    mixed = np.einsum("HG,BGLM->BHLM", first, scores)
    inner = np.zeros_like(mixed)
    for *outer, i in np.ndindex(mixed.shape[:-1]):
        inner[(*outer, i)][: i + 1] = softmax(mixed[(*outer, i)][: i + 1])
    np.testing.assert_allclose(weights, np.einsum("HG,BGLM->BHLM", second, inner), atol=2e-6)


def test_a_soft_cap_bends_scores_before_the_bias(query_key_value):
    query, key, _ = query_key_value
    bias = jnp.linspace(0, 50, LENGTH)[None, :]
    weights = weights_of("softmax", 9 * query, key, None, bias, soft_cap=2.0)
    scores = np.einsum("...LK,...MK->...LM", 9 * double(query), double(key)) / math.sqrt(SIZE)
    bent = 2 * np.tanh(scores / 2) + double(bias)
    expected = np.apply_along_axis(softmax, -1, bent)
    np.testing.assert_allclose(weights, expected, atol=2e-6)


def rule_mask(rule, length=LENGTH, first=0, segment=None):
    key = Places(jnp.arange(length), jnp.arange(length), segment)
    return Mask(key, key, rule).of_queries(first, length - first)


def mixed_by(variant, arrays, mask, params=None, inputs=None, **call):
    inputs = arrays[0] if inputs is None else inputs
    return variant.apply({"params": params or {}}, *arrays, AttentionCall(inputs, mask, **call))


@pytest.mark.parametrize(
    ("rule", "chunk"),  # only what is causal is computed in chunks
    [*((Causal(), n) for n in (2, 3, 64)), (None, 2), (Window(2) & Causal(), 2), (Prefix(2), 2)],
    ids=str,
)
def test_linear_attention_equals_all_its_weights_in_float64(rule, chunk, query_key_value):
    """In chunks, in one, and where no running sum can stand for what is seen; gradients too."""
    mask = None if rule is None else rule_mask(rule)
    dense = None if mask is None else mask.dense()
    seen = np.ones((LENGTH, LENGTH), bool) if mask is None else np.asarray(dense)
    variant = LinearAttention(chunk)
    query, key, value = map(double, query_key_value)
    agreement = np.einsum("...LK,...MK->...LM", elu_plus_one(query), elu_plus_one(key)) * seen
    expected = agreement / agreement.sum(-1, keepdims=True) @ value

    def by_weights(*arrays):
        call = AttentionCall(arrays[0], dense)
        weights = variant.apply({}, *arrays[:2], call, method=variant.weights)
        return weighted_sum(weights, arrays[2])

    by_sums = lambda *arrays: mixed_by(variant, arrays, mask)
    found = with_gradients(query_key_value, by_sums, by_weights)
    for mixed, _ in found:
        np.testing.assert_allclose(mixed, expected, atol=2e-6)
    gradients = (gradients for _, gradients in found)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), *gradients)


def with_gradients(given, *mixes):
    """The results of each for some arrays, and the gradients of the sum of their squares."""

    @jax.jit  # as a whole: operations would be compiled for each shape
    def both(given):
        pairs = (jax.vjp(mix, *given) for mix in mixes)
        return [(mixed, pullback(2 * mixed)) for mixed, pullback in pairs]

    return both(given)


def sizes_in(jaxpr):
    """Shapes of all that a program makes, inside its loops too."""
    for equation in jaxpr.eqns:
        for value in equation.outvars:
            yield value.aval.shape
        for inner in jaxprs_in_params(equation.params):
            yield from sizes_in(inner)


def test_nothing_of_length_times_length_is_made_but_by_attention_with_weights():
    """Neither weights nor a mask; the softmax makes both, as does the linear one under dropout."""
    length = 250

    def has_a_square(train=False, **fields):
        model = small_decoder(max_length=length, **fields)
        tokens = jnp.zeros((1, length), jnp.int32)
        params = jax.eval_shape(model.init, jax.random.key(0), tokens)
        run = functools.partial(model.apply, train=train, rngs={"dropout": jax.random.key(0)})
        shapes = sizes_in(jax.make_jaxpr(run)(params, tokens).jaxpr)
        return max(map(math.prod, shapes)) >= length**2

    assert has_a_square()
    assert not has_a_square(attention="linear")
    assert not has_a_square(attention="gated_delta")
    assert not has_a_square(attention="local", mask="window", mask_options={"size": 16})
    assert has_a_square(attention="linear", dropout_rate=0.1, train=True)
    spared = {"dropout_rate": 0.1, "attention_dropout_rate": 0.0}
    assert not has_a_square(attention="linear", train=True, **spared)


def delta_by_loops(query, key, value, decay, write):
    """One head's memory, token by token: what is stored under a key is corrected."""
    memory, answers = np.zeros((SIZE, SIZE)), []
    for q, k, v, a, b in zip(query, key, value, decay, write, strict=True):
        q, k = q / np.linalg.norm(q), k / np.linalg.norm(k)
        memory = a * (np.eye(SIZE) - b * np.outer(k, k)) @ memory + b * np.outer(k, v)
        answers.append(memory.T @ q / math.sqrt(SIZE))
    return np.array(answers)


def delta_params(rng, features):
    kernels = {n: rng.normal(size=(features, HEADS)).astype(np.float32) for n in ("decay", "write")}
    gates = {f"{name}_gate": {"kernel": jnp.asarray(kernel)} for name, kernel in kernels.items()}
    return gates | {"rate": jnp.array([0.5, -1.0]), "offset": jnp.array([0.2, -0.3])}


def test_the_gated_delta_rule_equals_a_loop_in_float64(query_key_value, rng):
    inputs = jnp.asarray(rng.normal(size=(3, LENGTH, 6)), jnp.float32)
    params = delta_params(rng, 6)
    run = functools.partial(mixed_by, GatedDeltaRule(), params=params)
    mixed = run(query_key_value, rule_mask(Causal()), inputs=inputs)
    gates = {
        name: np.swapaxes(double(inputs) @ double(params[f"{name}_gate"]["kernel"]), 1, 2)
        for name in ("decay", "write")
    }
    softplus = lambda x: np.log1p(np.exp(x))
    rate, offset = (double(params[n])[:, None] for n in ("rate", "offset"))
    decay = np.exp(-np.exp(rate) * softplus(gates["decay"] + offset))
    write = 1 / (1 + np.exp(-gates["write"]))
    for place in np.ndindex(3, HEADS):
        arrays = [double(array)[place] for array in query_key_value]
        expected = delta_by_loops(*arrays, decay[place], write[place])
        np.testing.assert_allclose(mixed[place], expected, atol=1e-5)
    # A second document, read behind a first one, is what it is alone; padding gives 0.
    segment = jnp.array([1, 1, 2, 2, 0])
    packed = run(query_key_value, rule_mask(Causal(), segment=segment), inputs=inputs)
    part = lambda array: array[..., 2:4, :]
    alone = run(list(map(part, query_key_value)), rule_mask(Causal(), 2), inputs=part(inputs))
    np.testing.assert_allclose(packed[..., 2:4, :], alone, atol=1e-6)
    assert (packed[..., 4, :] == 0).all()
    low = [array.astype(jnp.bfloat16) for array in (*query_key_value, inputs)]
    assert run(low[:3], rule_mask(Causal()), inputs=low[3]).dtype == jnp.bfloat16


def test_what_the_gated_delta_rule_cannot_do_is_refused(query_key_value):
    def init(mask, **more):
        call = AttentionCall(jnp.zeros((3, LENGTH, 6)), mask, **more)
        GatedDeltaRule().init(jax.random.key(0), *query_key_value, call)

    for mask in (None, causal_mask(LENGTH), rule_mask(Window(2) & Causal()), rule_mask(Full())):
        with pytest.raises(ValueError, match="expected a causal mask"):
            init(mask)
    with pytest.raises(ValueError, match="no scores"):
        init(rule_mask(Causal()), bias=jnp.zeros((LENGTH, LENGTH)))
    with pytest.raises(ValueError, match="attention_dropout_rate"):
        init(rule_mask(Causal()), dropout_rate=0.1)


@pytest.mark.parametrize("chunk", [1, 2, 3, 64])
@pytest.mark.parametrize("parts", ["", "decay", "starts", "decay starts"])
def test_running_sums_equal_a_loop_in_float64(chunk, parts, query_key_value, rng):
    """A state that decays and begins anew with a document, token by token; read on in two calls."""
    decay = rng.uniform(0.1, 1, size=(3, HEADS, LENGTH)) if "decay" in parts else np.ones(LENGTH)
    starts = np.array([0, 0, 1, 1, 0], bool) if "starts" in parts else np.zeros(LENGTH, bool)
    query, key, value = map(double, query_key_value)
    state, expected = np.zeros((3, HEADS, SIZE, SIZE)), []
    for t in range(LENGTH):
        kept = decay[..., t, None, None] * (not starts[t])
        state = kept * state + key[..., t, :, None] * value[..., t, None, :]
        expected.append(np.einsum("...K,...KV->...V", query[..., t, :], state))
    options = {}
    if "decay" in parts:
        options["log_decay"] = jnp.log(jnp.asarray(decay))
    if "starts" in parts:
        options["starts"] = jnp.asarray(starts)

    def sums(part, state):
        arrays = (array[..., part, :] for array in query_key_value)
        more = {name: array[..., part] for name, array in options.items()}
        return running_sums(*arrays, state, chunk=chunk, **more)

    empty = jnp.zeros((3, HEADS, SIZE, SIZE))
    mixed, last = sums(slice(None), empty)
    np.testing.assert_allclose(mixed, np.stack(expected, -2), atol=1e-5)
    np.testing.assert_allclose(last, state, atol=1e-5)
    before, middle = sums(slice(0, 3), empty)
    after, end = sums(slice(3, None), middle)
    np.testing.assert_allclose(jnp.concatenate([before, after], -2), mixed, atol=1e-5)
    np.testing.assert_allclose(end, last, atol=1e-5)


FOUR = [{}, {"attention": "linear"}, {"attention": "gated_delta"}, {"mixer": "state_space"}]


@pytest.mark.thorough
@pytest.mark.parametrize("fields", FOUR, ids=str)
def test_a_state_is_kept_where_a_cache_is_in_use_and_nowhere_else(fields):
    """One that is left over changes nothing, nor does reading twice with an encoder."""
    tokens = jnp.arange(6)[None] % 11
    sizes = {"vocab_size": 11, "max_length": 8, "width": 16, "depth": 1, "num_heads": 2}
    for model in (small_decoder(**fields), Encoder.of(**sizes, mask="causal", **fields)):
        params = {"params": random_params(model)}
        first, kept = model.apply({**params, "cache": {}}, tokens, mutable=["cache"])
        plain, unread = (model.apply(variables, tokens) for variables in (params, params | kept))
        np.testing.assert_array_equal(unread, plain)
        if isinstance(model, Encoder):
            second, _ = model.apply(params | kept, tokens, mutable=["cache"])
            np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("strong", [1e2, 1e4, 1e6])
def test_small_decays_after_a_strong_one_are_exact(strong, rng):
    """Inside a chunk as token by token."""
    query, key, value = (jnp.asarray(rng.normal(size=(64, SIZE)), jnp.float32) for _ in range(3))
    decay = jnp.full(64, -0.01).at[5].set(-strong)
    empty = jnp.zeros((SIZE, SIZE))
    sums = [running_sums(query, key, value, empty, chunk=c, log_decay=decay)[0] for c in (1, 64)]
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-5, atol=2e-5)


def test_features_far_below_0_count_in_linear_attention():
    far = jnp.full((1, 2, SIZE), -20.0)
    mixed = mixed_by(LinearAttention(), [far, far, jnp.array([[[1.0], [3.0]]])], None)
    np.testing.assert_allclose(mixed, [[[2.0], [2.0]]], rtol=1e-6)


def test_linear_attention_over_a_memory_of_another_length(rng):
    """A causal rule over places that are no self-attention: by weights, and the same."""
    query = jnp.asarray(rng.normal(size=(1, 6, SIZE)), jnp.float32)
    key, value = (jnp.asarray(rng.normal(size=(1, 4, SIZE)), jnp.float32) for _ in range(2))
    mask = Mask(*(Places(jnp.arange(size), jnp.arange(size)) for size in (6, 4)), Causal())
    query, key, value = query[:, None], key[:, None], value[:, None]
    mixed = mixed_by(LinearAttention(), [query, key, value], mask)
    by_array = mixed_by(LinearAttention(), [query, key, value], mask.dense())
    np.testing.assert_array_equal(mixed, by_array)


def test_what_a_state_space_mixer_cannot_do_is_refused(rng):
    inputs = jnp.asarray(rng.normal(size=(2, LENGTH, 8)), jnp.float32)

    def init(mask, sizes=SIZES, **more):
        StateSpace().init(jax.random.key(0), inputs, Context(mask=mask, sizes=sizes, **more))

    for mask in (None, causal_mask(LENGTH), rule_mask(Prefix(2))):
        with pytest.raises(ValueError, match="a state-space mixer reads from left to right"):
            init(mask)
    rotated = RotaryPositions().apply({}, jnp.arange(LENGTH), SIZES)
    with pytest.raises(ValueError, match="position: a state-space mixer has no scores"):
        init(rule_mask(Causal()), terms=rotated)
    with pytest.raises(ValueError, match=r"head_dim: expected a divisor of 16, got 5"):
        init(rule_mask(Causal()), SIZES._replace(head_dim=5))


GIVE_WEIGHTS = [
    name
    for name in ATTENTIONS
    if entry_of(ATTENTIONS, name).weights is not AttentionVariant.weights
    if name != "forgetting"  # it takes no mask as an array
]


@pytest.mark.parametrize("name", GIVE_WEIGHTS)
def test_a_query_that_may_see_nothing_gives_no_nan(name, query_key_value):
    query, key, _ = query_key_value
    module = entry_of(ATTENTIONS, name)()
    call = AttentionCall(query, causal_mask(LENGTH).at[2].set(False))
    variables = module.init(jax.random.key(0), query, key, call, method="weights")

    def total(query):
        return module.apply(variables, query, key, call, method="weights")

    assert (total(query)[..., 2, :] == 0).all()
    assert jnp.isfinite(jax.grad(lambda q: total(q).sum())(query)).all()


def test_grouped_queries_equal_heads_with_repeated_keys(rng):
    """Two key heads for four queries: the same as four whose kernels are repeated in pairs."""
    inputs = jnp.asarray(rng.normal(size=(2, LENGTH, 16)), jnp.float32)
    grouped = MultiHeadAttention(num_heads=4, num_kv_heads=2)
    params = random_params(grouped, inputs)
    assert params["key"]["kernel"].shape == (16, 8)
    in_pairs = lambda leaf: leaf.reshape(-1, 2, 4).repeat(2, axis=1).reshape(*leaf.shape[:-1], 16)
    whole = {**params, **{n: jax.tree.map(in_pairs, params[n]) for n in ("key", "value")}}
    expected = MultiHeadAttention(num_heads=4).apply({"params": whole}, inputs)
    np.testing.assert_allclose(grouped.apply({"params": params}, inputs), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("of_key", "of_value"), [((1, 2), (1, 2)), ((2,), (2,)), ((2, 2), (1, 2)), ((1,), (3, 1, 2))]
)
@pytest.mark.parametrize("length", [1, 3])
def test_leading_axes_of_grouped_keys_broadcast(of_key, of_value, length, rng):
    """As those of keys that are repeated for four heads."""
    shapes = (2, 4, length, 8), (*of_key, 5, 8), (*of_value, 5, 6)
    query, *groups = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    every = [jnp.repeat(array, 4 // array.shape[-3], axis=-3) for array in groups]
    mask = jnp.asarray(rng.random((length, 5)) < 0.7)
    expected = jax.nn.softmax(jnp.where(mask, query @ every[0].mT / 8**0.5, -1e9)) @ every[1]
    found = attend(query, *groups, mask)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, jnp.where(mask.any(-1)[:, None], expected, 0), atol=1e-6)


def test_integers_are_not_cut():
    turn = RotaryPositions().apply({}, jnp.arange(3), Sizes(4, head_dim=4)).rotation
    given = jnp.arange(24).reshape(2, 3, 4) - 9
    for function in (
        lambda x: attend(x, x, x),
        lambda x: rotate(x, turn),
        layer_norm,
        rms_norm,
        gelu,
    ):
        np.testing.assert_allclose(function(given), function(given.astype(jnp.float32)), atol=1e-6)


def test_leading_axes_that_do_not_broadcast_are_refused_by_name(rng):
    query, three, two = (jnp.zeros((2, heads, 3, 8)) for heads in (4, 3, 2))
    for names, arrays in (("key", (three, two)), ("value", (two, three))):
        with pytest.raises(ValueError, match=rf"^{names}: expected leading .* got \(2, 3\)"):
            attend(query, *arrays)
    inputs, memory = (jnp.asarray(rng.normal(size=(*n, 16))) for n in ((2, 3), (1, 5)))
    module = MultiHeadAttention(num_heads=4, num_kv_heads=2)
    apply = functools.partial(module.apply, {"params": random_params(module, inputs)}, inputs)
    np.testing.assert_allclose(apply(memory), apply(jnp.tile(memory, (2, 1, 1))), atol=1e-6)


@pytest.mark.parametrize(
    ("fields", "features"), [({}, [16, 16, 16]), ({"head_dim": 4}, [4, 8, 32])], ids=str
)
def test_head_count_changes_with_width_held_or_head_dim_held(fields, features):
    def query_features(num_heads):
        model = small_decoder(**fields | {"num_heads": num_heads})
        shapes = jax.eval_shape(model.init, jax.random.key(0), **model.example_inputs())
        return shapes["params"]["block_0"]["attention"]["query"]["kernel"].shape[1]

    assert [query_features(heads) for heads in (1, 2, 8)] == features


def test_buckets_of_relative_distances_as_numbers():
    """T5's first buckets hold one distance, the next grow, those ahead have their own half."""
    distances = jnp.array([0, -1, -3, -4, -8, -9, -100, 1, 3, 100])
    both = relative_buckets(distances, True, num_buckets=16, max_distance=32)
    assert both.tolist() == [0, 1, 3, 4, 5, 5, 7, 9, 11, 15]
    causal = relative_buckets(distances, False, num_buckets=16, max_distance=32)
    assert causal.tolist() == [0, 1, 3, 4, 8, 8, 15, 0, 0, 0]


def test_shaw_equals_a_loop_in_float64(query_key_value, rng):
    query, key, _ = query_key_value
    encoding = ShawPositions(max_distance=2)
    table = rng.normal(size=(5, SIZE)).astype(np.float32)
    positions = jnp.arange(LENGTH)
    terms = encoding.apply({"params": {"embedding": jnp.asarray(table)}}, positions, SIZES)
    bias = terms.bias(query, key, None)
    for i in range(LENGTH):
        for j in range(LENGTH):
            vector = double(table[np.clip(j - i, -2, 2) + 2])
            expected = double(query[..., i, :]) @ vector / math.sqrt(SIZE)
            np.testing.assert_allclose(bias[..., i, j], expected, atol=2e-6)


def test_diff_transformer_equals_a_loop_in_float64(rng):
    with jax.enable_x64(True):
        query, key, value = (rng.normal(size=(2, 4, 6, size)) for size in (SIZE, SIZE, 3))
        variant = DiffTransformer(epsilon=1e-6)
        vectors, scale = rng.normal(size=(4, SIZE)) * 0.5, rng.normal(size=6)
        params = {"lambda": jnp.asarray(vectors), "norm": {"scale": jnp.asarray(scale)}}
        mask = np.tril(np.ones((6, 6), bool))
        call = AttentionCall(query, jnp.asarray(mask), layer=2)
        found = variant.apply({"params": params}, query, key, value, call)
        seen = variant.apply({"params": params}, query, key, call, method="weights")
    assert found.shape == value.shape
    start = 0.8 - 0.6 * math.exp(-0.6)
    taken = np.exp(vectors[0] @ vectors[1]) - np.exp(vectors[2] @ vectors[3]) + start
    for b in range(2):
        for pair in range(2):
            scores = [query[b, h] @ key[b, h].T / math.sqrt(SIZE) for h in (pair, pair + 2)]
            first, second = (
                np.stack([softmax(row) for row in np.where(mask, each, -np.inf)]) for each in scores
            )
            weights = first - taken * second
            mixed = weights @ np.concatenate([value[b, pair], value[b, pair + 2]], -1)
            mixed = mixed / np.sqrt((mixed**2).mean(-1, keepdims=True) + 1e-6) * scale
            ours = np.concatenate([found[b, 2 * pair], found[b, 2 * pair + 1]], -1)
            np.testing.assert_allclose(ours, mixed * (1 - start), rtol=0, atol=1e-12)
            np.testing.assert_allclose(seen[b, 2 * pair], weights, rtol=0, atol=1e-12)


def test_diff_transformer_knows_its_layer_and_wants_pairs():
    model = small_decoder(attention="diff_transformer", depth=2)
    tokens = jnp.zeros((1, 4), jnp.int32)
    params = random_params(model)
    params["block_1"] = params["block_0"]
    swapped = model.with_options(attention_options={"lambda_start": 0.2})  # that of layer 0
    own, fixed = (each.apply({"params": params}, tokens) for each in (model, swapped))
    assert not np.array_equal(own, fixed)  # layer 1 begins elsewhere
    arrays = [jnp.ones((1, 3, 2, 4))] * 3
    with pytest.raises(ValueError, match="num_heads: expected an even number, for pairs, got 3"):
        DiffTransformer().init(jax.random.key(0), *arrays, AttentionCall(arrays[0]))


@pytest.mark.parametrize(("length", "size"), [(5, 1), (5, 2), (8, 2), (5, 3), (13, 3)])
@pytest.mark.parametrize("causal", [True, False])
def test_local_attention_is_softmax_attention_under_the_same_window(rng, length, causal, size):
    """Equal to rounding, with documents and gradients, for every length modulo the window."""
    rule = (Window(size) & Causal()) if causal else Window(size)
    given = [
        jnp.asarray(rng.normal(size=(2, 4, length, features)), jnp.float32)
        for features in (SIZE, SIZE, 3)
    ]
    starts = rng.random((2, length)) < 0.3
    starts[:, 0] = True
    segment = jnp.asarray(np.cumsum(starts, 1))
    since = np.arange(length) - np.maximum.accumulate(np.where(starts, np.arange(length), 0), 1)
    for position, documents in ((jnp.arange(length), None), (jnp.asarray(since), segment)):
        places = Places(jnp.arange(length), position, documents)
        mask = Mask(places, places, rule)
        dense = jnp.broadcast_to(mask.dense(), (2, length, length))[:, None]
        local = lambda *arrays, mask=mask: mixed_by(LocalAttention(), arrays, mask)
        whole = lambda q, k, v, seen=dense: weighted_sum(attention_weights(q, k, seen), v)
        (ours, our_gradients), (theirs, their_gradients) = with_gradients(given, local, whole)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-6)
        close = lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5)
        jax.tree.map(close, our_gradients, their_gradients)


@pytest.mark.parametrize(
    ("position", "segment", "is_number"),
    [
        ([0, 1, 2, 4, 5, 6], None, False),
        # Its first part lies beyond the blocks looked at, and within the window's positions.
        ([0, 1, 0, 1, 2, 3], [1, 1, 2, 2, 1, 1], False),
        ([0, 1, 0, 0, 1, 0], [1, 1, 0, 2, 2, 0], True),
    ],
    ids=["positions that skip", "a document that comes back", "padding between documents"],
)
def test_local_attention_of_places_it_cannot_see_is_not_a_number(rng, position, segment, is_number):
    places = Places(jnp.arange(6), jnp.asarray(position), segment and jnp.asarray(segment))
    mask = Mask(places, places, Window(2) & Causal())
    arrays = [jnp.asarray(rng.normal(size=(1, 2, 6, 4)), jnp.float32) for _ in range(3)]
    mixed = mixed_by(LocalAttention(), arrays, mask)
    assert (np.isfinite(mixed) if is_number else np.isnan(mixed)).all()


def test_contextual_positions_equal_a_loop_in_float64(query_key_value, rng):
    query, key, _ = query_key_value
    encoding = ContextualPositions(max_count=2)
    table = rng.normal(size=(3, SIZE)).astype(np.float32)
    terms = encoding.apply({"params": {"embedding": jnp.asarray(table)}}, jnp.arange(LENGTH), SIZES)
    bias = terms.bias(query, key, causal_mask(LENGTH))
    query, key = double(query), double(key)
    scores = np.einsum("...LK,...MK->...LM", query, key) / math.sqrt(SIZE)
    gates = 1 / (1 + np.exp(-scores))
    for place in np.ndindex(*scores.shape[:-1]):
        i = place[-1]
        for j in range(i + 1):
            count = min(gates[place][j : i + 1].sum(), 2)
            below, part = int(count), count - int(count)
            vector = (1 - part) * table[below] + part * table[min(below + 1, 2)]
            assert bias[(*place, j)] == pytest.approx(query[place] @ vector, abs=1e-5)


@pytest.mark.parametrize("encoding", [ShawPositions(max_distance=2), ContextualPositions(4)])
def test_terms_of_scores_are_not_rounded_to_bfloat16(encoding, query_key_value, rng):
    """Scores are sums in float32 there, and what is added to them has to be as exact."""
    query, key, _ = (array.astype(jnp.bfloat16) for array in query_key_value)
    table = jnp.asarray(rng.normal(size=(5, SIZE)), jnp.bfloat16)  # 5 rows in both
    params = {"params": {"embedding": table.astype(jnp.float32)}}
    terms = encoding.apply(params, jnp.arange(LENGTH), SIZES)
    seen = np.tril(np.ones((LENGTH, LENGTH), bool))
    rounded, exact = (
        np.asarray(terms.bias(query.astype(d), key.astype(d), causal_mask(LENGTH)))[..., seen]
        for d in (jnp.bfloat16, jnp.float32)
    )
    np.testing.assert_allclose(rounded, exact, rtol=1e-5, atol=1e-5)


def test_scaled_rotations_reach_further():
    """Linear: position 8 of a context 4 times longer is position 2. NTK: the first pair stays."""

    def angles(**options):
        encoding = RotaryPositions(**options)
        rotation = encoding.apply({}, jnp.arange(9), Sizes(16, head_dim=8)).rotation
        return np.arctan2(rotation.sin, rotation.cos)

    plain = angles()
    np.testing.assert_allclose(angles(scaling="linear", factor=4.0)[8], plain[2], atol=1e-6)
    stretched = angles(scaling="ntk", factor=4.0)
    np.testing.assert_allclose(stretched[:, 0], plain[:, 0], atol=1e-6)
    np.testing.assert_allclose(stretched[8, -1], plain[2, -1], atol=1e-6)
    assert angles(fraction=0.5).shape == (9, 2)


def test_rotations_of_llama3_stretch_what_turns_slowly():
    """By wavelengths, as its paper's code does: above 16 / 1 all, below 16 / 4 nothing."""
    sizes, options = Sizes(16, head_dim=16), {"max_wavelength": 20.0, "factor": 4.0}

    def frequencies(scaling, length):
        encoding = RotaryPositions(scaling=scaling, original_length=length, **options)
        rotation = encoding.apply({}, jnp.arange(2), sizes).rotation
        return np.arctan2(rotation.sin, rotation.cos)[1]

    plain = 20.0 ** (-2 * np.arange(8) / 16)
    turns = 16 * plain / (2 * np.pi)  # within the original length
    assert (turns < 1).any()
    assert ((turns > 1) & (turns < 4)).any()
    share = np.clip((turns - 1) / (4 - 1), 0, 1)
    expected = (1 - share) * plain / 4.0 + share * plain
    np.testing.assert_allclose(frequencies("llama3", 16), expected, rtol=1e-5)
    np.testing.assert_allclose(frequencies("llama3", 99)[0], 1.0, rtol=1e-6)
    with pytest.raises(ValueError, match="expected one of: none, linear, ntk, llama3, got 'yarn'"):
        frequencies("yarn", 16)


def grid(mask):
    return ["".join("1" if seen else "." for seen in row) for row in np.asarray(mask)]


def test_rules_of_masks_as_grids():
    causal = lambda row, **options: self_attention_rule(row, options, True)
    both_ways = lambda row, **options: self_attention_rule(row, options, False)
    of = lambda rule: grid(rule_mask(rule).dense())
    assert of(causal(Window, size=2)) == ["1....", "11...", ".11..", "..11.", "...11"]
    assert of(causal(Window, size=2, sinks=1)) == [
        "1....", "11...", "111..", "1.11.", "1..11",
    ]  # fmt: skip
    assert of(both_ways(Window, size=2)) == ["11...", "111..", ".111.", "..111", "...11"]
    assert of(causal(Prefix, length=3)) == [
        "111..", "111..", "111..", "1111.", "11111",
    ]  # fmt: skip
    assert of(causal(Full)) == of(both_ways(Causal)) == grid(causal_mask(5))
    assert of(causal(Unmasked)) == of(both_ways(Full)) == ["11111"] * 5
    assert of(causal(Prefix(3) & Window(2))) == ["11...", "111..", ".11..", "..11.", "...11"]
    for prefix in (Prefix, Prefix(3) & Window(2)):
        with pytest.raises(ValueError, match="a prefix is for causal models"):
            both_ways(prefix)


def test_a_mask_of_some_queries_is_those_rows_of_the_mask():
    segment = jnp.array([1, 1, 2, 2, 0])
    for rule in (Causal(), Window(2) & Causal(), Prefix(3), OfPositions(own_mask, True)):
        whole = rule_mask(rule, segment=segment)
        for first in range(5):
            rows = whole.of_queries(jnp.int32(first), 5 - first).dense()
            np.testing.assert_array_equal(rows, whole.dense()[first:])


def test_a_rule_is_given_as_a_class_with_options_or_made():
    assert self_attention_rule(Window, {"size": 2}, True) == Window(2) & Causal()
    assert self_attention_rule(Window(2), {}, True) == Window(2) & Causal()
    with pytest.raises(ValueError, match="expected no others"):
        self_attention_rule(Window(2), {"size": 3}, True)


@dataclasses.dataclass(frozen=True)
class Segment(Rule):
    """Blocks of three, by a name that a tag of ours has."""

    def allowed(self, query, key):
        return key.index[..., None, :] // 3 == query.index[..., :, None] // 3


@dataclasses.dataclass(frozen=True)
class Later(Causal):
    """Causal, without the first token."""

    def allowed(self, query, key):
        return super().allowed(query, key) & (key.index != 0)[..., None, :]


@dataclasses.dataclass(frozen=True)
class Every(Full):
    """Odd places alone."""

    def allowed(self, query, key):
        return super().allowed(query, key) & (key.index % 2 == 1)[..., None, :]


@pytest.mark.parametrize("rule", [Segment, Later, Every])
def test_a_rule_of_ones_own_is_taken_for_no_other(rule):
    """Attention obeys it, with weights or without; what reads from left to right refuses it."""
    tokens = jnp.arange(6)[None] % 11
    pair = jnp.concatenate([tokens, tokens.at[0, 0].add(1)])
    for fields in ({}, {"attention": "linear"}):
        model = small_decoder(mask=rule, **fields)
        logits = model.apply({"params": random_params(model)}, pair)[:, 5]
        np.testing.assert_array_equal(*logits)
    for fields in ({"attention": "gated_delta"}, {"mixer": "state_space"}):
        with pytest.raises(ValueError, match="reads from left to right"):
            random_params(small_decoder(mask=rule, **fields))


def own_mask(positions, past_only):
    """A mask of one's own, as a function of all positions."""
    even = (positions[..., None, :] - positions[..., :, None]) % 2 == 0
    return even if past_only is None else even & past_only


def test_a_mask_of_ones_own_is_a_rule_or_a_function_of_all_positions():
    by_function = rule_mask(self_attention_rule(own_mask, {}, True)).dense()
    assert grid(by_function) == ["1....", ".1...", "1.1..", ".1.1.", "1.1.1"]
    nothing_hidden = self_attention_rule(lambda positions, past_only: None, {}, False)
    assert rule_mask(nothing_hidden).dense().all()


def test_gates_equal_the_formula_with_as_many_parameters_as_two_maps(rng):
    inputs = jnp.asarray(rng.normal(size=(2, 3, 12)), jnp.float32)
    layer = GatedFeedForward(use_bias=False)
    params = layer.init(jax.random.key(0), inputs)["params"]
    gate, up, down = (double(params[name]["kernel"]) for name in ("gate", "up", "down"))
    opened = double(inputs) @ gate
    expected = (opened / (1 + np.exp(-opened)) * (double(inputs) @ up)) @ down
    np.testing.assert_allclose(layer.apply({"params": params}, inputs), expected, atol=1e-6)
    assert gate.size + up.size + down.size == 2 * 12 * 4 * 12


def test_dynamic_tanh_is_the_formula(rng):
    inputs = jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)
    params = {"alpha": jnp.array([0.7]), "scale": jnp.arange(4.0), "bias": jnp.ones(4)}
    expected = np.tanh(0.7 * double(inputs)) * np.arange(4) + 1
    np.testing.assert_allclose(DynamicTanh().apply({"params": params}, inputs), expected, atol=1e-6)


@pytest.mark.parametrize("num_chosen", [1, 2])
@pytest.mark.parametrize(
    "options", [{}, *({"computed": "chosen", "block": size} for size in (1, 3, 64))], ids=str
)
def test_a_mixture_equals_a_loop_over_tokens_and_its_balance_the_papers(rng, options, num_chosen):
    """The share of one expert is the gate: made to sum to 1, no router could learn from the loss."""
    inputs = jnp.asarray(rng.normal(size=(2, 5, 6)), jnp.float32)
    sizes = {"mlp_dim": 7, "num_experts": 4, "num_chosen": num_chosen, "balance": 1.0}
    layer = MixtureOfExperts(**sizes, **options)
    params = random_params(layer, inputs)

    def loss(params):
        outputs, sown = layer.apply({"params": params}, inputs, mutable=["losses"])
        return (outputs**2).sum(), (outputs, sown["losses"]["balance"][0])

    gradients, (outputs, balance) = jax.jit(jax.grad(loss, has_aux=True))(params)
    assert jnp.abs(gradients["router"]["kernel"]).max() > 1e-3
    router, up, down = (double(params[name]["kernel"]) for name in ("router", "up", "down"))
    for b in range(2):
        used, shares = np.zeros(4), np.zeros(4)
        for t in range(5):
            token = double(inputs[b, t])
            probability = softmax(token @ router)
            chosen = np.argsort(-probability)[:num_chosen]
            total = probability[chosen].sum() if num_chosen > 1 else 1
            expected = 0
            for e in chosen:
                hidden = token @ up[e]
                gelu = hidden * 0.5 * (1 + np.vectorize(math.erf)(hidden / math.sqrt(2)))
                expected = expected + probability[e] / total * (gelu @ down[e])
                used[e] += 1 / (5 * num_chosen)
            shares += probability / 5
            np.testing.assert_allclose(outputs[b, t], expected, atol=1e-5)
        assert float(balance[b]) == pytest.approx(4 * used @ shares, rel=1e-5)


def test_all_tokens_may_choose_the_same_experts_and_none_is_dropped(rng):
    """Gradients too, under vmap over parameters: what a study with seeds side by side takes."""
    inputs = jnp.asarray(rng.normal(size=(2, 9, 6)), jnp.float32)
    dense = MixtureOfExperts(mlp_dim=7, num_experts=5, num_chosen=2)
    params = random_params(dense, inputs)
    params["router"]["kernel"] = params["router"]["kernel"] * 0  # equal scores: experts 0 and 1
    pair = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)
    found = []
    for layer in (dense, dense.copy(computed="chosen", block=4)):
        loss = lambda params, layer=layer: (layer.apply({"params": params}, inputs) ** 2).sum()
        found.append(jax.jit(jax.vmap(jax.value_and_grad(loss)))(pair))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *found)


def test_the_gated_delta_rule_starts_with_the_decays_of_mamba_2(query_key_value):
    call = AttentionCall(jnp.zeros((3, LENGTH, 6)), rule_mask(Causal()))
    params = GatedDeltaRule().init(jax.random.key(0), *query_key_value, call)["params"]
    steps = np.log1p(np.exp(double(params["offset"])))
    assert np.exp(double(params["rate"])) == pytest.approx(np.arange(1, HEADS + 1))
    assert ((steps > 0.001 - 1e-6) & (steps < 0.1 + 1e-6)).all()


@pytest.mark.parametrize(
    ("name", "options", "reading", "writing"),
    [
        ("normal", {}, 0.02, 0.02),
        ("depth_scaled", {}, 0.02, 0.02 / math.sqrt(2 * 8)),
        ("xavier", {}, math.sqrt(2 / (256 + 256)), math.sqrt(2 / (256 + 256))),
        ("xavier", {"gain": 2.0}, 2 * math.sqrt(2 / 512), 2 * math.sqrt(2 / 512)),
        ("fan_in", {}, 1 / 16, 1 / 16),
    ],
)
def test_deviations_of_initial_kernels(name, options, reading, writing):
    starts = starts_of(initialisation=name, initialisation_options=options)
    assert deviation(starts.query_key) == pytest.approx(reading, rel=0.02)
    assert deviation(starts.output) == pytest.approx(writing, rel=0.02)
    assert deviation(starts.embedding) == pytest.approx(0.02, rel=0.02)


def starts_of(**fields):
    model = Decoder.of(vocab_size=3, max_length=4, width=256, depth=8, **fields)
    return initializers(model.options)


def deviation(init):
    return float(init(jax.random.key(0), (256, 256), jnp.float32).std())


def test_deep_norm_and_mup_change_the_kernels_that_they_name():
    deep = starts_of(initialisation="normal", wiring="deep_norm")
    assert deviation(deep.query_key) == pytest.approx(0.02, rel=0.02)
    assert deviation(deep.value) == pytest.approx(0.02 * 64**-0.25, rel=0.02)
    mup = MaximalUpdate(base_width=64)
    gains = [mup.kernel_gain(256), mup.logits_gain(256), mup.learning_rate_gain(256)]
    assert gains == [0.5, 0.25, 0.25]
    assert mup.scale(64, grows=True, width=256) == pytest.approx(math.sqrt(16) / 64)
    assert mup.scale(64, grows=False, width=256) == pytest.approx(1 / 8)

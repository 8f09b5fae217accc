"""Linear maps, norms, positions, embeddings and wiring, each against its formula."""

import functools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax import sinusoidal_positions
from transformer_jax.blocks import Context, PostNorm, PreNorm
from transformer_jax.feedforward import ACTIVATIONS
from transformer_jax.linear import TokenEmbedding, linear, lookup
from transformer_jax.models import Decoder, EncoderDecoder
from transformer_jax.norms import NORMS, layer_norm, rms_norm
from transformer_jax.options import entry_of
from transformer_jax.positions import (
    LearnedPositions,
    PositionTerms,
    RotaryPositions,
    SinusoidalPositions,
    Sizes,
    rotate,
)
from transformer_jax.variants import wirings
from transformer_jax.variants.relative import ALiBiPositions, T5Positions, alibi_slopes
from transformer_jax.variants.wirings import DeepNorm, ReZero


def normal(rng, *shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)


def test_linear_equals_the_product_over_any_leading_axes(rng):
    inputs, kernel, bias = normal(rng, 2, 3, 4), normal(rng, 4, 5), normal(rng, 5)
    expected = np.einsum("abd,df->abf", inputs, kernel) + np.asarray(bias)
    np.testing.assert_allclose(linear(inputs, kernel, bias), expected, atol=1e-6)
    by_row = jax.vmap(jax.vmap(lambda row: linear(row, kernel, bias)))(inputs)
    np.testing.assert_allclose(by_row, expected, atol=1e-6)


def test_norms_equal_their_formulas_in_float64(rng):
    inputs = normal(rng, 3, 8)
    wide = np.asarray(inputs, np.float64)
    scale, bias = normal(rng, 8), normal(rng, 8)
    centred = wide - wide.mean(-1, keepdims=True)
    expected = centred / np.sqrt(wide.var(-1, keepdims=True) + 1e-5) * np.asarray(scale)
    np.testing.assert_allclose(layer_norm(inputs, scale, bias), expected + bias, atol=2e-6)
    root = np.sqrt(np.square(wide).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(rms_norm(inputs, scale), wide / root * np.asarray(scale), atol=2e-6)
    with pytest.raises(ValueError, match=r"scale: expected \(8,\), got \(3, 1\)"):
        layer_norm(inputs, scale[:3, None])


def test_layer_norm_keeps_digits_far_from_zero(rng):
    inputs = normal(rng, 1, 64)
    np.testing.assert_allclose(layer_norm(inputs + 1000), layer_norm(inputs), atol=2e-3)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("fill", [0.0, 3.0])
def test_c48_constant_inputs_stay_finite(norm, fill):
    module, inputs = entry_of(NORMS, norm)(), jnp.full((2, 8), fill)
    variables = module.init(jax.random.key(0), inputs)
    value, gradient = jax.value_and_grad(lambda x: module.apply(variables, x).sum())(inputs)
    assert jnp.isfinite(value)
    assert jnp.isfinite(gradient).all()


FORMULAS = {
    "gelu": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_activations_equal_their_formulas_in_float64(name):
    points = np.linspace(-4, 4, 17)
    found = ACTIVATIONS[name](jnp.asarray(points, jnp.float32))
    np.testing.assert_allclose(found, FORMULAS[name](points), rtol=1e-6, atol=1e-6)


def branches(norms, feed_forward=lambda hidden: 3 * hidden):
    """Attention that doubles, a feed-forward layer and a norm that halves; `norms` gets its names."""

    def norm(name):
        norms.append(name.removesuffix("_norm"))
        return lambda hidden: hidden / 2

    return {
        "attention": lambda name: lambda hidden, *_, **__: 2 * hidden,
        "feed_forward": feed_forward and (lambda name: feed_forward),
        "norm": norm,
    }


SHARING = functools.partial(wirings.Parallel, share_norm=True)
DEEP = functools.partial(DeepNorm, depth=8)
TWO = ["attention", "feed_forward"]
FOUR = ["attention", "attention_out", "feed_forward", "feed_forward_out"]


@pytest.mark.parametrize(
    ("wiring", "expected", "of_memory", "norms", "final_norm"),
    [
        (PreNorm, (8 + 8) + 3 * 8, 16 + 2 * (16 / 2), TWO, True),
        (PostNorm, ((8 + 16) / 2) * 4 / 2, (12 + 2 * 12) / 2, TWO, False),
        (wirings.SandwichNorm, (8 + 4) + 3 * 6 / 2, 12 + 2 * (12 / 2) / 2, FOUR, True),
        (wirings.Parallel, 8 + 2 * 4 + 3 * 4, 8 + 2 * 4 + 2 * 4, TWO, True),
        (SHARING, 8 + 2 * 4 + 3 * 4, 8 + 2 * 4 + 2 * 4, ["attention"], True),
        (wirings.NoResidual, 3 * (2 * 4) / 2, 2 * (8 / 2), TWO, True),
        (DEEP, (2 * ((2 * 8 + 16) / 2) + 3 * 16) / 2, (2 * 16 + 2 * 16) / 2, TWO, False),
    ],
)
def test_wirings_are_the_papers(wiring, expected, of_memory, norms, final_norm):
    """With f(x) = 2x, g(x) = 3x and a norm that halves, on the number 8, written out."""
    made, eight = [], jnp.full((1, 1), 8.0)
    block = wiring(**branches(made))
    hidden, carry = block.apply({}, eight, {}, Context())
    assert (hidden, carry, made) == (expected, {}, norms)
    assert block.final_norm == final_norm
    reading = wiring(**branches([], feed_forward=None))  # attention to a memory doubles too
    hidden, _ = reading.apply({}, eight, {}, Context(memory=jnp.ones((1, 1))))
    assert hidden == of_memory


def plain_branch(attention, **fields):
    """Attention alone, without a norm."""
    return {
        "attention": lambda name: lambda hidden, **_: attention(hidden),
        "feed_forward": None,
        "norm": lambda name: lambda hidden: hidden,
    } | fields


@pytest.mark.parametrize(
    ("wiring", "shape", "start", "expected"),
    [(ReZero, (1,), 0.0, 1 + 0.5 * 2), (wirings.LayerScale, (2,), 0.1, 1 + 0.5 * 2 * 0.5)],
)
def test_wirings_with_learned_gains(wiring, shape, start, expected):
    """f(x) = 2x, a norm that halves, on ones; the gain starts as the paper's and is then 1/2."""
    block, inputs = wiring(**branches([], feed_forward=None)), jnp.ones((1, 2))
    params = block.init(jax.random.key(0), inputs, {}, Context())["params"]
    assert params["attention_gain"]["gain"].tolist() == pytest.approx([start] * shape[0])
    halves = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.5), params)
    hidden, _ = block.apply({"params": halves}, inputs, {}, Context())
    np.testing.assert_allclose(hidden, expected)


@pytest.mark.parametrize(
    ("side", "alpha", "beta"),
    [
        ("", 16**0.25, 64**-0.25),
        ("encoder", 0.81 * (8**4 * 8) ** (1 / 16), 0.87 * (8**4 * 8) ** (-1 / 16)),
        ("decoder", 24**0.25, 96**-0.25),
    ],
)
def test_deep_norm_has_the_papers_numbers_for_each_side(side, alpha, beta):
    """Wang et al. 2022, figure 2, with N = M = 8."""
    assert PreNorm.branch_gain(8, side) == 1
    assert DeepNorm.branch_gain(8, side) == pytest.approx(beta)
    block = DeepNorm(**plain_branch(jnp.zeros_like, depth=8, side=side))
    kept, _ = block.apply({}, jnp.ones((1, 3)), {}, Context())
    np.testing.assert_allclose(kept, alpha, rtol=1e-6)


def test_the_sides_of_an_encoder_decoder_know_which_they_are():
    types = {"layers": "L", "layer_types": {"L": {"mlp_dim": 8}}}
    sizes = {"vocab_size": 5, "max_length": 4, "width": 8, "depth": 4, "num_heads": 2}
    model = EncoderDecoder.of(**sizes, wiring="deep_norm", initialisation="normal", **types)
    tokens = jnp.zeros((1, 4), jnp.int32)
    params = model.init(jax.random.key(0), tokens, tokens)["params"]
    for side, beta in (("encoder", 0.87 * 4 ** (-5 / 16)), ("decoder", 48**-0.25)):
        kernels = [params[side][f"block_{n}"]["feed_forward"]["up"]["kernel"] for n in range(4)]
        assert np.std(kernels) == pytest.approx(0.02 * beta, rel=0.15)


def test_whole_branches_are_left_out_by_example_and_kept_in_the_mean():
    """A quarter of 4,000 examples lose their branch; the others' grow by 4/3."""
    block = PreNorm(**plain_branch(jnp.ones_like, stochastic_depth=0.25))
    inputs, rngs = jnp.zeros((4000, 3, 2)), {"dropout": jax.random.key(0)}
    out, _ = block.apply({}, inputs, {}, Context(train=True), rngs=rngs)
    np.testing.assert_array_equal(out, jnp.broadcast_to(out[:, :1, :1], out.shape))
    assert {round(float(v), 4) for v in jnp.unique(out)} == {0.0, 1.3333}
    assert float((out[:, 0, 0] == 0).mean()) == pytest.approx(0.25, abs=0.03)
    np.testing.assert_array_equal(block.apply({}, inputs, {}, Context())[0], jnp.ones_like(inputs))


def test_earlier_blocks_leave_out_proportionally_fewer_branches():
    """Huang et al. 2016, equation 4: block n of N leaves out n / N of what the last does."""
    block = PreNorm(**plain_branch(jnp.ones_like, stochastic_depth=0.5, depth=4))
    for layer, share in enumerate([0.125, 0.25, 0.375, 0.5]):
        context, rngs = Context(layer=layer, train=True), {"dropout": jax.random.key(1)}
        out, _ = block.apply({}, jnp.zeros((4000, 1, 1)), {}, context, rngs=rngs)
        assert float((out == 0).mean()) == pytest.approx(share, abs=0.03)


def test_sinusoids_equal_the_papers_formula_in_float64():
    table = sinusoidal_positions(9, 6)
    assert table.dtype == jnp.float32
    for i in range(9):
        for k in range(3):
            angle = i / 10_000 ** (2 * k / 6)
            np.testing.assert_allclose(table[i, 2 * k], math.sin(angle), atol=1e-6)
            np.testing.assert_allclose(table[i, 2 * k + 1], math.cos(angle), atol=1e-6)


def test_sinusoids_in_halves_are_the_same_features_in_another_order():
    made = SinusoidalPositions(rms=0.5**0.5, in_halves=True)
    table = made.apply({}, jnp.arange(9), Sizes(width=6, max_length=9)).embedding
    wanted = sinusoidal_positions(9, 6)[:, jnp.array([0, 2, 4, 1, 3, 5])]
    np.testing.assert_allclose(table, wanted, atol=1e-6)


def test_c44_positions_to_8191_are_distinct():
    table = np.asarray(sinusoidal_positions(8192, 64), np.float64)
    assert len(np.unique(table, axis=0)) == 8192
    assert np.abs(table[:, 1] - np.cos(np.arange(8192.0))).max() < 1e-2


def test_learned_and_sinusoidal_start_at_the_same_rms():
    positions, sizes = jnp.arange(64), Sizes(width=128, max_length=64)
    for encoding, rms, tolerance in (
        (LearnedPositions(), 0.02, 0.03),
        (SinusoidalPositions(), 0.02, 0.03),
        (SinusoidalPositions(rms=0.5), 0.5, 1e-3),
    ):
        terms, _ = encoding.init_with_output(jax.random.key(0), positions, sizes)
        assert math.sqrt((terms.embedding**2).mean()) == pytest.approx(rms, rel=tolerance)


def test_rotary_equals_complex_multiplication(rng):
    inputs, positions = normal(rng, 4, 8), np.array([0, 1, 2, 105])
    terms = RotaryPositions().apply({}, jnp.asarray(positions), Sizes(width=8, head_dim=8))
    rotated = rotate(inputs[None], terms.rotation)[0]
    with pytest.raises(ValueError, match=r"rotation: expected at most \d angles"):
        rotate(inputs[None, ..., :2], terms.rotation)
    angles = positions[:, None] / 10_000 ** (np.arange(4) / 4)[None]
    numbers = np.asarray(inputs[:, :4]) + 1j * np.asarray(inputs[:, 4:])
    turned = numbers * np.exp(1j * angles)
    np.testing.assert_allclose(rotated, np.concatenate([turned.real, turned.imag], -1), atol=1e-5)


def test_alibi_slopes_as_numbers():
    """Press et al.'s code: 1/2, 1/4, ... for 8; for 6 those of 4, then every other one of 8."""
    terms = ALiBiPositions().apply({}, jnp.array([0, 1, 2, 5]), Sizes(width=16, num_heads=8))
    bias = terms.bias(jnp.zeros((8, 4, 2)), jnp.zeros((8, 4, 2)), None)
    np.testing.assert_allclose(-bias[:, 1, 0], [1 / 2**h for h in range(1, 9)], rtol=1e-6)
    np.testing.assert_allclose(bias[0, 3], [-2.5, -2.0, -1.5, 0.0])
    np.testing.assert_allclose(alibi_slopes(6), [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3])


def test_odd_sizes_are_refused():
    with pytest.raises(ValueError, match="width: sinusoids come in pairs"):
        sinusoidal_positions(4, 5)
    with pytest.raises(ValueError, match=r"head_dim: rotary .* got 3, which is 1\.0 of 3"):
        RotaryPositions().apply({}, jnp.arange(2), Sizes(width=3, head_dim=3))
    with pytest.raises(ValueError, match="num_buckets: expected 4 to 511"):
        T5Positions(num_buckets=2).init(jax.random.key(0), jnp.arange(2), Sizes(4, causal=False))


def test_looking_up_equals_a_one_hot_product(rng):
    table, tokens = normal(rng, 7, 4), jnp.array([[0, 6], [3, 3]])
    np.testing.assert_allclose(lookup(table, tokens), jax.nn.one_hot(tokens, 7) @ table, atol=1e-7)
    with pytest.raises(ValueError, match="tokens: expected integers, got float32"):
        TokenEmbedding(7, 4).init(jax.random.key(0), jnp.zeros(3))


@pytest.mark.parametrize("token", [-1, 7, 10_000])
def test_c53_tokens_outside_the_vocabulary_give_nan_and_not_a_neighbour(rng, token):
    assert jnp.isnan(lookup(normal(rng, 7, 4), jnp.array(token))).all()


def test_narrow_integers_index_a_table_with_more_rows_than_they_can_count(rng):
    table = normal(rng, 300, 4)
    np.testing.assert_array_equal(lookup(table, np.array([3, 127], np.int8)), table[3::124][:2])


def test_tied_output_is_the_transposed_table(rng):
    module, hidden = TokenEmbedding(vocab_size=7, width=4), normal(rng, 2, 3, 4)
    variables = module.init(jax.random.key(0), jnp.array([0]))
    logits = module.apply(variables, hidden, method="attend")
    table = variables["params"]["embedding"]
    np.testing.assert_allclose(logits, hidden @ table.T, atol=1e-6)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (jnp.zeros((4, 2)), "expected PositionTerms, got"),
        (PositionTerms(rotation=jnp.zeros((4, 2))), r"expected rotation=Rotation\(cos, sin\)"),
    ],
)
def test_positions_that_return_something_else_are_refused(terms, words):
    class Own(nn.Module):
        def __call__(self, positions, sizes):
            return terms

    model = Decoder.of(vocab_size=7, max_length=4, width=4, depth=1, num_heads=1, position=Own)
    with pytest.raises(ValueError, match=words):
        jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 4), jnp.int32))

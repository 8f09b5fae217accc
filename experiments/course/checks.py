"""Exact statements, worked numbers and errata.

Each check raises AssertionError if its statement is false; otherwise it returns an observation.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import (
    Decoder,
    Encoder,
    MultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention,
    sinusoidal_positions,
)
from transformer_jax.attention import attention_weights, masked_softmax
from transformer_jax.feedforward import FeedForward
from transformer_jax.linear import lookup
from transformer_jax.norms import LayerNorm
from transformer_jax.training.objectives import cross_entropy, sums_of
from transformer_jax.training.showcases import feed_back


def draw(*shape: int, seed: int = 0) -> jax.Array:
    """Returns standard normal numbers, which depend on shape and seed alone."""
    return jax.random.normal(jax.random.key(seed + math.prod(shape)), shape)


def randomised(model, *arguments, **inputs):
    """Returns a model's initial parameters plus noise, so that none is 0 or 1 by design."""
    params = jax.jit(model.init)(jax.random.key(0), *arguments, **inputs)
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [
        leaf + 0.3 * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(treedef, drawn)


def apart_by(one, other) -> float:
    """Returns the largest absolute difference between two arrays."""
    return float(jnp.abs(jnp.asarray(one) - jnp.asarray(other)).max())


def rounded(array, digits: int) -> str:
    """Returns a rounded array as text."""
    return str(np.round(np.asarray(array, float), digits).tolist())


def same(one, other, within: float = 2e-5) -> str:
    """Returns how close two arrays are, as text; raises AssertionError beyond `within`."""
    apart = apart_by(one, other)
    assert apart <= within, f"apart by {apart:.2g}"
    return f"equal to {apart:.1g}" if apart else "equal to the last bit"


def weights_are_a_distribution() -> str:
    """Rows sum to 1, and masked entries are 0."""
    query, key, mask = draw(3, 6, 8), draw(3, 6, 8, seed=1), causal_mask(6)
    weights = attention_weights(query, key, mask, draw(6, 6))
    assert (weights >= 0).all()
    assert (jnp.where(mask, 0, weights) == 0).all(), "a masked entry is not 0"
    apart = apart_by(weights.sum(-1), 1)
    assert apart < 1e-5, "rows do not sum to 1"
    nowhere = attention_weights(query, key, jnp.zeros((6, 6), bool))
    assert (nowhere == 0).all()
    return (
        f"rows sum to 1 within {apart:.0e}; masked entries are exactly 0, and so is a row that "
        "may attend to nothing"
    )


def heads_add_up() -> str:
    """Concat(Z^1 .. Z^H) W_O = sum over h of Z^h W_O^h."""
    inputs = draw(5, 12)
    attend = MultiHeadAttention(num_heads=3, use_bias=False)
    params = randomised(attend, inputs)
    kernels = {name: part["kernel"] for name, part in params["params"].items()}
    total = jnp.zeros_like(inputs)
    for head in range(3):
        own = slice(4 * head, 4 * head + 4)
        query, key, value = (inputs @ kernels[n][:, own] for n in ("query", "key", "value"))
        total += scaled_dot_product_attention(query, key, value) @ kernels["out"][own]
    return f"{same(attend.apply(params, inputs), total)}; W_O is {kernels['out'].shape}"


def no_scale_is_larger_queries() -> str:
    """softmax(Q K^T) = softmax((sqrt(d_k) Q) K^T / sqrt(d_k))."""
    query, key = draw(5, 64), draw(7, 64, seed=1)
    return same(attention_weights(query, key, scale=1.0), attention_weights(8 * query, key))


def an_encoder_is_equivariant() -> str:
    """f(P X) = P f(X) holds without positions; with them it does not."""
    tokens, order = jnp.arange(7)[None], jnp.array([3, 0, 6, 2, 5, 1, 4])
    sentence = ""
    for position in ("none", "sinusoidal"):
        model = Encoder.of(
            vocab_size=9,
            max_length=7,
            width=16,
            depth=1,
            num_heads=2,
            num_classes=0,
            position=position,
            position_options={} if position == "none" else {"rms": 1.0},
        )
        params, apply = randomised(model, tokens), jax.jit(model.apply)
        moved = apply(params, tokens[:, order])
        permuted = apply(params, tokens)[:, order]
        if position == "none":
            sentence = same(moved, permuted)
            assert apart_by(permuted, apply(params, tokens)) > 0.1, "invariant, not equivariant"
        else:
            assert apart_by(moved, permuted) > 0.1, "positions change nothing"
    return f"{sentence}: equivariant, not invariant; with sinusoidal positions it is neither"


def one_causal_layer_is_order_blind_at_its_end() -> str:
    """The last output of one layer ignores the order of earlier tokens; that of two does not."""
    tokens = jnp.array([[1, 2, 3, 4, 5]])
    shuffled = tokens[:, jnp.array([2, 0, 3, 1, 4])]
    seen = {}
    for depth in (1, 2):
        model = Decoder.of(
            vocab_size=9, max_length=5, width=16, depth=depth, num_heads=2, position="none"
        )
        params, apply = randomised(model, tokens), jax.jit(model.apply)
        seen[depth] = apart_by(apply(params, tokens)[0, -1], apply(params, shuffled)[0, -1])
    assert seen[1] < 2e-5 < 0.01 < seen[2], seen
    return f"the last logits move by {seen[1]:.1g} in one layer, by {seen[2]:.2g} in two"


def masked_and_one_at_a_time_agree() -> str:
    """Loss and gradients of one masked pass are those of L passes over growing prefixes."""
    tokens = jax.random.randint(jax.random.key(0), (2, 5), 0, 9)
    model = Decoder.of(vocab_size=9, max_length=4, width=16, depth=1, num_heads=2)
    params = randomised(model, tokens[:, :-1])

    def at_once(params):
        logits = model.apply(params, tokens[:, :-1])
        return cross_entropy(logits, tokens[:, 1:]).sum()

    def one_at_a_time(params):
        lasts = [model.apply(params, tokens[:, : n + 1])[:, -1] for n in range(4)]
        return sum(cross_entropy(last, tokens[:, n + 1]).sum() for n, last in enumerate(lasts))

    loss, gradient = jax.jit(jax.value_and_grad(at_once))(params)
    slow_loss, slow_gradient = jax.jit(jax.value_and_grad(one_at_a_time))(params)
    same(loss, slow_loss, 1e-4)
    apart = max(
        apart_by(a, b)
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(slow_gradient), strict=True)
    )
    assert apart < 1e-4, apart
    return f"losses {float(loss):.4f} and {float(slow_loss):.4f}, gradients equal to {apart:.0e}"


def a_lookup_is_a_product() -> str:
    """E[t] = onehot(t) E."""
    table, tokens = draw(11, 6), jnp.array([3, 0, 10, 3])
    return same(lookup(table, tokens), jax.nn.one_hot(tokens, 11) @ table)


def norms_and_feed_forward() -> str:
    """Norms give mean 0 and deviation 1; feed-forward layers treat each position alone, alike."""
    inputs = 5 + 3 * draw(2, 6, 16)
    norm = LayerNorm(epsilon=1e-6)
    out = jnp.asarray(norm.apply(norm.init(jax.random.key(0), inputs), inputs))
    assert apart_by(out.mean(-1), 0) < 1e-5
    assert apart_by(out.std(-1), 1) < 1e-4
    layer = FeedForward(mlp_dim=32, activation=jax.nn.relu)
    params = randomised(layer, inputs)
    whole = jnp.asarray(layer.apply(params, inputs))
    order = jnp.array([5, 3, 1, 0, 2, 4])
    same(whole[:, order], layer.apply(params, inputs[:, order]))
    same(whole[:, 2], layer.apply(params, inputs[:, 2]))
    model = Decoder.of(vocab_size=9, max_length=5, width=16, depth=2, num_heads=2)
    drawn = randomised(model, jnp.zeros((1, 5), jnp.int32))["params"]
    kernels = [drawn[f"block_{n}"]["feed_forward"]["up"]["kernel"] for n in (0, 1)]
    assert apart_by(*kernels) > 0.01, "two layers share their weights"
    scores, mask = draw(4, 4), causal_mask(4)
    after = jnp.where(mask, jax.nn.softmax(scores), 0).sum(-1)
    before = masked_softmax(jnp.where(mask, scores, -jnp.inf)).sum(-1)
    assert apart_by(before, 1) < 1e-6
    assert after[0] < 0.9
    return (
        f"mean 0 and deviation 1; one position at a time gives the same; layers have weights of "
        f"their own; masked after the softmax the first row sums to {float(after[0]):.2f}"
    )


def sinusoids_shift_by_a_rotation() -> str:
    """p(i + D) = R(D) p(i), and p(i) . p(j) depends on i - j alone."""
    width, shift = 16, 5
    table = sinusoidal_positions(64, width)
    angles = shift / 10_000 ** (jnp.arange(0, width, 2) / width)
    sines, cosines = table[:, 0::2], table[:, 1::2]
    turned_sines = sines * jnp.cos(angles) + cosines * jnp.sin(angles)
    turned_cosines = cosines * jnp.cos(angles) - sines * jnp.sin(angles)
    turned = jnp.stack([turned_sines, turned_cosines], -1).reshape(64, width)
    error = same(turned[:-shift], table[shift:])
    products = np.asarray(table @ table.T)
    for distance in (0, 1, 7, 30):
        diagonal = np.diagonal(products, distance)
        assert np.ptp(diagonal) < 2e-5, "depends on more than the distance"
    broken = misprinted_sinusoids(64, width)
    spread = float(np.ptp(np.diagonal(np.asarray(broken @ broken.T), 7)))
    assert spread > 0.01, spread
    return f"{error}; of the misprinted table products at distance 7 range over {spread:.2f}"


def misprinted_sinusoids(length: int, width: int) -> jax.Array:
    """Returns the sinusoids of (i / 10000)^(2k / d), a misprint in circulating notes."""
    angles = (jnp.arange(length)[:, None] / 10_000) ** (jnp.arange(0, width, 2) / width)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(length, width)


def softmax_of_2_1_0() -> str:
    """The softmax of [2, 1, 0] is [0.665, 0.245, 0.090]."""
    weights = masked_softmax(jnp.array([2.0, 1.0, 0.0]))
    assert apart_by(weights, jnp.array([0.665, 0.245, 0.090])) < 5e-4
    return rounded(weights, 3)


def three_rotations() -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns queries, keys and values of X = I under rotations by -pi/4, pi/8 and 5 pi/16."""

    def turned(angle: float) -> jax.Array:
        return jnp.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])

    return turned(-math.pi / 4), turned(math.pi / 8), turned(5 * math.pi / 16)


def worked_example() -> str:
    """Attention = [[0.71960, -0.00685], [0.75307, 0.16142]]."""
    query, key, value = three_rotations()
    output = scaled_dot_product_attention(query, key, value)
    want = jnp.array([[0.71960, -0.00685], [0.75307, 0.16142]])
    assert apart_by(output, want) < 1e-5
    weights = attention_weights(query, key)[0]
    assert apart_by(weights, jnp.array([0.40548, 0.59452])) < 1e-5
    return f"{rounded(output, 5)}, weights of row 1 {rounded(weights, 5)}"


def guitar_string_melancholic_note() -> str:
    """Weights .005, .085 and .91 over three words of 300 features make one vector of 100."""
    inputs, want = draw(3, 300), jnp.array([0.005, 0.085, 0.91])
    value = inputs @ draw(300, 100, seed=1)
    # Keys have two features, and the query reads the first, so that its scores are the logarithms.
    key = jnp.stack([jnp.log(want), jnp.ones(3)], axis=-1)
    query = jnp.array([[math.sqrt(2), 0.0]])
    weights = attention_weights(query, key)[0]
    assert apart_by(weights, want) < 1e-5
    output = scaled_dot_product_attention(query, key, value)[0]
    assert output.shape == (100,)
    by_hand = 0.005 * value[0] + 0.085 * value[1] + 0.91 * value[2]
    assert apart_by(output, by_hand) < 1e-3
    return f"weights {rounded(weights, 3)}, a sum of three vectors of 100 features"


WORKED = {
    "weights .005, .085 and .91 of guitar, string and melancholic: y = .005 v1 + .085 v2 + .91 v3, "
    "300 features in, 100 out": guitar_string_melancholic_note,
    "softmax of [2, 1, 0] is [0.665, 0.245, 0.090]": softmax_of_2_1_0,
    "X = I, rotations by -pi/4, pi/8, 5 pi/16: attention is [[0.71960, -0.00685], "
    "[0.75307, 0.16142]]": worked_example,
}


class Erratum(NamedTuple):
    """A mistake, its correction, and a check that shows the difference (None: mere wording)."""

    circulates: str
    holds: str
    demonstrate: Callable[[], str] | None = None


def sinusoid_misprint() -> str:
    """Rows 0 and 1 hide the misprint, except for 0^0 in the first pair of row 0."""
    width = 64
    right, wrong = sinusoidal_positions(64, width), misprinted_sinusoids(64, width)
    first = max(apart_by(right[0, 2:], wrong[0, 2:]), apart_by(right[1], wrong[1]))
    assert first < 1e-6, first
    later = apart_by(right[2:], wrong[2:])
    assert later > 0.5, later

    return f"rows 0 and 1 agree to {first:.0e} (but for 0^0), later ones differ by {later:.2f}"


def free_running_is_no_masked_pass() -> str:
    """A loop over the model's own predictions gives a different loss from the masked pass."""
    tokens = jax.random.randint(jax.random.key(0), (2, 7), 0, 9)
    model = Decoder.of(vocab_size=9, max_length=6, width=16, depth=2, num_heads=2)
    params = randomised(model, tokens[:, :-1])
    logits_of = jax.jit(functools.partial(model.apply, params))

    def loss_of(inputs: jax.Array) -> float:
        losses = cross_entropy(logits_of(inputs), tokens[:, 1:])
        return float(losses.mean())

    own = feed_back(logits_of, tokens[:, :-1], jnp.arange(6) > jnp.zeros((2, 1), int))
    masked, free = loss_of(tokens[:, :-1]), loss_of(own)
    assert abs(masked - free) > 0.01
    return f"masked pass {masked:.3f} nats, fed with its own predictions {free:.3f}"


def masked_logits_still_cost() -> str:
    """Logits of 0 are a uniform guess, which costs ln V at each position."""
    logits, targets = draw(1, 4, 50), jnp.array([[3, 7, 0, 0]])
    is_token = jnp.array([[1.0, 1, 0, 0]])
    times = cross_entropy(logits * is_token[..., None], targets)[0]
    weighted = sums_of(cross_entropy, logits, targets, is_token).loss[0]
    assert abs(float(times[2]) - math.log(50)) < 1e-5
    same(weighted, cross_entropy(logits, targets)[0, :2].sum(), 1e-5)
    return f"a padded place costs {float(times[2]):.3f} = ln 50 with masked logits, 0 with weights"


ERRATA = (
    Erratum(
        "p[i, 2k] = sin((i / 10000)^(2k/d))",
        "p[i, 2k] = sin(i / 10000^(2k/d)); rows 0 and 1 do not tell them apart, so look at i >= 2",
        sinusoid_misprint,
    ),
    Erratum(
        "in the worked example -0.007 is called row 2, and V^(1) said to reach row 2 less than "
        "row 1",
        "-0.007 is row 1, column 2; column 1 is 0.753 in row 2 and 0.720 in row 1",
        worked_example,
    ),
    Erratum(
        "attention is permutation-invariant",
        "equivariant: outputs move with their inputs",
        an_encoder_is_equivariant,
    ),
    Erratum(
        "without positions a transformer sees a bag of words",
        "false under a causal mask from two layers on",
        one_causal_layer_is_order_blind_at_its_end,
    ),
    Erratum(
        "W_O^T = [W_O^(1) ... W_O^(H)], W_O in R^(d x H d_k)",
        "W_O is the vertical stack of the heads' matrices, [H d_v, d]; without it a head's output "
        "does not have the width of the residual",
        heads_add_up,
    ),
    Erratum(
        "pseudo-code feeds predictions back, and the mask is said to make that parallel",
        "only the loop over the true tokens (teacher forcing) equals the masked pass",
        free_running_is_no_masked_pass,
    ),
    Erratum(
        "padding is handled by multiplying logits with a mask",
        "that still costs ln V a padded place; weights belong on the loss",
        masked_logits_still_cost,
    ),
    Erratum(
        "W_Q x with W_Q of [300, 100] and x of 300 features",
        "x W_Q, or W_Q^T x",
    ),
    Erratum(
        "positions from 1, k up to d",
        "positions from 0, k up to d/2 - 1: d features are d/2 pairs of sine and cosine",
    ),
    Erratum("TF-IDF is a token vector", "it weighs a document's terms: one number a term"),
)

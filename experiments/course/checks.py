"""The exact statements and the worked numbers: each check raises, or tells what it saw."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax import (
    Decoder,
    Encoder,
    EncoderDecoder,
    MultiHeadAttention,
    causal_mask,
    scaled_dot_product_attention,
    sinusoidal_positions,
)
from transformer_jax.inspection import attention_entropy, gradient_by_layer, gradient_through_time
from transformer_jax.layers.attention import attention_weights
from transformer_jax.layers.embeddings import lookup
from transformer_jax.layers.feedforward import FeedForward
from transformer_jax.layers.norms import LayerNorm
from transformer_jax.layers.weights import masked_softmax
from transformer_jax.models import RecurrentDecoder
from transformer_jax.training.losses import cross_entropy


class NotInstalled(Exception):
    """A check needs weights that are not here."""


def draw(*shape: int, seed: int = 0) -> jax.Array:
    """Normal numbers, always the same for a shape and a seed."""
    return jax.random.normal(jax.random.key(seed + math.prod(shape)), shape)


def randomised(model, *arguments, **inputs):
    """Parameters of which none is 0 or 1 by design."""
    params = jax.jit(model.init)(jax.random.key(0), *arguments, **inputs)
    leaves, treedef = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [
        leaf + 0.3 * jax.random.normal(key, leaf.shape)
        for leaf, key in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(treedef, drawn)


def apart_by(one, other) -> float:
    """The largest difference of two arrays."""
    return float(jnp.abs(jnp.asarray(one) - jnp.asarray(other)).max())


def rounded(array, digits: int) -> str:
    """An array as text."""
    return str(np.round(np.asarray(array, float), digits).tolist())


def same(one, other, within: float = 2e-5) -> str:
    """Says how equal two arrays are, or raises."""
    apart = apart_by(one, other)
    assert apart <= within, f"apart by {apart:.2g}"
    return f"equal to {apart:.1g}" if apart else "equal to the last bit"


# ---------------------------------------------------------------- attention


def weights_are_a_distribution() -> str:
    """Of all rows that sum to 1 by their definition."""
    query, key, mask = draw(3, 6, 8), draw(3, 6, 8, seed=1), causal_mask(6)
    sums = []
    for name, options in {
        "plain": {},
        "soft cap": {"soft_cap": 2.0},
        "scale 1": {"scale": 1},
    }.items():
        weights = attention_weights(query, key, mask, draw(6, 6), **options)
        assert (weights >= 0).all()
        assert (jnp.where(mask, 0, weights) == 0).all(), "a masked entry is not 0"
        apart = apart_by(weights.sum(-1), 1)
        assert apart < 1e-5, f"{name}: rows do not sum to 1"
        sums.append(f"{name} {apart:.0e}")
    nowhere = attention_weights(query, key, jnp.zeros((6, 6), bool))
    assert (nowhere == 0).all()
    told = f"rows sum to 1 within: {', '.join(sums)}; masked entries are exactly 0"
    return f"{told}, and so is a row that may attend to nothing"


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


def softmax_saturates_without_the_scale() -> str:
    """Entropy of the weights of random queries and keys by d_k, with the scale and without it."""
    largest = {}
    for size in (16, 64, 256):
        query, key = draw(64, size), draw(64, size, seed=1)
        pair = (attention_weights(query, key), attention_weights(query, key, scale=1.0))
        largest[size] = [float(attention_entropy(weights).mean()) for weights in pair]
    scaled, unscaled = zip(*largest.values(), strict=True)
    assert max(scaled) - min(scaled) < 0.2, scaled
    assert unscaled[0] > unscaled[1] > unscaled[2], unscaled
    assert unscaled[2] < 0.2 * scaled[2], largest
    return "entropy in nats with the scale and without: " + ", ".join(
        f"{with_it:.2f} and {without:.2f} at d_k {size}"
        for size, (with_it, without) in largest.items()
    )


def words_are_contextual_in_real_weights() -> str:
    """Two vectors of a word are less alike after the blocks than before them, in MiniLM."""
    from experiments.course.contextual import INSTALLED, similarities

    if not INSTALLED.exists():
        raise NotInstalled("MiniLM's weights are not here: make minilm")
    sentences = []
    for word, _, cosines in similarities(INSTALLED):
        assert cosines[-1] < cosines[0], (word, cosines)
        sentences.append(f"{word} {cosines[0]:.2f} and {cosines[-1]:.2f}")
    return f"cosines before the blocks and after them, in MiniLM: {', '.join(sentences)}"


def an_encoder_is_equivariant() -> str:
    """f(P X) = P f(X), without positions; with them it does not hold."""
    tokens, order = jnp.arange(7)[None], jnp.array([3, 0, 6, 2, 5, 1, 4])
    sentence = ""
    for position in ("none", "sinusoidal"):
        model = Encoder(
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
        kept = apply(params, tokens)[:, order]
        if position == "none":
            sentence = same(moved, kept)
            assert apart_by(kept, apply(params, tokens)) > 0.1, "invariant, not equivariant"
        else:
            assert apart_by(moved, kept) > 0.1, "positions change nothing"
    return f"{sentence}: equivariant, not invariant; with sinusoidal positions it is neither"


def one_causal_layer_is_order_blind_at_its_end() -> str:
    """The last output of one layer sees a set; a second layer sees what the first made of it."""
    tokens = jnp.array([[1, 2, 3, 4, 5]])
    shuffled = tokens[:, jnp.array([2, 0, 3, 1, 4])]
    seen = {}
    for depth in (1, 2):
        model = Decoder(
            vocab_size=9, max_length=5, width=16, depth=depth, num_heads=2, position="none"
        )
        params, apply = randomised(model, tokens), jax.jit(model.apply)
        seen[depth] = apart_by(apply(params, tokens)[0, -1], apply(params, shuffled)[0, -1])
    assert seen[1] < 2e-5 < 0.01 < seen[2], seen
    return f"the last logits move by {seen[1]:.1g} in one layer, by {seen[2]:.2g} in two"


def the_source_comes_in_by_cross_attention() -> str:
    """Another source gives other logits, and the same ones without cross-attention."""
    tokens, moved = jnp.array([[1, 2, 3]]), {}
    sources = jnp.array([[[4, 5, 6, 7]], [[8, 3, 5, 4]]])
    for has_it in (True, False):
        model = EncoderDecoder(
            vocab_size=9, max_length=4, width=16, depth=1, num_heads=2, cross_attention=has_it
        )
        params, apply = randomised(model, sources[0], tokens), jax.jit(model.apply)
        moved[has_it] = apart_by(*(apply(params, source, tokens) for source in sources))
    assert moved[False] == 0 < 0.1 < moved[True], moved
    return f"another source moves the logits by {moved[True]:.2f}, without cross-attention by 0"


def masked_and_one_at_a_time_agree() -> str:
    """Loss and gradients of one masked pass are those of L passes over growing prefixes."""
    tokens = jax.random.randint(jax.random.key(0), (2, 5), 0, 9)
    model = Decoder(vocab_size=9, max_length=4, width=16, depth=1, num_heads=2)
    params = randomised(model, tokens[:, :-1])
    ones = jnp.ones(2)

    def at_once(params):
        logits = model.apply(params, tokens[:, :-1])
        return cross_entropy(logits, tokens[:, 1:], jnp.ones((2, 4))).sum()

    def one_at_a_time(params):
        lasts = [model.apply(params, tokens[:, : n + 1])[:, -1] for n in range(4)]
        return sum(
            cross_entropy(last, tokens[:, n + 1], ones).sum() for n, last in enumerate(lasts)
        )

    loss, gradient = jax.jit(jax.value_and_grad(at_once))(params)
    slow_loss, slow_gradient = jax.jit(jax.value_and_grad(one_at_a_time))(params)
    same(loss, slow_loss, 1e-4)
    apart = max(
        apart_by(a, b)
        for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(slow_gradient), strict=True)
    )
    assert apart < 1e-4, apart
    return f"losses {float(loss):.4f} and {float(slow_loss):.4f}, gradients equal to {apart:.0e}"


# ---------------------------------------------------------------- the other parts


def a_lookup_is_a_product() -> str:
    """E[t] = onehot(t) E."""
    table, tokens = draw(11, 6), jnp.array([3, 0, 10, 3])
    return same(lookup(table, tokens), jax.nn.one_hot(tokens, 11) @ table)


def norms_and_feed_forward() -> str:
    """Mean 0 and deviation 1; each position alone, the same weights at all positions."""
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
    model = Decoder(vocab_size=9, max_length=5, width=16, depth=2, num_heads=2)
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


# ---------------------------------------------------------------- gradients, at the start


def either_carries_gradients() -> str:
    """Gradient at the input of eight blocks over that at their output, at the start."""
    tokens = jax.random.randint(jax.random.key(0), (4, 16), 0, 65)
    left = {}
    for name, options in _EIGHT_LAYERS.items():
        model = Decoder(
            vocab_size=65, max_length=16, width=32, depth=8, num_heads=2, init_std=0.06, **options
        )
        params = jax.jit(model.init)(jax.random.key(1), tokens)["params"]
        look = functools.partial(gradient_by_layer, model, inputs={"tokens": tokens})
        norms = jax.jit(functools.partial(look, loss=lambda logits: logits[..., 0].sum()))(params)
        left[name] = float(norms[0] / norms[-1])
    *some, neither = left.values()
    assert neither < 0.01 * min(some), left
    assert min(some) > 0.1, left
    shares = "; ".join(f"{name} {share:.2g}" for name, share in left.items())
    return f"gradient at the blocks' input over that at their output: {shares}"


_EIGHT_LAYERS: dict[str, dict[str, Any]] = {
    "residual and norm": {},
    "residual alone": {"norm": "none"},
    "norm alone": {"wiring": "no_residual"},
    "neither": {"wiring": "no_residual", "norm": "none"},
}


def gradients_through_time() -> str:
    """How much the first of 32 inputs moves the last output, beside the last one, at the start.

    Gates that are half open, as they are where their biases start at 0, forget; the tanh net starts
    with an orthogonal matrix, which does not.
    """
    tokens = jax.random.randint(jax.random.key(0), (8, 32), 0, 20)
    sizes: dict[str, Any] = {"vocab_size": 20, "max_length": 32, "width": 32}
    models = {
        "transformer": Decoder(**sizes, depth=2, num_heads=2, position="none"),
        **{
            name: RecurrentDecoder(**sizes, depth=1, cell=cell)
            for name, cell in {"LSTM": "lstm", "GRU": "gru", "tanh net": "rnn"}.items()
        },
    }
    left = {}
    for name, model in models.items():
        params = jax.jit(model.init)(jax.random.key(1), tokens)["params"]
        norms = jax.jit(functools.partial(gradient_through_time, model))(
            params, tokens, tokens[:, 0]
        )
        left[name] = float(norms[0] / norms[-1])
    assert left["LSTM"] < 0.01, left
    assert left["transformer"] > 10 * max(left["LSTM"], left["GRU"]), left
    return "first input's gradient over the last's: " + ", ".join(
        f"{name} {share:.1g}" for name, share in left.items()
    )


def misprinted_sinusoids(length: int, width: int) -> jax.Array:
    """The table of (i / 10000)^(2k / d), as notes in circulation print it."""
    angles = (jnp.arange(length)[:, None] / 10_000) ** (jnp.arange(0, width, 2) / width)
    return jnp.stack([jnp.sin(angles), jnp.cos(angles)], -1).reshape(length, width)


# ---------------------------------------------------------------- worked numbers


def softmax_of_2_1_0() -> str:
    """[0.665, 0.245, 0.090]."""
    weights = masked_softmax(jnp.array([2.0, 1.0, 0.0]))
    assert apart_by(weights, jnp.array([0.665, 0.245, 0.090])) < 5e-4
    return rounded(weights, 3)


def three_rotations() -> tuple[jax.Array, jax.Array, jax.Array]:
    """Queries, keys and values of X = I under rotations by -pi/4, pi/8 and 5 pi/16."""

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
    # Of two features each, of which the query reads the first: its scores are the logarithms.
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

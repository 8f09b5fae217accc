"""Slips in notes that circulate, each with what holds and a demonstration of the difference."""

import dataclasses
import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from experiments.course.checks import (
    an_encoder_is_equivariant,
    apart_by,
    draw,
    heads_add_up,
    misprinted_sinusoids,
    one_causal_layer_is_order_blind_at_its_end,
    randomised,
    three_rotations,
)
from transformer_jax import Decoder, sinusoidal_positions
from transformer_jax.generation import feed_back
from transformer_jax.layers.attention import attention_weights
from transformer_jax.training.losses import cross_entropy


@dataclasses.dataclass(frozen=True)
class Erratum:
    """One slip.

    Attributes:
      circulates: what notes say.
      holds: what is right.
      demonstrate: raises AssertionError, or returns what was seen; None where words are at fault.
    """

    circulates: str
    holds: str
    demonstrate: Callable[[], str] | None = None


def sinusoid_misprint() -> str:
    """Rows 0 and 1 hide it, but for 0^0 in the first pair of row 0."""
    width = 64
    right, wrong = sinusoidal_positions(64, width), misprinted_sinusoids(64, width)
    first = max(apart_by(right[0, 2:], wrong[0, 2:]), apart_by(right[1], wrong[1]))
    assert first < 1e-6, first
    later = apart_by(right[2:], wrong[2:])
    assert later > 0.5, later

    def steps(table: jax.Array) -> jax.Array:
        return jnp.linalg.norm(table[2:] - table[1:-1], axis=-1)

    assert steps(wrong).max() < 0.1 * steps(right).min()
    return (
        f"rows 0 and 1 agree to {first:.0e} (but for 0^0), later ones differ by up to {later:.2f}; "
        f"neighbours are {float(steps(right).min()):.2f} apart in the right table, at most "
        f"{float(steps(wrong).max()):.2f} in the other"
    )


def worked_example_cells() -> str:
    """Row 1, column 2; and which row a value reaches more of."""
    query, key, value = three_rotations()
    weights = attention_weights(query, key)
    output = weights @ value
    assert abs(float(output[0, 1]) + 0.00685) < 1e-5
    assert float(output[1, 0]) > float(output[0, 0])
    return (
        f"row 1, column 2 is {float(output[0, 1]):.5f}; column 1 is {float(output[0, 0]):.3f} in "
        f"row 1 and {float(output[1, 0]):.3f} in row 2"
    )


def free_running_is_no_masked_pass() -> str:
    """The loop over one's own predictions gives another loss than the masked pass."""
    tokens = jax.random.randint(jax.random.key(0), (2, 7), 0, 9)
    model = Decoder(vocab_size=9, max_length=6, width=16, depth=2, num_heads=2)
    params = randomised(model, tokens[:, :-1])
    logits_of = jax.jit(functools.partial(model.apply, params))

    def loss_of(inputs: jax.Array) -> float:
        losses = cross_entropy(logits_of(inputs), tokens[:, 1:], jnp.ones((2, 6)))
        return float(losses.mean())

    own = feed_back(logits_of, tokens[:, :-1], jnp.arange(6) > jnp.zeros((2, 1), int))
    masked, free = loss_of(tokens[:, :-1]), loss_of(own)
    assert abs(masked - free) > 0.01
    return f"masked pass {masked:.3f} nats, fed with its own predictions {free:.3f}"


def masked_logits_still_cost() -> str:
    """Logits of 0 are a uniform guess: ln V a place."""
    logits, targets = draw(1, 4, 50), jnp.array([[3, 7, 0, 0]])
    is_token = jnp.array([[1.0, 1, 0, 0]])
    times = cross_entropy(logits * is_token[..., None], targets, jnp.ones((1, 4)))[0]
    weighted = cross_entropy(logits, targets, is_token)[0]
    assert abs(float(times[2]) - math.log(50)) < 1e-5
    assert float(weighted[2]) == 0
    return f"a padded place costs {float(times[2]):.3f} = ln 50 with masked logits, 0 with weights"


def query_needs_a_transpose() -> str:
    """X of 300 features, W_Q of [300, 100]."""
    x, w_query = draw(300), draw(300, 100)
    assert (x @ w_query).shape == (100,)
    assert apart_by(x @ w_query, w_query.T @ x) < 1e-4
    try:
        _ = w_query @ x
    except TypeError:
        return "x W_Q and W_Q^T x give 100 features; W_Q x is refused"
    raise AssertionError("a [300, 100] matrix took a vector of 300")


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
        worked_example_cells,
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
        "has not the width of the residual",
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
        query_needs_a_transpose,
    ),
    Erratum(
        "positions from 1, k up to d",
        "positions from 0, k up to d/2 - 1: d features are d/2 pairs of sine and cosine",
    ),
    Erratum("TF-IDF is a token vector", "it weighs a document's terms: one number a term"),
)

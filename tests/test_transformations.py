"""The gradient of every module; that it agrees with itself under jit and vmap is a law of rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import random_params
from transformer_jax import MultiHeadAttention, causal_mask
from transformer_jax.blocks import Context, PreNorm
from transformer_jax.feedforward import FeedForward
from transformer_jax.linear import Linear, TokenEmbedding
from transformer_jax.norms import NORMS, LayerNorm
from transformer_jax.options import entry_of

VECTORS = jax.random.normal(jax.random.key(7), (3, 4, 8))
TOKENS = jax.random.randint(jax.random.key(8), (3, 4), 0, 11)
ATTENTION = functools.partial(MultiHeadAttention, num_heads=2)
MODULES = {
    "linear": (Linear(5), VECTORS, {}),
    "attention": (ATTENTION(), VECTORS, {"mask": causal_mask(4)}),
    "feed_forward": (FeedForward(mlp_dim=6), VECTORS, {}),
    "block": (PreNorm(ATTENTION, FeedForward, LayerNorm), VECTORS, {}),
    "token_embedding": (TokenEmbedding(11, 8), TOKENS, {}),
    **{name: (entry_of(NORMS, name)(), VECTORS, {}) for name in NORMS if name != "none"},
}


@pytest.fixture(params=MODULES)
def case(request):
    module, inputs, options = MODULES[request.param]
    more = ({}, Context(mask=causal_mask(4))) if isinstance(module, PreNorm) else ()
    params = random_params(module, inputs, *more, scale=0.2, **options)
    apply = lambda params, inputs: jax.tree.leaves(
        module.apply({"params": params}, inputs, *more, **options)
    )[0]
    return apply, params, inputs


def test_the_gradient_is_the_slope(case):
    """Against a central difference along a random direction, in float64."""
    apply, params, inputs = case
    with jax.enable_x64(True):
        wide = lambda leaf: jnp.asarray(leaf, jnp.float64)
        params, rng = jax.tree.map(wide, params), np.random.default_rng(0)
        inputs = wide(inputs) if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs
        loss = jax.jit(lambda params: jnp.sin(apply(params, inputs)).sum())
        direction = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), params)
        at = lambda t: loss(jax.tree.map(lambda leaf, d: leaf + t * d, params, direction))
        products = jax.tree.map(jnp.vdot, jax.grad(loss)(params), direction)
        slope = (at(1e-5) - at(-1e-5)) / 2e-5
        expected = pytest.approx(float(slope), rel=1e-6, abs=1e-8)
        assert float(sum(jax.tree.leaves(products))) == expected

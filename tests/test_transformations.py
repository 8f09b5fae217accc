"""The gradient of every module; that it agrees with itself under jit and vmap is a law of rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

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
    variables = {"params": module.init(jax.random.key(0), inputs, *more, **options)["params"]}
    leaves, treedef = jax.tree.flatten(variables)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    noisy = [
        leaf + 0.1 * jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)
    ]
    apply = lambda variables, inputs: jax.tree.leaves(
        module.apply(variables, inputs, *more, **options)
    )[0]
    return apply, jax.tree.unflatten(treedef, noisy), inputs


def test_the_gradient_is_the_slope(case):
    """Against a central difference along a random direction, in float64."""
    apply, variables, inputs = case
    with jax.enable_x64(True):
        wide = lambda leaf: jnp.asarray(leaf, jnp.float64)
        variables = jax.tree.map(wide, variables)
        inputs = wide(inputs) if jnp.issubdtype(inputs.dtype, jnp.floating) else inputs
        loss = lambda variables: jnp.sin(apply(variables, inputs)).sum()
        leaves, treedef = jax.tree.flatten(variables)
        rng = np.random.default_rng(0)
        direction = jax.tree.unflatten(
            treedef, [jnp.asarray(rng.normal(size=l.shape)) for l in leaves]
        )
        at = lambda t: loss(jax.tree.map(lambda leaf, d: leaf + t * d, variables, direction))
        products = jax.tree.map(jnp.vdot, jax.grad(loss)(variables), direction)
        slope = sum(jax.tree.leaves(products))
        assert float(slope) == pytest.approx(
            float((at(1e-5) - at(-1e-5)) / 2e-5), rel=1e-6, abs=1e-8
        )

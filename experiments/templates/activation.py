"""A component of my own: a function inside the feed-forward layer."""

import jax.numpy as jnp


def mine(inputs):
    """X for x > 0 and 0.1 tanh(x) below."""
    return jnp.where(inputs > 0, inputs, 0.1 * jnp.tanh(inputs))

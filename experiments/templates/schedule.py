"""A component of my own: how the learning rate moves."""

import jax.numpy as jnp

from transformer_jax.options import Natural


def mine(peak, steps, warmup_steps: Natural = 10):
    """Warm-up, then the root of what is left: the rate of the update that follows `count`."""

    def rate(count):
        left = jnp.sqrt(jnp.maximum(1 - count / steps, 0))
        return peak * jnp.minimum((count + 1) / max(warmup_steps, 1), left)

    return rate

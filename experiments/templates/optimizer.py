"""A component of my own: an optimizer."""

import optax

from transformer_jax.options import Share


def mine(parts, b1: Share = 0.9, b2: Share = 0.99):
    """AMSGrad; parts.decay adds weight decay, and parts.rate turns the result into updates."""
    return optax.chain(optax.scale_by_amsgrad(b1, b2), parts.decay, parts.rate)

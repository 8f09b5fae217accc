"""A component of my own: an optimizer."""

import optax

from transformer_jax.options import Share


def mine(parts, b1: Share = 0.9, b2: Share = 0.99):
    """Returns AMSGrad with weight decay, parts.decay, and the learning rate, parts.rate."""
    return optax.chain(optax.scale_by_amsgrad(b1, b2), parts.decay, parts.rate)

"""A metric of my own, by which runs are scored."""

import jax

from transformer_jax import metric

_BEST = 3


@metric("share of targets", larger_is_better=True)
def mine(logits, targets, weights):
    """Share of the targets that are among the three likeliest tokens, as a sum per example, [B].

    Args:
      logits: [B, ..., V]; arguments of one batch; transformer_jax/metrics.py lists others.
      targets: [B, ...].
      weights: [B, ...], 0 at targets that are not scored.
    """
    likeliest = jax.lax.top_k(logits, _BEST)[1]
    is_among = (likeliest == targets[..., None]).any(-1)
    return (is_among * weights).reshape(len(weights), -1).sum(-1)

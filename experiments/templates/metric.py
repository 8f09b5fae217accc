"""A metric of my own: what a run is measured by."""

import jax

from transformer_jax import metric

_BEST = 3


@metric("share of targets", larger_is_better=True)
def mine(logits, targets, weights):
    """Share of the targets among the three likeliest: sums of each example, [B].

    Args:
      logits: [B, ..., V]; these arguments are of a batch, transformer_jax/metrics.py has others.
      targets: [B, ...].
      weights: [B, ...], 0 where nothing is asked.
    """
    likeliest = jax.lax.top_k(logits, _BEST)[1]
    is_among = (likeliest == targets[..., None]).any(-1)
    return (is_among * weights).reshape(len(weights), -1).sum(-1)

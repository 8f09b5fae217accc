"""A metric of my own: a score of runs."""

import jax

from transformer_jax import metric

_BEST = 3


@metric("share of targets", larger_is_better=True)
def mine(logits, targets, weights):
    """Returns each example's weighted number of targets among the three likeliest tokens, [B].

    Args:
      logits: Logits for a batch, [B, ..., V]; transformer_jax/metrics.py lists other arguments.
      targets: Correct tokens or classes, [B, ...].
      weights: Weights of the targets, [B, ...]; 0 if a target is not scored.
    """
    likeliest = jax.lax.top_k(logits, _BEST)[1]
    is_among = (likeliest == targets[..., None]).any(-1)
    return (is_among * weights).reshape(len(weights), -1).sum(-1)

"""Cross-entropy and its sums: one division at the end, so that padding, accumulation and devices
average exactly. objectives.py has the training objectives.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array


def cross_entropy(logits: Array, targets: Array, weights: Array, smoothing: float = 0.0) -> Array:
    """Returns -weight * log softmax(logits)[target] for each target.

    With smoothing e the target distribution has 1 - e on the target and e spread over all V classes
    (Szegedy et al. 2016, arXiv:1512.00567, section 7).

    A position of weight 0 gives exactly 0, with zero gradient, whatever its logits and target. A
    target outside the vocabulary gives NaN (a library that wraps -1 gives a finite wrong loss).

    Args:
      logits: [..., V] float; computed in float32 or wider.
      targets: [...] int.
      weights: [...] float, 0 where nothing is scored.
      smoothing: The e above, in [0, 1).
    Returns:
      [...] nats.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    counts = weights > 0
    logits = jnp.where(counts[..., None], logits, 0)
    places = jnp.where(targets < 0, logits.shape[-1], targets)[..., None]
    chosen = jnp.take_along_axis(logits, places, axis=-1, mode="fill", fill_value=jnp.nan)
    of_targets = chosen[..., 0]
    if smoothing:
        of_targets = (1 - smoothing) * of_targets + smoothing * logits.mean(-1)
    losses = jax.nn.logsumexp(logits, axis=-1) - of_targets
    return jnp.where(counts, weights * losses, 0)


class Sums(NamedTuple):
    """Weighted sums over tokens; they add up over batches, then divide once.

    Attributes:
      loss: Loss in nats.
      correct: Weight of the targets that had the largest logit.
      weight: Weight of all targets.
    """

    loss: Array
    correct: Array
    weight: Array


def sums_of(logits: Array, targets: Array, weights: Array, smoothing: float = 0.0) -> Sums:
    """Returns the sums of each example.

    Args:
      logits: [B, ..., V].
      targets: [B, ...] int.
      weights: [B, ...] float.
      smoothing: Label smoothing, see cross_entropy.
    Returns:
      Sums of [B] each, float32 or wider.
    """
    losses = cross_entropy(logits, targets, weights, smoothing)
    correct = weights * (logits.argmax(-1) == targets)
    return Sums(by_example(losses), by_example(correct), by_example(weights))


def by_example(values: Array) -> Array:
    """Sums the values of each example: [B, ...] -> [B]."""
    return values.reshape(len(values), -1).sum(-1)


def total(sums: Sums) -> Sums:
    """Sums over the examples of a batch."""
    return jax.tree.map(jnp.sum, sums)


def safe_mean(value: Array, weight: Array) -> Array:
    """Returns value / weight, or 0 if there is no weight."""
    return value / jnp.where(weight == 0, 1, weight)

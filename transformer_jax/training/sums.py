"""Sums first, one division at the end: padding, accumulation and devices average exactly."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.training.losses import cross_entropy


class Sums(NamedTuple):
    """Weighted sums over tokens; they add up over batches, then divide once.

    Attributes:
      loss: nats.
      correct: weight of the targets that had the largest logit.
      weight: of all targets.
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
      smoothing: of the targets, see cross_entropy.
    Returns:
      Sums of [B] each, float32 or wider.
    """
    losses = cross_entropy(logits, targets, weights, smoothing)
    correct = weights * (logits.argmax(-1) == targets)
    return Sums(by_example(losses), by_example(correct), by_example(weights))


def by_example(values: Array) -> Array:
    """Adds up what belongs to each example: [B, ...] -> [B]."""
    return values.reshape(len(values), -1).sum(-1)


def total(sums: Sums) -> Sums:
    """Adds up the examples of a batch."""
    return jax.tree.map(jnp.sum, sums)


def safe_mean(value: Array, weight: Array) -> Array:
    """Returns value / weight, and 0 where there is no weight."""
    return value / jnp.where(weight == 0, 1, weight)

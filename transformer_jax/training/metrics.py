"""Sums first, one division at the end: padding, accumulation and devices average exactly."""

import math
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


def summary(
    loss: float, correct: float, weight: float, num_bytes: int | None = None
) -> dict[str, float]:
    """Returns the means that a reader wants, from sums over a whole split.

    Args:
      loss: nats, summed.
      correct: weight of the right guesses.
      weight: of all targets.
      num_bytes: UTF-8 bytes of all targets, if they are text.
    Returns:
      loss in nats per target, accuracy in [0, 1], and bits_per_byte of text.
    """
    means = {"loss": loss / weight, "accuracy": correct / weight}
    if num_bytes is not None:
        means["bits_per_byte"] = loss / math.log(2) / num_bytes
    return means

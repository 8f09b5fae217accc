"""Sums first, one division at the end: padding, accumulation and devices average exactly."""

import math
from typing import Any, NamedTuple, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.data.tasks import Batch
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


def sums_of(logits: Array, targets: Array, weights: Array) -> Sums:
    """Returns the sums of each example.

    Args:
      logits: [B, L, V].
      targets: [B, L] int.
      weights: [B, L] float.
    Returns:
      Sums of [B] each, float32 or wider.
    """
    losses = cross_entropy(logits, targets, weights)
    correct = weights * (logits.argmax(-1) == targets)
    return Sums(losses.sum(-1), correct.sum(-1), weights.sum(-1))


def score_batch(model: nn.Module, params: Any, batch: Batch, **options: Any) -> Sums:
    """Applies a model to a batch and returns the sums of each example.

    Args:
      model: takes the batch's inputs.
      params: of the model.
      batch: as data makes it.
      **options: further arguments of `model.apply`, such as train and rngs.
    """
    logits = cast(Array, model.apply({"params": params}, **batch["inputs"], **options))
    return sums_of(logits, batch["targets"], batch["weights"])


def total(sums: Sums) -> Sums:
    """Adds up the examples of a batch."""
    return jax.tree.map(jnp.sum, sums)


def safe_mean(value: Array, weight: Array) -> Array:
    """Returns value / weight, and 0 where there is no weight."""
    return value / jnp.where(weight == 0, 1, weight)


def summary(loss: float, correct: float, weight: float, num_bytes: int) -> dict[str, float]:
    """Returns the means that a reader wants, from sums over a whole split.

    Args:
      loss: nats, summed.
      correct: weight of the right guesses.
      weight: of all targets.
      num_bytes: UTF-8 bytes of all targets.
    Returns:
      loss in nats per token, accuracy in [0, 1], bits_per_byte.
    """
    return {
        "loss": loss / weight,
        "accuracy": correct / weight,
        "bits_per_byte": loss / math.log(2) / num_bytes,
    }

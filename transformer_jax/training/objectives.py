"""Training objectives: the entries of `objective.name`.

An objective is any object with a method `losses` like that of CrossEntropy. One whose loss is not a
weighted sum over targets has a method `sums(hidden, project, targets, weights, key)` instead, which
returns Sums: `project` maps any part of `hidden` [B, ..., D] to logits [..., V], and `key` is for
objectives that draw random numbers.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.data.tasks.batch import Batch
from transformer_jax.options import NonNegative, Share
from transformer_jax.paths import variables_of
from transformer_jax.shapes import as_int32, widen

RowLosses = Callable[[Array, Array], Array]
LARGE_VOCABULARY = 4096  # entries, and
MANY_LOGITS = 1 << 26  # logits of a batch (256 MiB), from which they are computed in chunks


def cross_entropy(logits: Array, targets: Array, smoothing: float = 0.0) -> Array:
    """Returns -log softmax(logits)[target] for each target.

    With smoothing e the target distribution has 1 - e on the target and e spread over all V classes
    (Szegedy et al. 2016, arXiv:1512.00567, section 7). A target outside the vocabulary gives NaN.

    Args:
      logits: [..., V] float; computed in float32 or wider.
      targets: [...] int.
      smoothing: The e above, in [0, 1).
    Returns:
      Losses [...] in nats.
    Raises:
      ValueError: The targets are no integers.
    """
    if not jnp.issubdtype(targets.dtype, jnp.integer):
        raise ValueError(f"targets: expected integers, got {targets.dtype}")
    logits, targets, classes = widen(logits), as_int32(targets), logits.shape[-1]
    # A sum over a row with one entry, since the derivative of take_along_axis is a scatter.
    is_target = targets[..., None] == jnp.arange(classes)
    of_targets = jnp.where(is_target, logits, 0).sum(-1)
    of_targets = jnp.where((targets >= 0) & (targets < classes), of_targets, jnp.nan)
    if not _is_zero(smoothing):
        of_targets = (1 - smoothing) * of_targets + smoothing * logits.mean(-1)
    return jax.nn.logsumexp(logits, axis=-1) - of_targets


def _is_zero(number: float | Array) -> bool:
    return isinstance(number, int | float) and number == 0  # an array is a traced schedule


class Sums(NamedTuple):
    """Weighted sums over targets, to be added up over batches and then divided once."""

    loss: Array  # in nats
    correct: Array  # weight of the targets that have the largest logit
    weight: Array  # weight of all targets


def sums_of(losses: RowLosses, logits: Array, targets: Array, weights: Array) -> Sums:
    """Returns the Sums of B examples as arrays [B], float32 or wider.

    A target of weight 0 adds exactly 0, with zero gradient, whatever its logits and its number.

    Args:
      losses: Function from logits [B, ..., V], float32 or wider, and targets to losses [B, ...].
      logits: [B, ..., V] float.
      targets: [B, ...] int.
      weights: [B, ...] float, 0 where nothing is scored.
    """
    counts = weights > 0
    logits = jnp.where(counts[..., None], widen(logits), 0)
    each = losses(logits, jnp.where(counts, targets, 0))
    correct = weights * (logits.argmax(-1) == targets)
    of_losses = by_example(jnp.where(counts, weights * each, 0))
    return Sums(of_losses, by_example(correct), by_example(weights))


def by_example(values: Array) -> Array:
    """Sums the values of each example: [B, ...] -> [B]."""
    return values.reshape(len(values), -1).sum(-1)


def total(sums: Sums) -> Sums:
    """Returns the totals of Sums [B] over all examples of a batch."""
    return jax.tree.map(jnp.sum, sums)


def safe_mean(value: Array, weight: Array) -> Array:
    """Returns value / weight, or `value` if the weight is 0, since a weighted sum is then 0."""
    return value / jnp.where(weight == 0, 1, weight)


@dataclasses.dataclass(frozen=True)
class CrossEntropy:
    """Cross-entropy: minus the logarithm of the target's probability.

    A z-loss, z (log sum of exp of the logits)^2, keeps logits near probabilities (Chowdhery et al.
    2022, arXiv:2204.02311, section 5).

    Attributes:
      smoothing: Fraction of the target's probability spread over all classes (Szegedy et al.
        2016, arXiv:1512.00567, section 7); only in the training loss.
      z_loss: Weight z of the z-loss; 1e-4 in the paper; only in the training loss.
    """

    smoothing: Share = 0.0
    z_loss: NonNegative = 0.0

    def losses(self, logits: Array, targets: Array) -> Array:
        """Returns the loss of each target in nats: [..., V] and [...] -> [...]."""
        losses = cross_entropy(logits, targets, self.smoothing)
        if _is_zero(self.z_loss):
            return losses
        return losses + self.z_loss * jnp.square(jax.nn.logsumexp(widen(logits), axis=-1))


def chunk_length(shape: tuple[int, int, int], chosen: int | None) -> int:
    """Returns the number of positions of a text whose logits exist at the same time.

    That is `chosen` if it is not None. Otherwise it is at most an eighth of the text if the
    vocabulary has LARGE_VOCABULARY entries or more and there are at least MANY_LOGITS, and else the
    whole text. Fewer logits are computed faster at once, by a fifth on a CPU.

    Args:
      shape: That of all logits, [B, L, V].
      chosen: The option training.loss_chunk.
    """
    _, length, vocab_size = shape
    if chosen is None:
        is_large = vocab_size >= LARGE_VOCABULARY and math.prod(shape) >= MANY_LOGITS
        chosen = max(1, length // 8) if is_large else length
    return min(chosen, length)


OBJECTIVES = {"cross_entropy": CrossEntropy}


class Score(NamedTuple):
    """Result of score_batch."""

    loss: Array  # sum of all weighted losses, which may be differentiated
    sums: Sums  # of each example, arrays [B], which may not
    added: Array  # sum of the values sown under `losses`, [B], 0 in most models
    state: Any = None  # the collection `state` after a training step, if the model has one


def score_batch(
    model: nn.Module,
    params: Any,
    batch: Batch,
    objective: Any = CrossEntropy(),
    key: Array | None = None,
    chunk: int | None = None,
    **options: Any,
) -> Score:
    """Returns a batch's total loss, the Sums of each example, and what layers add.

    Args:
      model: A model that takes the batch's inputs and `return_hidden`, and has a method `project`,
        as Decoder does; or a model without `project`, which returns logits.
      params: Its parameters, with its `state` if it has one; see paths.with_state.
      batch: A batch of a task.
      objective, key: A built-in or user-defined objective, and its PRNG key.
      chunk: Number of positions whose logits are computed at a time; see chunk_length.
      **options: Further arguments of `model.apply`, such as train and rngs.
    """
    variables = variables_of(params)
    project = None
    if hasattr(model, "project"):
        project = functools.partial(model.apply, variables, method="project")
        options["return_hidden"] = True
    mutable = ["losses", "ahead", "state"] if options.get("train") else ["losses"]
    hidden, sown = model.apply(variables, **batch["inputs"], **options, mutable=mutable)
    score = lambda hidden, batch: _scored(objective, project, hidden, batch, key, chunk)  # noqa: E731
    loss, sums = score(hidden, batch)
    if "ahead" in sown:
        from transformer_jax.variants.prediction_heads import loss_ahead

        loss += loss_ahead(sown["ahead"], batch, score)
    added = jnp.zeros_like(sums.loss)
    for leaf in jax.tree.leaves(sown.get("losses")):  # one from a scan has an axis of blocks
        added += leaf.sum(tuple(range(leaf.ndim - added.ndim)))
    return Score(loss, sums, added, sown.get("state"))


def _scored(
    objective: Any,
    project: Callable[[Array], Any] | None,
    hidden: Array,
    batch: Batch,
    key: Array | None,
    chunk: int | None,
) -> tuple[Array, Sums]:
    """Returns the total loss and the Sums of each example; without `project`, hidden is logits."""
    targets, weights = batch["targets"], batch["weights"]
    if weights.shape != targets.shape:
        raise ValueError(f"weights: expected shape {targets.shape}, got {weights.shape}")
    if hasattr(objective, "sums"):
        sums = objective.sums(hidden, project or (lambda logits: logits), targets, weights, key)
        return sums.loss.sum(), sums
    if project is not None and targets.ndim == 2:
        places = chunk_length(jax.eval_shape(project, hidden).shape, chunk)
        if places < targets.shape[1]:
            from transformer_jax.training.loss_in_chunks import sums_in_chunks

            score = functools.partial(sums_of, objective.losses)
            return sums_in_chunks(score, project, hidden, targets, weights, places)
    logits = hidden if project is None else project(hidden)
    sums = sums_of(objective.losses, logits, targets, weights)
    return sums.loss.sum(), sums

"""Training objectives: the entries of `objective.name`.

An objective is any object with a method `sums` like that of CrossEntropy.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.data.tasks.batch import Batch
from transformer_jax.options import Share
from transformer_jax.placement import by_device
from transformer_jax.shapes import in_blocks


def cross_entropy(logits: Array, targets: Array, weights: Array, smoothing: float = 0.0) -> Array:
    """Returns -weight * log softmax(logits)[target] for each target.

    With smoothing e the target distribution has 1 - e on the target and e spread over all V classes
    (Szegedy et al. 2016, arXiv:1512.00567, section 7).

    A position of weight 0 gives exactly 0, with zero gradient, whatever its logits and target. A
    target outside the vocabulary gives NaN, not the wrong finite loss that wrapping -1 would give.

    Args:
      logits: [..., V] float; computed in float32 or wider.
      targets: [...] int.
      weights: [...] float, 0 where nothing is scored.
      smoothing: The e above, in [0, 1).
    Returns:
      Losses [...] in nats.
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
    """Weighted sums over targets, to be added up over batches and then divided once."""

    loss: Array  # in nats
    correct: Array  # weight of the targets that have the largest logit
    weight: Array  # weight of all targets


def sums_of(logits: Array, targets: Array, weights: Array, smoothing: float = 0.0) -> Sums:
    """Returns the Sums of B examples as arrays [B], float32 or wider.

    Args: As in cross_entropy, with a leading axis of B examples.
    """
    losses = cross_entropy(logits, targets, weights, smoothing)
    correct = weights * (logits.argmax(-1) == targets)
    return Sums(by_example(losses), by_example(correct), by_example(weights))


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

    Attributes:
      smoothing: Fraction of the target's probability spread over all classes (Szegedy et al.
        2016, arXiv:1512.00567, section 7); only in the training loss.
    """

    smoothing: Share = 0.0

    def sums(
        self,
        hidden: Array,
        project: Callable[[Array], Array],
        targets: Array,
        weights: Array,
        key: Array,
    ) -> Sums:
        """Returns the loss, the weight of correct targets and the weight of each example.

        Args:
          hidden: Input of the model's output layer, [B, ..., D].
          project: Function from any part of `hidden` to its logits, [..., D] -> [..., V].
          targets: [B, ...] int.
          weights: [B, ...] float, 0 where nothing is scored.
          key: PRNG key for objectives that draw random numbers.
        Returns:
          Sums with arrays [B]; training minimises the loss per weight.
        """
        del key
        return sums_of(project(hidden), targets, weights, self.smoothing)


@dataclasses.dataclass(frozen=True)
class InChunks:
    """An objective whose logits are computed chunk by chunk, in the forward and backward pass.

    The array of all logits, [B, L, V], is never made: a chunk's logits are recomputed for its
    gradient. The sums equal those of the objective up to rounding.

    Attributes:
      objective: An objective whose sums over all positions are the totals of its sums over chunks.
      places: Number of positions of a text in a chunk; examples with one target stay whole.
    """

    objective: Any
    places: int

    def sums(
        self,
        hidden: Array,
        project: Callable[[Array], Array],
        targets: Array,
        weights: Array,
        key: Array | None,
    ) -> Sums:
        """Returns the sums of each example; see CrossEntropy.sums."""
        length = targets.shape[1] if targets.ndim > 1 else 0
        if length <= self.places:
            return self.objective.sums(hidden, project, targets, weights, key)
        keys = None if key is None else jax.random.split(key, -(-length // self.places))

        def chunked(array: Array) -> Array:
            """[B, L, ...] -> [chunks, B, places, ...]."""
            return jnp.moveaxis(in_blocks(array, self.places, 1 - array.ndim), 1, 0)

        def of_chunk(hidden: Array, targets: Array, weights: Array, key: Array | None) -> Sums:
            return self.objective.sums(hidden, project, targets, weights, key)

        again = jax.checkpoint(of_chunk, prevent_cse=False)

        def add(sums: Sums, chunk: Any) -> tuple[Sums, None]:
            return jax.tree.map(jnp.add, sums, again(*chunk)), None

        def of_rows(*rows: Array) -> Sums:
            chunks = (*map(chunked, rows), keys)
            first = jax.tree.map(lambda array: array[0], chunks)
            zeros = jax.tree.map(jnp.zeros_like, jax.eval_shape(of_chunk, *first))
            return jax.lax.scan(add, zeros, chunks)[0]

        return by_device(of_rows, hidden, targets, weights)


def in_chunks(objective: Any, places: int | None) -> Any:
    """Returns the objective in chunks of `places` positions, or unchanged if `places` is None."""
    return objective if places is None else InChunks(objective, places)


OBJECTIVES = {"cross_entropy": CrossEntropy}


def score_batch(
    model: nn.Module,
    params: Any,
    batch: Batch,
    objective: Any = CrossEntropy(),
    key: Array | None = None,
    **options: Any,
) -> tuple[Sums, Array]:
    """Returns the Sums of each example in a batch, and the losses that the model's layers add.

    Args:
      model: A model that takes the batch's inputs and `return_hidden`, and has a method `project`,
        as Decoder does; or a model without `project`, which returns logits.
      params, batch: Its parameters, and a batch of a task.
      objective, key: A built-in or user-defined objective, and its PRNG key.
      **options: Further arguments of `model.apply`, such as train and rngs.
    Returns:
      Sums with arrays [B], and the sum of the values sown under `losses`, [B], 0 in most models.
    """
    variables = {"params": params}
    project: Callable[[Array], Any] = lambda hidden: hidden  # noqa: E731
    if hasattr(model, "project"):
        project = functools.partial(model.apply, variables, method="project")
        options["return_hidden"] = True
    hidden, sown = model.apply(variables, **batch["inputs"], **options, mutable=["losses"])
    sums = objective.sums(hidden, project, batch["targets"], batch["weights"], key)
    added = jnp.zeros_like(sums.loss)
    for leaf in jax.tree.leaves(sown):  # one from a scan has a leading axis of blocks
        added += leaf.sum(tuple(range(leaf.ndim - added.ndim)))
    return sums, added

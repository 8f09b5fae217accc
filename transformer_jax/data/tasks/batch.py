"""Batch; Task, the interface of tasks; ListedTask, a base class; and functions on batches."""

import abc
import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterator, Mapping, Sized
from typing import Any, Protocol, TypedDict

import numpy as np

from transformer_jax.data.order import SPLITS, batches_of, example_order
from transformer_jax.data.tokenizers import Tokenizer, fingerprint

Numbers = Any  # numpy arrays here, jax arrays once the step is traced
_ROWS_AT_ONCE = 64
_MEANS = {"loss": "loss", "accuracy": "correct"}


class Batch(TypedDict):
    """Inputs, targets and weights of B examples: the only value that data and models share.

    Keys:
      inputs: Keyword arguments for the model, arrays [B, ...].
      targets: Classes or tokens to predict, [B] or [B, L] int32.
      weights: Weights of the targets, same shape, float32; 0 where nothing is scored.
    """

    inputs: dict[str, Numbers]
    targets: Numbers
    weights: Numbers


class Task(Protocol):
    """Interface of a task, which turns examples into batches.

    A user-defined task derives from Task and defines `sizes`, `batch` and `evaluation_batches`.
    `data.task=MODULE:NAME` names its class, or a function that returns an instance. Arguments
    named batch_size, stride or like an option of `data` receive the values of those options;
    arguments annotated with option types define the task's own options.

    A task can also have `words`, the names of its tokens; `clusters(split)`, the cluster of each
    example, [N] int; and `batch_rows(seed, step, rows)`; see the function with that name. If the
    attribute `reads_from_left` is true, as it is by default if each target is the next input,
    predictions must not depend on later tokens; user-defined parts are checked for this.

    Attributes:
      tokenizer: Tokenizer of the text, or None if there is no text.
      counted: Unit in which the data is counted, e.g. "tokens".
      target: Unit over which a loss is averaged, e.g. "token".
      remarks: Lines that are shown to the user before training.
    """

    tokenizer: Tokenizer | None = None
    counted: str = "examples"
    target: str = "target"
    remarks: tuple[str, ...] = ()

    @property
    @abc.abstractmethod
    def sizes(self) -> dict[str, Any]:
        """Sizes that a model has to know, by field name: vocab_size, num_classes, ..."""

    @abc.abstractmethod
    def batch(self, seed: int, step: int) -> Batch:
        """Returns a step's training batch, which must depend on `seed` and `step` alone."""

    @abc.abstractmethod
    def evaluation_batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Yields a whole split in batches of the same shape; padding rows have weight 0."""

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Facts that identify the data, e.g. a hash and the number of examples in each split."""
        digest, counts = hashlib.sha256(), {}
        for split in SPLITS[1:]:
            batches = self.evaluation_batches(split, _ROWS_AT_ONCE)
            rows = [row for batch in batches for row in rows_of_batch(batch)]
            digest.update(b"".join(rows))
            counts[split] = len(rows)
        return {"sha256": digest.hexdigest(), "counts": counts}

    @property
    def protocol(self) -> dict[str, Any]:
        """Facts about the evaluation that are not in `facts`, e.g. the context length."""
        return {}

    def scored_bytes(self, batch: Batch) -> np.ndarray | None:
        """Returns the number of UTF-8 bytes in each row's targets, [B] int64; None if unknown."""
        del batch
        return None


@dataclasses.dataclass(frozen=True)
class ListedTask(abc.ABC):
    """Base class of tasks whose examples are stored and have indices.

    Attributes:
      splits: Indices of examples by name of the split.
      batch_size: Number of examples in a training batch, B.
    """

    splits: dict[str, np.ndarray]
    batch_size: int

    @abc.abstractmethod
    def examples_at(self, indices: np.ndarray) -> Batch:
        """Returns a Batch of the examples at `indices`, [B] int."""

    def batch(self, seed: int, step: int) -> Batch:
        """Returns a step's training batch, which depends on `seed` and `step` alone."""
        return self.examples_at(self.indices_of_step(seed, step))

    def indices_of_step(self, seed: int, step: int) -> np.ndarray:
        """Returns the indices of the examples in a training batch, [B] int."""
        train = self.splits["train"]
        return train[example_order(seed, step, self.batch_size, len(train))[0]]

    def evaluation_batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Yields the whole split in batches of the same shape; padding rows have weight 0."""
        for indices, counts in batches_of(self.splits[split], batch_size):
            batch = self.examples_at(indices)
            yield {**batch, "weights": (batch["weights"].T * counts).T}

    def scored_bytes(self, batch: Batch) -> np.ndarray | None:
        """Returns None, since labels, end tokens and synthetic tokens have no bytes."""
        return None


def data_facts(
    source: str,
    sha256: str,
    splits: Mapping[str, Sized],
    tokenizer: Tokenizer | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Returns the facts that identify a task's data, with `others` added; see Task.facts."""
    return {
        "source": source,
        "sha256": sha256,
        **({} if tokenizer is None else {"tokenizer_sha256": fingerprint(tokenizer)}),
        "counts": {split: len(examples) for split, examples in splits.items()},
        **others,
    }


def batch_rows(task: Task, seed: int, step: int, rows: np.ndarray) -> Batch:
    """Returns only `rows` [R] of a step's training batch, e.g. those that one host needs.

    A task can have a method with this name, so that the other rows are not computed.
    """
    rows_of, whole_of = (
        next((kind for kind in type(task).__mro__ if name in vars(kind)), object)
        for name in ("batch_rows", "batch")
    )
    # A class with its own `batch` but inherited `batch_rows` would give rows of a different batch.
    if rows_of is object or not issubclass(rows_of, whole_of):
        return take_rows(task.batch(seed, step), rows)
    return vars(rows_of)["batch_rows"](task, seed, step, rows)


def take_rows(batch: Batch, rows: np.ndarray | slice) -> Batch:
    """Returns a batch of the selected rows of a batch."""
    return Batch(
        inputs={name: array[rows] for name, array in batch["inputs"].items()},
        targets=batch["targets"][rows],
        weights=batch["weights"][rows],
    )


def rows_of_batch(batch: Batch) -> list[bytes]:
    """Returns, for each scored row of a batch, its inputs and targets as bytes."""
    arrays = [*(batch["inputs"][name] for name in sorted(batch["inputs"])), batch["targets"]]
    weights = np.asarray(batch["weights"])
    scored = weights.reshape(len(weights), -1).any(1)
    return [
        b"".join(np.ascontiguousarray(array[row]).tobytes() for array in arrays)
        for row in np.flatnonzero(scored)
    ]


def count_of_batch(batch: Batch, counted: str) -> int:
    """Returns the size of a batch: its input tokens if `counted` is "tokens", else its rows."""
    return batch["inputs"]["tokens"].size if counted == "tokens" else len(batch["targets"])


def mean_scores(examples: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Returns the loss in nats per target, the accuracy, and bits_per_byte if they are texts.

    `examples` has sums over each example's targets, [N] float64: loss, correct, weight, bytes.
    """
    total = {name: float(examples[name].sum()) for name in ("loss", "correct", "weight")}
    means = {name: total[of] / total["weight"] for name, of in _MEANS.items()}
    if "bytes" in examples:
        means["bits_per_byte"] = total["loss"] / math.log(2) / int(examples["bytes"].sum())
    return means

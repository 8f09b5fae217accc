"""The Batch, the interface of tasks, and a base class."""

import abc
import dataclasses
import functools
import hashlib
from collections.abc import Iterator, Mapping, Sized
from typing import Any, Protocol, TypedDict

import numpy as np

from transformer_jax.data.order import SPLITS, batches_of, example_order
from transformer_jax.data.tokenizers import Tokenizer, fingerprint

Numbers = Any  # numpy arrays here, jax arrays once the step is traced
_ROWS_AT_ONCE = 64


class Batch(TypedDict):
    """The only value that data and models share.

    Keys:
      inputs: Keyword arguments of the model, arrays [B, ...].
      targets: [B] or [B, L] int32.
      weights: Shape of targets, float32, 0 where nothing is scored.
    """

    inputs: dict[str, Numbers]
    targets: Numbers
    weights: Numbers


class Task(Protocol):
    """Interface of a task, which turns examples into batches; no later code depends on how.

    A user-defined task derives from Task and defines `sizes`, `batch` and `evaluation_batches`.
    `data.task=MODULE:NAME` names its class, or a function that makes it. Arguments named like
    options of `data`, batch_size and stride get the values of those options; arguments with option
    types are the task's own options.

    A task can also have `words`, the names of its tokens; `clusters(split)`, the cluster of each
    example, [N] int; and `batch_rows(seed, step, rows)` (see the function with that name). If
    `reads_from_left` is true, predictions must not see later tokens; by default it is true if
    targets are the next inputs. Models with user-defined parts are checked for that before they
    train.

    Attributes:
      tokenizer: Tokenizer of the text, or None if there is no text.
      counted: Unit in which the data is counted, e.g. "tokens".
      target: Unit over which a loss is averaged, e.g. "token".
      remarks: Lines that the user sees before training.
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
        """Returns the training batch of a step: a pure function of its arguments."""

    @abc.abstractmethod
    def evaluation_batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Yields a whole split in batches of one shape; padding rows have weight 0."""

    @functools.cached_property
    def facts(self) -> dict[str, Any]:
        """Facts that identify the data: source, hashes, counts of each split."""
        digest, counts = hashlib.sha256(), {}
        for split in SPLITS[1:]:
            batches = self.evaluation_batches(split, _ROWS_AT_ONCE)
            rows = [row for batch in batches for row in rows_of_batch(batch)]
            digest.update(b"".join(rows))
            counts[split] = len(rows)
        return {"sha256": digest.hexdigest(), "counts": counts}

    @property
    def protocol(self) -> dict[str, Any]:
        """Facts about the evaluation of a split that are not in `facts`."""
        return {}

    def scored_bytes(self, batch: Batch) -> np.ndarray | None:
        """Returns the number of UTF-8 bytes in each row's targets, [B] int64; None if unknown."""
        del batch
        return None


@dataclasses.dataclass(frozen=True)
class ListedTask(abc.ABC):
    """Base class of tasks whose examples are listed.

    Attributes:
      splits: Indices of the examples in each split, by its name.
      batch_size: Examples in a training batch, B.
    """

    splits: dict[str, np.ndarray]
    batch_size: int

    @abc.abstractmethod
    def examples_at(self, indices: np.ndarray) -> Batch:
        """Returns the Batch of the examples with these indices, [B] int."""

    def batch(self, seed: int, step: int) -> Batch:
        """Returns the training batch of a step: a pure function of its arguments."""
        return self.examples_at(self.indices_of_step(seed, step))

    def indices_of_step(self, seed: int, step: int) -> np.ndarray:
        """Returns the indices of the examples in a training batch, [B] int."""
        train = self.splits["train"]
        return train[example_order(seed, step, self.batch_size, len(train))[0]]

    def evaluation_batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Yields the whole split in batches of one shape; padding rows have weight 0."""
        for indices, counts in batches_of(self.splits[split], batch_size):
            batch = self.examples_at(indices)
            yield {**batch, "weights": (batch["weights"].T * counts).T}

    def scored_bytes(self, batch: Batch) -> np.ndarray | None:
        """Returns None: labels, end tokens and synthetic tokens have no bytes."""
        return None


def data_facts(
    source: str,
    sha256: str,
    splits: Mapping[str, Sized],
    tokenizer: Tokenizer | None = None,
    **others: Any,
) -> dict[str, Any]:
    """Returns the facts that identify the data of a task (see Task.facts), with `others`."""
    return {
        "source": source,
        "sha256": sha256,
        **({} if tokenizer is None else {"tokenizer_sha256": fingerprint(tokenizer)}),
        "counts": {split: len(examples) for split, examples in splits.items()},
        **others,
    }


def batch_rows(task: Task, seed: int, step: int, rows: np.ndarray) -> Batch:
    """Returns some rows [R] of a step's training batch, for a host that needs only these.

    A task with large data has a method of this name that makes no other rows.
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
    """Returns some rows of a batch."""
    return Batch(
        inputs={name: array[rows] for name, array in batch["inputs"].items()},
        targets=batch["targets"][rows],
        weights=batch["weights"][rows],
    )


def rows_of_batch(batch: Batch) -> list[bytes]:
    """Returns the inputs and targets of each scored row of a batch as bytes."""
    arrays = [*(batch["inputs"][name] for name in sorted(batch["inputs"])), batch["targets"]]
    weights = np.asarray(batch["weights"])
    scored = weights.reshape(len(weights), -1).any(1)
    return [
        b"".join(np.ascontiguousarray(array[row]).tobytes() for array in arrays)
        for row in np.flatnonzero(scored)
    ]


def count_of_batch(batch: Batch, counted: str) -> int:
    """Returns the number of units in a batch: its tokens if tokens are counted, else its rows."""
    return batch["inputs"]["tokens"].size if counted == "tokens" else len(batch["targets"])

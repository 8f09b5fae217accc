"""What tasks give and what every task can do."""

from collections.abc import Iterator
from typing import Any, Protocol, TypedDict

import numpy as np

from transformer_jax.data.tokenizers import Tokenizer

Numbers = Any  # numpy here, jax arrays once the step is traced


class Batch(TypedDict):
    """The only thing that data and models share.

    Keys:
      inputs: keyword arguments of the model, arrays [B, ...].
      targets: [B] or [B, L] int32.
      weights: like targets, float32, 0 where no loss is wanted.
    """

    inputs: dict[str, Numbers]
    targets: Numbers
    weights: Numbers


class Task(Protocol):
    """What every row of TASKS makes: examples as batches, and nothing downstream asks how."""

    @property
    def sizes(self) -> dict[str, Any]:
        """What a model has to know, by the names of its fields: vocab_size, num_classes, ..."""
        ...

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Of the text; None if there is no text."""
        ...

    @property
    def counted(self) -> str:
        """What the data is counted in, "tokens" say."""
        ...

    @property
    def target(self) -> str:
        """What a loss is the mean over, "token" say."""
        ...

    @property
    def facts(self) -> dict[str, Any]:
        """What identifies the data: source, hashes, counts of each split."""
        ...

    @property
    def protocol(self) -> dict[str, Any]:
        """How a split is scored, beside what the facts say."""
        ...

    @property
    def remarks(self) -> tuple[str, ...]:
        """Lines that the user should read before training."""
        ...

    def batch(self, seed: int, step: int) -> Batch:
        """Returns the training batch of a step: a pure function of its arguments."""
        ...

    def evaluation_batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Yields a whole split in batches of one shape; rows beyond the end have weight 0."""
        ...

    def scored_bytes(self, batch: Batch) -> np.ndarray | None:
        """Returns the UTF-8 bytes of the targets of each row, [B] int64, if that is known."""
        ...


def count_of_batch(batch: Batch, counted: str) -> int:
    """Returns how many of what is counted a batch holds: its rows, or the places in them."""
    return batch["inputs"]["tokens"].size if counted == "tokens" else len(batch["targets"])

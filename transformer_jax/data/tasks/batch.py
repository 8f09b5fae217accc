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
    """What every row of TASKS makes: examples as batches, and nothing downstream asks how.

    Attributes:
      sizes: what a model has to know, by the names of its fields: vocab_size, num_classes, ...
      tokenizer: of the text; None if there is no text.
      counted: what the data is counted in, "tokens" say.
      target: what a loss is the mean over, "token" say.
      facts: what identifies the data: source, hashes, counts of each split.
      protocol: how a split is scored, beside what facts say.
      remarks: lines that the user should read before training.
    """

    sizes: dict[str, Any]
    tokenizer: Tokenizer | None
    counted: str
    target: str
    facts: dict[str, Any]
    protocol: dict[str, Any]
    remarks: tuple[str, ...]

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
    rows = batch["inputs"].get("tokens") if counted == "tokens" else batch["targets"]
    return rows.size if counted == "tokens" else len(rows)

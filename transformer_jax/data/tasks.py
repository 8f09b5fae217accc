"""What is learned: examples of a source become Batches, and nothing downstream asks how."""

import dataclasses
from collections.abc import Iterator
from typing import Any, TypedDict

import numpy as np

from transformer_jax.data.sources import TokenStream, epoch_generator, example_order
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.errors import InvalidInput

Numbers = Any  # numpy here, jax arrays once the step is traced


class Batch(TypedDict):
    """The only thing that data and models share.

    Keys:
      inputs: keyword arguments of the model, arrays [B, ...].
      targets: [B, L] int32.
      weights: [B, L] float32, 0 where no loss is wanted.
    """

    inputs: dict[str, Numbers]
    targets: Numbers
    weights: Numbers


@dataclasses.dataclass(frozen=True)
class LanguageModelling:
    """Predict the next token.

    Training: an epoch cuts the train split into windows of `length` tokens on a grid, and shuffles
    them. The grid leaves fewer than 2 * length tokens over; its offset is drawn per epoch, so that
    other tokens are left out each time, and windows begin at other places.

    Evaluation: the whole split. Windows of `length` tokens start every `stride` tokens; the first
    scores all its predictions, each later one only its last `stride`, so every token but the first
    (of each document, if they are kept apart) is scored exactly once, with at least length - stride
    tokens before it in the same window (where the text has them).

    Attributes:
      tokenizer: of the text.
      splits: name -> stream.
      length: tokens the model sees at once, L.
      batch_size: windows in a training batch, B.
      separate_documents: whether documents in one window are kept apart: no attention and no
        prediction across their borders, positions from 0 in each.
    """

    tokenizer: Tokenizer
    splits: dict[str, TokenStream]
    length: int
    batch_size: int
    separate_documents: bool = False

    def __post_init__(self) -> None:
        for split, stream in self.splits.items():
            fewest = 1 + self.length * (2 if split == "train" else 1)
            if len(stream) < fewest:
                raise InvalidInput(
                    f"{stream.name}: {len(stream)} tokens are too few for windows of "
                    f"data.length={self.length}; expected at least {fewest}: "
                    "give more text, a smaller data.length, or other data.splits"
                )

    @property
    def vocab_size(self) -> int:
        """Tokens the model has to know, V."""
        return self.tokenizer.vocab_size

    @property
    def examples_per_epoch(self) -> int:
        """Training windows in one epoch."""
        return (len(self.splits["train"]) - 1) // self.length - 1

    def batch(self, seed: int, step: int) -> Batch:
        """Returns the training batch of a step: a pure function of its arguments."""
        windows, epochs = example_order(seed, step, self.batch_size, self.examples_per_epoch)
        offsets = {int(epoch): self._grid_offset(seed, int(epoch)) for epoch in np.unique(epochs)}
        starts = windows * self.length + np.array([offsets[int(epoch)] for epoch in epochs])
        return self._examples("train", starts)

    def _grid_offset(self, seed: int, epoch: int) -> int:
        left_over = len(self.splits["train"]) - 1 - self.examples_per_epoch * self.length
        return int(epoch_generator(seed, epoch).integers(left_over + 1))

    def evaluation_batches(self, split: str, batch_size: int, stride: int) -> Iterator[Batch]:
        """Yields the whole split in batches of one shape; rows beyond the end have weight 0.

        Args:
          split: a name in `splits`.
          batch_size: windows in a batch; changes nothing but speed.
          stride: tokens between the starts of two windows, 1 .. length.
        """
        predictions = len(self.splits[split]) - 1
        count = 1 + max(0, -(-(predictions - self.length) // stride))
        fresh = np.arange(self.length) >= self.length - stride
        for first in range(0, count, batch_size):
            windows = np.arange(first, first + batch_size)
            batch = self._examples(split, windows * stride)
            scored = (windows[:, None] == 0) | fresh[None, :]
            batch["weights"] = batch["weights"] * scored
            yield batch

    def scored_bytes(self, batch: Batch) -> np.ndarray:
        """Returns the UTF-8 bytes of the tokens that each row is scored on, [B] int64."""
        return (self.tokenizer.token_bytes[batch["targets"]] * (batch["weights"] > 0)).sum(-1)

    def _examples(self, split: str, starts: np.ndarray) -> Batch:
        """Makes the Batch of windows that start at `starts` [B]."""
        stream = self.splits[split]
        tokens = stream.windows(starts, self.length + 1)
        target_places = starts[:, None] + np.arange(1, self.length + 1)[None, :]
        weights = (target_places < len(stream)).astype(np.float32)
        inputs = {"tokens": tokens[:, :-1]}
        if self.separate_documents:
            segments, positions = stream.documents(starts, self.length + 1)
            inputs |= {"segments": segments[:, :-1], "positions": positions[:, :-1]}
            weights *= segments[:, 1:] == segments[:, :-1]
        return {"inputs": inputs, "targets": tokens[:, 1:], "weights": weights}


TASKS = {"language_modelling": LanguageModelling}

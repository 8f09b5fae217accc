"""A task of my own: from examples to batches."""

import dataclasses

import numpy as np

from transformer_jax.data.order import SPLITS, batches_of, step_generator
from transformer_jax.data.tasks import Task
from transformer_jax.options import Count

_HELD = 256  # examples of the validation split, and of the test split


@dataclasses.dataclass(frozen=True)
class Mine(Task):
    """Sorting: read some numbers, then write them in ascending order.

    Attributes:
      length: Number of tokens in an example; length and batch_size are options of every config.
      batch_size: Number of examples in a training batch.
      symbols: Number of distinct numbers; an option of my own, `data.symbols`.
    """

    length: int
    batch_size: int
    symbols: Count = 8

    @property
    def sizes(self):
        """Sizes that the model has to know: its vocabulary, whose last token means `now sort`."""
        return {"vocab_size": self.symbols + 1}

    def batch(self, seed, step):
        """Returns a step's training batch, which depends on `seed` and `step` alone."""
        return self._examples(step_generator(seed, step, "train"), self.batch_size)

    def evaluation_batches(self, split, batch_size):
        """Yields a whole split in batches of the same shape; padding rows have weight 0."""
        whole = self._examples(step_generator(SPLITS.index(split), 0, "held"), _HELD)
        for rows, counts in batches_of(np.arange(_HELD), batch_size):
            yield {
                "inputs": {"tokens": whole["inputs"]["tokens"][rows]},
                "targets": whole["targets"][rows],
                "weights": whole["weights"][rows] * counts[:, None],
            }

    def _examples(self, draws, count):
        numbers = draws.integers(0, self.symbols, (count, self.length // 2))
        mark = np.full((count, 1), self.symbols)
        tokens = np.concatenate([numbers, mark, np.sort(numbers)], 1).astype(np.int32)
        weights = np.zeros((count, tokens.shape[1] - 1), np.float32)
        weights[:, self.length // 2 :] = 1  # only the answer is predicted
        return {"inputs": {"tokens": tokens[:, :-1]}, "targets": tokens[:, 1:], "weights": weights}

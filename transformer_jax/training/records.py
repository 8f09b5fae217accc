"""From the records of single steps to rows of metrics.jsonl."""

from collections.abc import Callable, Iterable

import numpy as np


class StepLog:
    """Collects steps and gives a row every so many of them, holding means since the last row.

    What is pending between two rows belongs into a checkpoint, so that a resumed run writes the
    same rows.

    Attributes:
      pending: loss and gradient norm of each step since the last row.
    """

    def __init__(self, every: int, last_step: int, learning_rate: Callable) -> None:
        """Starts with nothing pending.

        Args:
          every: steps between rows.
          last_step: gets a row in any case.
          learning_rate: of the update that follows `count` earlier ones.
        """
        self.pending: list[tuple[float, float]] = []
        self._every, self._last_step, self._learning_rate = every, last_step, learning_rate

    def add(
        self, first: int, losses: Iterable, gradient_norms: Iterable, seconds: float, tokens: int
    ) -> list[dict]:
        """Adds steps and returns the rows that became due.

        Args:
          first: number of the first of these steps, from 1.
          losses: of each step, nats per token.
          gradient_norms: of each step.
          seconds: that a step took.
          tokens: in a step.
        """
        rows = []
        pairs = zip(losses, gradient_norms, strict=True)
        for step, (loss, norm) in enumerate(pairs, start=first):
            self.pending.append((float(loss), float(norm)))
            if step % self._every == 0 or step == self._last_step:
                rows.append(self._row(step, seconds, tokens))
        return rows

    def _row(self, step: int, seconds: float, tokens: int) -> dict:
        loss, norm = np.mean(self.pending, axis=0)
        self.pending = []
        return {
            "step": step,
            "train/loss": float(loss),
            "train/gradient_norm": float(norm),
            "train/learning_rate": float(np.asarray(self._learning_rate(step - 1))),
            "time/step_ms": round(seconds * 1e3, 3),
            "time/tokens_per_second": round(tokens / seconds, 1),
        }

"""Rows of metrics.jsonl, made from the records of single steps."""

import dataclasses
import math
from collections.abc import Callable, Iterable

import numpy as np

from transformer_jax.runs.progress import in_a_line


def row_of_step(rows: list[dict], step: int) -> dict:
    """Returns the last row if it belongs to `step`; otherwise appends and returns a new one."""
    if not rows or rows[-1]["step"] != step:
        rows.append({"step": step})
    return rows[-1]


def mean_loss(losses: Iterable[float]) -> float:
    """Returns the mean over steps with targets (the others have nan), or nan if there are none."""
    known = [loss for loss in losses if not math.isnan(loss)]
    return float(np.mean(known)) if known else math.nan


@dataclasses.dataclass
class StepLog:
    """Log of training steps that makes a row every few steps, with means since the last row.

    Attributes:
      every: Steps between rows; the last step is always logged.
      last_step: The final step.
      learning_rate: Function from the number of earlier updates to the rate of the next update.
      counted: Unit of the throughput, e.g. "tokens".
      of_input: Function that returns the last step's wait for its batch and a batch's cost, in s.
      pending: Loss and gradient norm of each step since the last row; part of a checkpoint, so that
        a resumed run writes the same rows.
      rows: Rows so far.
    """

    every: int
    last_step: int
    learning_rate: Callable
    counted: str
    of_input: Callable[[], tuple[float, float]]
    pending: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    rows: list[dict] = dataclasses.field(default_factory=list)

    def details(self) -> list[str]:
        """Returns lines for a terminal: the loss as blocks, and further values of the last row."""
        if not self.rows:
            return []
        latest = self.rows[-1]
        shown = [f"gradient norm {latest['train/gradient_norm']:.3g}"]
        shown += [f"learning rate {latest['train/learning_rate']:.3g}"]
        if speed := latest.get(f"time/input_{self.counted}_per_second"):
            shown += [f"input {speed:,.0f} {self.counted}/s"]
        return [in_a_line([row.get("train/loss") for row in self.rows]), "  ".join(shown)]

    def add(
        self,
        first: int,
        losses: Iterable,
        gradient_norms: Iterable,
        seconds: float,
        count: int,
        mfu: float | None = None,
    ) -> list[dict]:
        """Adds steps and returns the rows that became due.

        `losses` (nats per target) and `gradient_norms` are those of consecutive steps from number
        `first` (the first step is 1). A step took `seconds` for `count` units; `mfu`: see flops.
        """
        rows = []
        pairs = zip(losses, gradient_norms, strict=True)
        for step, (loss, norm) in enumerate(pairs, start=first):
            self.pending.append((float(loss), float(norm)))
            if step % self.every == 0 or step == self.last_step:
                rows.append(self._row(step, seconds, count, mfu))
        return rows

    def _row(self, step: int, seconds: float, count: int, mfu: float | None) -> dict:
        losses, norms = zip(*self.pending, strict=True)
        loss, (waited, making) = mean_loss(losses), self.of_input()
        self.pending = []
        row = {
            "step": step,
            **({} if math.isnan(loss) else {"train/loss": loss}),
            "train/gradient_norm": float(np.mean(norms)),
            "train/learning_rate": float(np.asarray(self.learning_rate(step - 1))),
            "time/step_ms": round(seconds * 1e3, 3),
            "time/data_ms": round(waited * 1e3, 3),
            f"time/{self.counted}_per_second": round(count / seconds, 1),
            **({} if mfu is None else {"time/mfu": round(mfu, 4)}),
        }
        if making:
            row[f"time/input_{self.counted}_per_second"] = round(count / making, 1)
        self.rows.append(row)
        return row

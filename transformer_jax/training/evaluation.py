"""A whole split, scored: every token once, sums first."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from transformer_jax.data.tasks import Batch, LanguageModelling
from transformer_jax.training.metrics import Sums, score_batch, summary


class Evaluation(NamedTuple):
    """A whole split, scored.

    Attributes:
      means: loss in nats per token, accuracy, bits_per_byte.
      protocol: how the split was scored.
      sequences: loss, weight and bytes of each window, arrays of [windows].
    """

    means: dict[str, float]
    protocol: dict[str, Any]
    sequences: dict[str, np.ndarray]


def make_score(model: nn.Module) -> Callable[[Any, Batch], Sums]:
    """Returns a compiled function from parameters and a batch to the sums of each example."""
    return jax.jit(functools.partial(score_batch, model))


def evaluate(
    score: Callable[[Any, Batch], Sums],
    params: Any,
    task: LanguageModelling,
    split: str,
    batch_size: int,
    stride: int | None = None,
) -> Evaluation:
    """Scores every token of a split once; the batch size changes nothing but speed.

    Args:
      score: from make_score.
      params: of the model.
      task: gives the windows.
      split: train, tuning or test.
      batch_size: windows in a batch.
      stride: tokens between the starts of two windows; the task's length if not given.
    """
    stride = stride or task.length
    rows = []
    for batch in task.evaluation_batches(split, batch_size, stride):
        sums = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), score(params, batch))
        rows.append((*sums, task.scored_bytes(batch)))
    loss, correct, weight, num_bytes = (
        np.concatenate(column) for column in zip(*rows, strict=True)
    )
    is_window = weight > 0
    protocol = {
        "split": split,
        "context": task.length,
        "stride": stride,
        "windows": int(is_window.sum()),
        "tokens": int(weight.sum()),
        "bytes": int(num_bytes.sum()),
    }
    means = summary(loss.sum(), correct.sum(), weight.sum(), int(num_bytes.sum()))
    sequences = {"loss": loss, "weight": weight, "bytes": num_bytes}
    return Evaluation(
        {name: float(mean) for name, mean in means.items()},
        protocol,
        {name: column[is_window] for name, column in sequences.items()},
    )


def write_sequences(path: Path, scored: dict[str, Evaluation]) -> None:
    """Keeps the scores of each window as arrays named SPLIT/loss, SPLIT/weight, SPLIT/bytes.

    Args:
      path: of the npz file.
      scored: split -> its evaluation.
    """
    columns: dict[str, Any] = {
        f"{split}/{name}": column
        for split, evaluation in scored.items()
        for name, column in evaluation.sequences.items()
    }
    np.savez_compressed(path, **columns)

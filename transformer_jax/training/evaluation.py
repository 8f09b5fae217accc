"""Evaluation of whole splits: every target is scored once, and means are taken at the end."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

from transformer_jax.data.tasks.batch import Batch, Task, mean_scores
from transformer_jax.placement import cut_examples, keep_everywhere, put, sharded
from transformer_jax.training.objectives import Sums, score_batch

if TYPE_CHECKING:
    from transformer_jax.sharding import Sharding

ALWAYS = ("loss", "accuracy", "bits_per_byte")  # measured at every evaluation


class Evaluation(NamedTuple):
    """Scores of a whole split, and how they were computed."""

    means: dict[str, Any]  # loss in nats per target, accuracy, and bits_per_byte of text
    protocol: dict[str, Any]  # how the split was scored
    # Arrays [N] with a value for each example: loss, weight, correct weight; bytes of
    # text, if known; and cluster, the document in which a window of running text begins.
    sequences: dict[str, np.ndarray]

    def with_generated(self, means: dict[str, Any], protocol: dict[str, Any]) -> "Evaluation":
        """Returns a copy that also has scores of generated output, and facts about those scores."""
        return Evaluation(self.means | means, self.protocol | protocol, self.sequences)


@functools.lru_cache(maxsize=32)
def make_score(
    model: nn.Module, chunk: int | None = None, sharding: "Sharding | None" = None
) -> Callable[[Any, Batch], Sums]:
    """Returns a compiled function from parameters and a batch to the Sums of each example.

    Equal models, e.g. in the runs of a study, share the function. `chunk` is training.loss_chunk.
    """

    def score(params: Any, batch: Batch) -> Sums:
        with sharded(sharding):
            sums = score_batch(model, params, cut_examples(batch, 0), chunk=chunk).sums
            return keep_everywhere(sums)

    program = jax.jit(score)
    if sharding is None:
        return program
    return lambda params, batch: program(params, put(batch, sharding.of_batch(batch, 0)))


def score_of(made: Any) -> Callable[[Any, Batch], Sums]:
    """Returns the score function (see make_score) for the model of a Prepared or a Run."""
    return make_score(made.model, made.config.training.loss_chunk, made.sharding)


def evaluate(
    score: Callable[[Any, Batch], Sums], params: Any, task: Task, split: str, batch_size: int
) -> Evaluation:
    """Scores every target of a split (train, validation or test) once with `score`; see make_score.

    `batch_size`, in examples, affects only speed.
    """
    columns: dict[str, list[np.ndarray]] = {}
    for batch in task.evaluation_batches(split, batch_size):
        sums = score(params, batch)._asdict()
        num_bytes = task.scored_bytes(batch)
        sums |= {} if num_bytes is None else {"bytes": num_bytes}
        for name, column in sums.items():
            columns.setdefault(name, []).append(np.asarray(column, np.float64))
    rows = {name: np.concatenate(parts) for name, parts in columns.items()}
    is_example = rows["weight"] > 0
    means: dict[str, Any] = {**mean_scores(rows)}
    protocol = {
        "split": split,
        **task.protocol,
        "examples": int(is_example.sum()),
        "targets": round(rows["weight"].sum()),  # weights n / k are rounded
        **({"bytes": int(rows["bytes"].sum())} if "bytes" in rows else {}),
    }
    clusters = getattr(task, "clusters", None)
    if clusters is not None:
        of_example = clusters(split)
        rows["cluster"] = np.pad(of_example, (0, len(is_example) - len(of_example)))
    return Evaluation(means, protocol, {name: column[is_example] for name, column in rows.items()})

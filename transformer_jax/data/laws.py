"""Laws that every task obeys.

    for law in TASK_LAWS.values():
        law(task)

This package's tests apply them to every entry of TASKS. A user-defined task is checked against all
but the last before training; the test that `python -m experiments.new task` writes applies all of
them. A broken law raises an AssertionError that states what was observed.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from transformer_jax.data.order import SPLITS
from transformer_jax.data.tasks.batch import Batch, Task, batch_rows, rows_of_batch, take_rows

_STEPS = (0, 1, 7)
_SIZES = (4, 7)  # batch sizes with which the same split is evaluated
_LOOKED_AT = 20  # training batches that are searched for evaluated examples


def whole_batches(task: Task) -> None:
    """Inputs, targets and weights have equal numbers of rows, valid dtypes and valid values."""
    for name, batch in _some_batches(task):
        assert set(batch) == {"inputs", "targets", "weights"}, (
            f"{name}: keys {sorted(batch)}; expected inputs, targets and weights"
        )
        targets, weights = np.asarray(batch["targets"]), np.asarray(batch["weights"])
        assert batch["inputs"], f"{name}: no inputs"
        for key, array in batch["inputs"].items():
            rows = np.asarray(array).shape[:1]
            assert rows == targets.shape[:1], (
                f"{name}: {key} has the leading axis {rows}; expected {targets.shape[:1]}"
            )
            size = task.sizes.get("vocab_size")
            if size is not None and key in ("tokens", "source"):
                least, most = np.min(array), np.max(array)
                assert 0 <= least <= most < size, (
                    f"{name}: {key} has tokens {least} to {most}; expected 0 to {size - 1}"
                )
        assert targets.dtype.kind in "iu", f"{name}: targets are {targets.dtype}; expected int32"
        assert weights.dtype == np.float32, f"{name}: weights are {weights.dtype}; expected float32"
        assert weights.shape == targets.shape, (
            f"{name}: weights have shape {weights.shape}; expected that of targets, {targets.shape}"
        )
        assert (weights >= 0).all(), f"{name}: weights are negative or NaN; expected >= 0"
        asked = targets[weights > 0]
        most = task.sizes.get("num_classes") or task.sizes.get("vocab_size")
        if most is not None and asked.size:
            wrong = asked[(asked < 0) | (asked >= most)]
            assert not wrong.size, f"{name}: target {wrong[0]}; expected 0 to {most - 1}"


def pure_batches(task: Task) -> None:
    """A seed and a step always give the same batch, whole or by rows; shapes never change."""
    before = [task.batch(1, step) for step in _STEPS]
    task.batch(2, 3)
    shapes = None
    for step, batch in zip(reversed(_STEPS), reversed(before), strict=True):
        again = task.batch(1, step)
        assert _bytes(batch) == _bytes(again), f"the batch of step {step} differs when built again"
        shapes = shapes or _shapes(batch)
        assert _shapes(batch) == shapes, (
            f"step {step}: shapes {_shapes(batch)}; expected {shapes}, as at another step"
        )
        some = np.arange(0, len(batch["targets"]), 2)
        rows = _bytes(batch_rows(task, 1, step, some))
        assert rows == _bytes(take_rows(batch, some)), (
            f"step {step}: batch_rows returns rows that differ from those of batch"
        )


def whole_splits(task: Task) -> None:
    """Every target of a split is scored once, at any batch size, in batches of the same shape."""
    for split in SPLITS[1:]:
        rows, weight = [], []
        for size in _SIZES:
            batches = list(task.evaluation_batches(split, size))
            shapes = [_shapes(batch) for batch in batches]
            assert shapes, f"{split}: no batches"
            assert shapes == shapes[:1] * len(shapes), f"{split}: shapes differ: {shapes}"
            count = len(batches[0]["targets"])
            assert count == size, (
                f"{split}: evaluation_batches(split, {size}) yielded {count} rows; expected "
                "batch_size rows in every batch, with weight 0 for those beyond the end"
            )
            rows.append([row for batch in batches for row in rows_of_batch(batch)])
            weight.append(sum(float(np.sum(batch["weights"])) for batch in batches))
        assert rows[0], f"{split}: no target has a weight above 0"
        sizes = f"in batches of {_SIZES[0]} and of {_SIZES[1]} rows"
        assert rows[0] == rows[1], f"{split}: different examples {sizes}"
        assert np.isclose(*weight, rtol=1e-6), (
            f"{split}: weights total {weight[0]} and {weight[1]} {sizes}"
        )


def padding_has_no_weight(task: Task) -> None:
    """Positions that `segments` marks as padding have weight 0."""
    for name, batch in _some_batches(task):
        segments = batch["inputs"].get("segments")
        if segments is not None and np.shape(segments) == np.shape(batch["targets"]):
            weights = np.asarray(batch["weights"])[np.asarray(segments) == 0]
            assert not weights.any(), f"{name}: a padded position has a weight above 0"


def disjoint_splits(task: Task) -> None:
    """No evaluated example is trained on, or belongs to both evaluated splits."""
    held = {
        split: {row for batch in task.evaluation_batches(split, 64) for row in rows_of_batch(batch)}
        for split in SPLITS[1:]
    }
    trained = {row for step in range(_LOOKED_AT) for row in rows_of_batch(task.batch(0, step))}
    lines = [
        f"{count} of {len(rows)} examples of {split} are in the first {_LOOKED_AT} training batches"
        for split, rows in held.items()
        if (count := len(rows & trained))
    ]
    if both := len(held["validation"] & held["test"]):
        lines.append(f"{both} examples are in the validation and in the test split")
    assert not lines, "; ".join(lines)


TASK_LAWS: dict[str, Callable[[Task], None]] = {
    law.__name__: law
    for law in (whole_batches, pure_batches, whole_splits, padding_has_no_weight, disjoint_splits)
}


def predicts_its_inputs(batch: Batch) -> bool:
    """Returns whether the target at each scored position is the next input token."""
    tokens, targets = batch["inputs"].get("tokens"), batch["targets"]
    if tokens is None or np.shape(tokens) != np.shape(targets):
        return False
    asked = np.asarray(batch["weights"])[:, :-1] > 0
    same = np.asarray(tokens)[:, 1:] == np.asarray(targets)[:, :-1]
    return bool(asked.any() and same[asked].all())


def _some_batches(task: Task) -> Iterator[tuple[str, Batch]]:
    """Yields names and batches: some for training, and the first and last of other splits."""
    for step in _STEPS:
        yield f"training batch {step}", task.batch(0, step)
    for split in SPLITS[1:]:
        batches = list(task.evaluation_batches(split, _SIZES[0]))
        for batch in batches[:1] + batches[-1:]:
            yield f"a batch of {split}", batch


def _arrays(batch: Batch) -> dict[str, Any]:
    return {**batch["inputs"], "targets": batch["targets"], "weights": batch["weights"]}


def _bytes(batch: Batch) -> dict[str, bytes]:
    return {name: np.ascontiguousarray(array).tobytes() for name, array in _arrays(batch).items()}


def _shapes(batch: Batch) -> dict[str, tuple]:
    return {name: (np.shape(a), np.asarray(a).dtype.name) for name, a in _arrays(batch).items()}

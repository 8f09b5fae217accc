"""Laws that every task obeys.

    for law in TASK_LAWS.values():
        law(task)

This package's tests apply them to every entry of TASKS. A user-defined task must obey all but the
last before it is trained on; the test that `python -m experiments.new task` writes applies all. A
law that is broken raises an AssertionError, which states the observation.
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
    """Inputs, targets and weights of a batch have the same number of rows and valid dtypes."""
    for name, batch in _some_batches(task):
        assert set(batch) == {"inputs", "targets", "weights"}, f"{name}: it has {sorted(batch)}"
        targets, weights = np.asarray(batch["targets"]), np.asarray(batch["weights"])
        assert batch["inputs"], f"{name}: no inputs"
        for key, array in batch["inputs"].items():
            rows = np.asarray(array).shape[:1]
            assert rows == targets.shape[:1], f"{name}: {key} has {rows} rows of {len(targets)}"
            size = task.sizes.get("vocab_size")
            if size is not None and key in ("tokens", "source"):
                least, most = np.min(array), np.max(array)
                assert 0 <= least <= most < size, f"{name}: {key} {least} to {most}, of {size}"
        assert targets.dtype.kind in "iu", f"{name}: targets are {targets.dtype}, expected int32"
        assert weights.dtype == np.float32, f"{name}: weights are {weights.dtype}, not float32"
        assert weights.shape == targets.shape, (
            f"{name}: weights {weights.shape} of targets {targets.shape}"
        )
        assert (weights >= 0).all(), f"{name}: weights below 0, or no numbers"
        asked = targets[weights > 0]
        most = task.sizes.get("num_classes") or task.sizes.get("vocab_size")
        if most is not None and asked.size:
            wrong = asked[(asked < 0) | (asked >= most)]
            assert not wrong.size, f"{name}: target {wrong[0]} is none of {most}"


def pure_batches(task: Task) -> None:
    """A seed and a step always give the same batch, whole or by rows; all have one shape."""
    before = [task.batch(1, step) for step in _STEPS]
    task.batch(2, 3)
    shapes = None
    for step, batch in zip(reversed(_STEPS), reversed(before), strict=True):
        again = task.batch(1, step)
        assert _bytes(batch) == _bytes(again), f"the batch of step {step} came otherwise later"
        shapes = shapes or _shapes(batch)
        assert _shapes(batch) == shapes, f"step {step}: {_shapes(batch)} after {shapes}"
        some = np.arange(0, len(batch["targets"]), 2)
        rows = _bytes(batch_rows(task, 1, step, some))
        assert rows == _bytes(take_rows(batch, some)), f"step {step}: batch_rows gives other rows"


def whole_splits(task: Task) -> None:
    """A split is scored completely, each target once, at any batch size, in one shape."""
    for split in SPLITS[1:]:
        rows, weight = [], []
        for size in _SIZES:
            batches = list(task.evaluation_batches(split, size))
            shapes = [_shapes(batch) for batch in batches]
            assert shapes, f"{split}: no batches"
            assert shapes == shapes[:1] * len(shapes), f"{split}: shapes {shapes}"
            count = len(batches[0]["targets"])
            assert count == size, (
                f"{split}: evaluation_batches(split, {size}) gave {count} rows; every batch has "
                "batch_size rows, of which those beyond the end have weight 0"
            )
            rows.append([row for batch in batches for row in rows_of_batch(batch)])
            weight.append(sum(float(np.sum(batch["weights"])) for batch in batches))
        assert rows[0], f"{split}: nothing has a weight"
        assert rows[0] == rows[1], f"{split}: other examples in batches of another size"
        assert weight[0] == weight[1], f"{split}: weight {weight[0]}, then {weight[1]}"


def padding_has_no_weight(task: Task) -> None:
    """Positions that `segments` marks as padding have weight 0."""
    for name, batch in _some_batches(task):
        segments = batch["inputs"].get("segments")
        if segments is not None and np.shape(segments) == np.shape(batch["targets"]):
            weights = np.asarray(batch["weights"])[np.asarray(segments) == 0]
            assert not weights.any(), f"{name}: a filled place has weight"


def disjoint_splits(task: Task) -> None:
    """No evaluated example is trained on or belongs to both evaluated splits."""
    held = {
        split: {row for batch in task.evaluation_batches(split, 64) for row in rows_of_batch(batch)}
        for split in SPLITS[1:]
    }
    trained = {row for step in range(_LOOKED_AT) for row in rows_of_batch(task.batch(0, step))}
    lines = [
        f"{count} of {len(rows)} examples of {split} are trained on"
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
    """Returns whether the target at each position is the next input."""
    tokens, targets = batch["inputs"].get("tokens"), batch["targets"]
    if tokens is None or np.shape(tokens) != np.shape(targets):
        return False
    asked = np.asarray(batch["weights"])[:, :-1] > 0
    same = np.asarray(tokens)[:, 1:] == np.asarray(targets)[:, :-1]
    return bool(asked.any() and same[asked].all())


def _some_batches(task: Task) -> Iterator[tuple[str, Batch]]:
    """Yields names and batches: some of training, the first and last of each evaluated split."""
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

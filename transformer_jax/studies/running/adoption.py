"""Cells that were found by another key, taken over where one of them comes out again bit by bit.

What computes a run may change without changing what is computed, in a way that no key can see: a
refactored step, another order of operations that are independent. Then one seed is trained again.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import CADENCE, flatten
from transformer_jax.options.schema import completed, stated
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import entries, inside, walk
from transformer_jax.runs.provenance import surroundings
from transformer_jax.studies.asking.cells import ALONE, DONE, OUTCOMES, Cell, cell_path, deciding
from transformer_jax.studies.running.planning import Arm


def adopt(arm: Arm, seeds: Iterable[int], root: Path, train: Callable[[Cell], None]) -> str:
    """Takes over an arm's cells of other keys, if the first that has a checkpoint comes out equal.

    Args:
      arm: placed.
      seeds: whose cells are asked for.
      root: that holds `cells`.
      train: trains one cell.
    Returns:
      What came of it.
    """
    cells = {seed: arm.cell(root, seed) for seed in seeds}
    missing = {seed: cell for seed, cell in cells.items() if not cell.path.exists()}
    taken, otherwise, removed = 0, [], []
    for folder in _of_the_same_config(arm, root):
        older = {seed: Cell(arm.name, seed, cell_path(root, folder, seed)) for seed in cells}
        older = {seed: cell for seed, cell in older.items() if cell.state() == DONE}
        if not missing or not older:
            continue
        states = [seed for seed, cell in older.items() if _has_checkpoint(cell.path)]
        if not states:
            removed.append(folder)
            continue
        first = min(states)
        if cells[first].state() not in OUTCOMES:  # an interrupted launch may have begun it
            train(cells[first])
        missing.pop(first, None)
        if not _are_equal(arm, cells[first].path, older[first].path):
            otherwise.append(f"seed {first} of {folder}")
            continue
        for seed in older.keys() & missing.keys():
            _take_over(older[seed].path, missing.pop(seed).path, arm.hash)
            taken += 1
    sentence = f"{taken} cells taken over" if taken else "no cell taken over"
    if removed:
        sentence += f"; the checkpoints of {removed[0]} were removed: nothing can be compared"
    return sentence + (f"; comes out otherwise: {', '.join(otherwise)}" if otherwise else "")


def _of_the_same_config(arm: Arm, root: Path) -> list[str]:
    """Folders of cells of the arm's config, as it is read today, on a machine like this one."""
    meant, adopted, around = _meant(flatten(arm.config)), [], surroundings()[0]
    for folder in entries(inside(root, "cells")):
        runs = [RunDirectory(path) for path in entries(folder) if path.is_dir()]
        begun = next((run for run in runs if run.has_begun()), None)
        if begun is None or folder.name == arm.hash:
            continue
        with contextlib.suppress(InvalidInput):  # a config that is none any more
            its = begun.manifest()
            if deciding(its) == deciding(around) and _meant(flatten(begun.config())) == meant:
                adopted.append(folder.name)
    return adopted


def _meant(flat: Mapping[str, object]) -> dict[str, object]:
    """What a config says beyond the defaults, without its seed and cadence."""
    values = stated(completed(flat)).items()
    return {key: value for key, value in values if key != "seed" and not key.startswith(CADENCE)}


def _are_equal(arm: Arm, one: Path, other: Path) -> bool:
    """Whether two finished runs have the same final state and the same scores."""
    runs = [RunDirectory(path) for path in (one, other)]
    try:
        states = [
            _checkpoints(run.path).restore(arm.prepared.template, read_only=True) for run in runs
        ]
    except InvalidInput:  # another tree of parameters
        return False
    if None in states or _scores(runs[0]) != _scores(runs[1]):
        return False
    if runs[0].manifest().get("computed", ALONE) != runs[1].manifest().get("computed", ALONE):
        return False
    ours, theirs = (jax.tree.leaves(restored.state) for restored in states if restored)
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(ours, theirs, strict=True)
    )


def _scores(run: RunDirectory) -> dict[str, dict[str, Any]]:
    """The scores that each run of the task has, by split; further metrics can be measured later."""
    stored = run.evaluation()
    further = stored.pop("metrics", {})
    return {s: {n: v for n, v in its.items() if n not in further} for s, its in stored.items()}


def _checkpoints(run: Path) -> Checkpoints:
    return Checkpoints(inside(run, "checkpoints"))


def _has_checkpoint(run: Path) -> bool:
    try:
        return bool(_checkpoints(run).steps())
    except InvalidInput:  # a link
        return False


def _take_over(source: Path, target: Path, key: str) -> None:
    """Copies a cell under another key; its manifest says where it came from."""
    walk(source)  # refuses links
    copy = target.with_name(f".{target.name}-{os.getpid()}")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)
    run = RunDirectory(copy)
    adopted = {"cell": key, "adopted_from": source.parent.name}
    run.write_json("manifest.json", run.manifest() | adopted)
    with contextlib.suppress(OSError):  # another process was first
        os.rename(copy, target)
    shutil.rmtree(copy, ignore_errors=True)

"""Cells that were found by another key, taken over where one of them comes out again bit by bit.

What computes a run may change without changing what is computed, in a way that no key can see: a
refactored step, another order of operations that are independent. Then one seed is trained again.
"""

import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import jax
import numpy as np

from transformer_jax.options.config import CADENCE, flatten
from transformer_jax.options.schema import completed, stated
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import entries, inside, walk
from transformer_jax.studies.asking.cells import DONE, Cell, cell_path
from transformer_jax.studies.running.planning import Arm


def adopt(arm: Arm, seeds: Iterable[int], root: Path, train: Callable[[Cell], None]) -> str:
    """Takes over an arm's cells of other keys, if the first of them, trained again, is equal.

    Args:
      arm: placed.
      seeds: whose cells are asked for.
      root: that holds `cells`.
      train: trains one cell.
    Returns:
      What came of it.
    """
    missing = {seed: Cell(arm.name, seed, cell_path(root, arm.hash, seed)) for seed in seeds}
    missing = {seed: cell for seed, cell in missing.items() if not cell.path.exists()}
    for folder in _of_the_same_config(arm, root):
        older = {seed: Cell(arm.name, seed, cell_path(root, folder, seed)) for seed in missing}
        older = {seed: cell for seed, cell in older.items() if cell.state() == DONE}
        if not older:
            continue
        first = min(older)
        train(missing[first])
        if not _are_equal(arm, missing[first].path, older[first].path):
            return f"seed {first} of {folder} comes out otherwise by this code: not taken over"
        for seed, cell in older.items():
            if seed != first:
                _take_over(cell.path, missing[seed].path, arm.hash)
        return f"seed {first} of {folder} comes out equal: {len(older) - 1} more taken over"
    return "no older cells of this config"


def _of_the_same_config(arm: Arm, root: Path) -> list[str]:
    """Folders of cells whose runs had the arm's config, as it is read today."""
    wanted, found = _meant(flatten(arm.config)), []
    for folder in entries(inside(root, "cells")):
        runs = [RunDirectory(path) for path in entries(folder) if path.is_dir()]
        begun = [run for run in runs if run.has_begun()]
        if folder.name != arm.hash and begun and _meant(flatten(begun[0].config())) == wanted:
            found.append(folder.name)
    return found


def _meant(flat: Mapping[str, object]) -> dict[str, object]:
    """What a config says beyond the defaults, without its seed and cadence."""
    told = stated(completed(flat)).items()
    return {key: value for key, value in told if key != "seed" and not key.startswith(CADENCE)}


def _are_equal(arm: Arm, one: Path, other: Path) -> bool:
    """Whether two finished runs have the same final state and the same scores."""
    runs = [RunDirectory(path) for path in (one, other)]
    states = [
        Checkpoints(run.file("checkpoints")).restore(arm.prepared.template, read_only=True)
        for run in runs
    ]
    if None in states or runs[0].evaluation() != runs[1].evaluation():
        return False
    ours, theirs = (jax.tree.leaves(restored.state) for restored in states if restored)
    return all(
        np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for a, b in zip(ours, theirs, strict=True)
    )


def _take_over(source: Path, target: Path, key: str) -> None:
    """Copies a cell under another key; its manifest says where it came from."""
    walk(source)  # refuses links
    shutil.copytree(source, target)
    run = RunDirectory(target)
    adopted = {"cell": key, "adopted_from": source.parent.name}
    run.write_json("manifest.json", run.manifest() | adopted)

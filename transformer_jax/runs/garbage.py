"""Files that can be deleted below a folder of runs, with their sizes.

They always include incomplete files of killed processes and damaged checkpoints. On request they
include the checkpoints of finished cells of studies, whose scores are kept.
"""

import contextlib
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.errors import InvalidInput
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import DAMAGED, WRITING, entries, walk
from transformer_jax.runs.listing import CELLS, facts_of, find_runs

_OF_A_CELL = re.compile(rf"{CELLS}/[0-9a-f]{{16}}/s\d+")
_UNFINISHED = re.compile(r"\.(STATUS|checkpoints|\w+\.(json|jsonl|txt|png|npz|patch))(-\d+)+")


class Garbage(NamedTuple):
    """A file or folder that can be deleted, with the reason, the size in bytes and its run."""

    path: Path
    why: str
    size: int
    run: Path


def find_garbage(root: Path, checkpoints: bool = False) -> list[Garbage]:
    """Returns the files and folders that can be deleted below a folder, except in active runs.

    If `checkpoints` is True, checkpoints of finished cells are included. The cells' scores, curves
    and verdicts are kept, but the cells can no longer be loaded, sampled or evaluated.

    Raises:
      InvalidInput: There is no such folder.
    """
    pieces: list[Garbage] = []
    for run in sorted(find_runs(root, links=False)):
        state = facts_of(run, root)["status"]
        if state == "running":
            continue
        pieces += _left_over(run)
        is_cell = _OF_A_CELL.fullmatch("/".join(run.absolute().parts[-3:]))
        if checkpoints and is_cell and state == "done":
            folder = run / "checkpoints"
            pieces = [garbage for garbage in pieces if garbage.path.parent != folder]
            pieces += _piece(folder, "checkpoints of a finished cell", run)
    return pieces


def delete(garbage: Sequence[Garbage]) -> int:
    """Deletes garbage that is neither in use nor protected; returns the number of bytes freed."""
    freed = 0
    for path, _, size, run in garbage:
        # Renamed first: if this process is killed, nothing half deleted appears to be complete.
        doomed = path.with_name(f".{path.name.lstrip('.')}-{os.getpid()}")
        with contextlib.suppress(InvalidInput, OSError), RunDirectory(run).locked():
            path.rename(doomed)
            if doomed.is_dir():
                shutil.rmtree(doomed)
            else:
                doomed.unlink()
            freed += size
    return freed


def _left_over(run: Path) -> Iterator[Garbage]:
    try:
        own = entries(run)
        states = entries(run / "checkpoints")
    except InvalidInput:  # it contains links, which are reported when the run is opened
        return
    for path in own:
        if _UNFINISHED.fullmatch(path.name):
            yield from _piece(path, "left by a process that was killed", run)
    for path in states:
        if path.name.startswith(WRITING):
            yield from _piece(path, "left by a process that was killed while it saved", run)
        elif path.name.lstrip(".").startswith(DAMAGED):
            yield from _piece(path, "a damaged checkpoint", run)


def _piece(path: Path, why: str, run: Path) -> list[Garbage]:
    """Returns a file or folder as a list of one Garbage; [] if it is missing or contains a link."""
    with contextlib.suppress(InvalidInput, OSError):
        files = walk(path) if path.is_dir() else [path]
        if files and not path.is_symlink():
            return [Garbage(path, why, sum(file.stat().st_size for file in files), run)]
    return []

"""What may be deleted below a folder of runs, and how much room it takes.

Always: what killed processes left half written, and damaged checkpoints. If asked for: checkpoints
of cells that are done, whose scores stay, and cells that no study names.
"""

import re
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.errors import InvalidInput
from transformer_jax.runs.files import DAMAGED, WRITING, entries, walk
from transformer_jax.runs.listing import CELLS, facts_of, find_runs

_HASH = re.compile(r'"([0-9a-f]{16})"')  # of a cell, in the files of a study


class Garbage(NamedTuple):
    """Something that may go.

    Attributes:
      path: a file or a folder.
      why: it may go.
      size: bytes.
    """

    path: Path
    why: str
    size: int


def find_garbage(root: Path, checkpoints: bool = False, cells: bool = False) -> list[Garbage]:
    """Returns what may be deleted below a folder; nothing of a run or a study that trains now.

    Args:
      root: folder of runs and studies.
      checkpoints: whether those of cells that are done may go: their scores, curves and verdicts
        stay, but they cannot be loaded, sampled or evaluated any more.
      cells: whether cells may go that no file of a study here names. The trials of a study that
        tunes are among them: launched once more, it trains them again.
    Raises:
      InvalidInput: there is no such folder.
    """
    found: list[Garbage] = []
    busy: set[Path | None] = set()  # folders of cells in which something trains
    runs = sorted(find_runs(root))
    states = {run: facts_of(run, root)["status"] for run in runs}
    for run, state in states.items():
        if state == "running":
            busy.add(_cells_of(run))
            continue
        found += _left_over(run)
        if checkpoints and state == "done" and _cells_of(run) is not None:
            found += of_folder(run / "checkpoints", "checkpoints of a cell that is done")
    if cells:
        named = _named_by_studies(root)
        alone = {run.parent for run in runs if _cells_of(run) not in busy | {None}}
        for folder in sorted(folder for folder in alone if folder.name not in named):
            found += of_folder(folder, "a cell that no study here names")
    whole = {garbage.path for garbage in found}
    return [garbage for garbage in found if not whole & set(garbage.path.parents)]


def delete(garbage: Sequence[Garbage]) -> int:
    """Deletes what was found; returns how many bytes that freed."""
    freed = 0
    for path, _, size in garbage:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        freed += size
    return freed


def _cells_of(run: Path) -> Path | None:
    """The folder of cells that a run lies in, CELLS/HASH/sSEED."""
    folder = run.parents[1] if len(run.parts) > 2 else None
    return folder if folder is not None and folder.name == CELLS else None


def _left_over(run: Path) -> Iterator[Garbage]:
    try:
        known = [*entries(run), *entries(run / "checkpoints")]
    except InvalidInput:  # somebody's links: whoever opens the run is told
        return
    for path in known:
        if path.name.startswith(WRITING) and path.parent.name == "checkpoints":
            yield from of_folder(path, "left by a process that was killed while it saved")
        elif path.name.startswith(DAMAGED):
            yield from of_folder(path, "a damaged checkpoint")
        elif re.fullmatch(r"\.[\w.-]+-\d+", path.name) and path.is_file():
            yield Garbage(path, "left by a process that was killed", path.stat().st_size)


def of_folder(folder: Path, why: str) -> list[Garbage]:
    """Returns a folder with all that is in it; [] where nothing is, or a link."""
    try:
        files = walk(folder)
    except InvalidInput:
        return []
    return [Garbage(folder, why, sum(file.stat().st_size for file in files))] if files else []


def _named_by_studies(root: Path) -> set[str]:
    """Every cell that a file of a study below the folder names, one that was judged earlier too."""
    named: set[str] = set()
    for study in root.rglob("study.json"):
        for file in study.parent.glob("*.json*"):
            if file.is_file():
                named |= set(_HASH.findall(file.read_text(encoding="utf-8", errors="replace")))
    return named

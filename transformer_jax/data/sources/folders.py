"""Folders of texts: what is read and what is left out."""

import collections
import filecmp
import itertools
import re
from collections.abc import Iterable
from pathlib import Path

from transformer_jax.data.sources.disk import is_cache, visible
from transformer_jax.data.sources.files import TABLES, OwnSource
from transformer_jax.data.sources.text import TEXTS
from transformer_jax.errors import InvalidInput

# Tasks -> endings of the files that are read in a folder
_READ = {
    **dict.fromkeys(("language_modelling", "masked_language_modelling", "masked_diffusion"), TEXTS),
    **dict.fromkeys(("translation", "text_classification"), TABLES),
}


class PartOfFolder(str):
    """A folder as a source, without the files that are read for other splits."""

    held_out: frozenset[Path]

    @classmethod
    def without(cls, source: str, others: Iterable[str | None]) -> str:
        """Returns a source without the files of other sources that lie in it."""
        if isinstance(source, OwnSource) or not Path(source).is_dir():
            return source
        part, files = cls(source), [Path(other).resolve() for other in others if other]
        inside = [visible(other) for other in files if other.is_dir()]
        part.held_out = frozenset([*files, *map(Path.resolve, itertools.chain(*inside))])
        for file in filter(Path.is_file, visible(Path(source))):
            for other in filter(Path.is_file, files):
                if other != file.resolve() and filecmp.cmp(file, other, shallow=False):
                    raise InvalidInput(f"{file}: a copy of {other}, not for training; remove it")
        return part


def left_out(task: str, source: str) -> list[str]:
    """Returns remarks on files in a folder of texts that a task does not read, or that are missing.

    Files are missing if their names count them, like train-00000-of-00003.parquet.
    """
    folder, endings = Path(source), _READ.get(task)
    if endings == TEXTS and source.lower().endswith(TABLES) and folder.is_file():
        return [f"{source}: the texts are read in a random order, which depends on them alone"]
    if endings is None or not folder.is_dir() or (folder / "index.json").is_file():
        return []
    found = sorted(file.relative_to(folder).as_posix() for file in visible(folder))
    numbered = collections.Counter(re.sub(r"\d+(-of-\d+\b)", r"#\1", name) for name in found)
    missing = []
    for name, count in numbered.items():
        total = re.search(r"#-of-(\d+)", name)
        if total and count < int(total[1]):
            missing.append(f"{source}: {count:,} of {int(total[1]):,} files {name} are there")
    names = [n for n in found if not n.lower().endswith(endings) or is_cache(Path(n))]
    told = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    read = ", ".join(endings[:5])
    unread = f"{source}: {len(names):,} files are not read: {told} (only {read} ...)"
    return missing + [unread] * bool(names)

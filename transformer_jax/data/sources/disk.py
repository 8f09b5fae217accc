"""The files below a folder, the rows of JSON lines, and what a file's first bytes state."""

import codecs
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from transformer_jax.errors import InvalidInput

# Byte order marks -> the encodings that begin with them
_MARKS = {codecs.BOM_UTF32: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_HIDDEN = (".", "_temporary")  # beginnings of folders' names; Spark's unfinished files are in one
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"PK\3\4": "zip"}
TRAINING = frozenset({"train", "training"})  # words in the names of files
HELD_OUT = frozenset(["val", "valid", "validation", "eval", "evaluation", "test", "testing", "dev"])


def words_of(folder: str, files: Iterable[Path]) -> set[str]:
    """Returns the words, in small letters, in the paths of files below a folder."""
    inside = [file.relative_to(folder).as_posix().lower() for file in files]
    return {word for path in inside for word in re.split("[^a-z]+", path)}


def visible(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder, links followed, except hidden and unfinished ones.

    Raises:
      InvalidInput: A folder in it cannot be read.
    """

    def refuse(error: OSError) -> None:
        if isinstance(error, PermissionError):
            raise InvalidInput(f"{error.filename}: {error.strerror}")

    seen = set()
    for root, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        real = os.path.realpath(root)
        folders[:] = [] if real in seen else [f for f in folders if not f.startswith(_HIDDEN)]
        yield from (Path(root) / n for n in names if real not in seen and not n.startswith("."))
        seen.add(real)


def is_cache(file: Path) -> bool:
    """Returns whether a file is one that datasets keeps beside its data, e.g. after map()."""
    return file.name.startswith("cache-") and file.suffix == ".arrow"


def how_to_convert(path: Path) -> str:
    """Returns what makes UTF-8 of a file, by its first bytes; without a mark it may be latin1."""
    with _opened(path) as file:
        mark = file.read(5)
    for first, name in _PACKED.items():
        if mark.startswith(first):
            return f"it is a {name} file: unpack it first" + ", or add .gz" * (name == "gzip")
    utf16 = "utf-16le" if mark[1:2] == b"\0" else "utf-16be" if mark[:1] == b"\0" else "latin1"
    name = next((name for first, name in _MARKS.items() if mark.startswith(first)), utf16)
    return f"convert the file first: iconv -f {name} -t utf-8"


def json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields number and value of each line of a file of JSON lines, gzipped or not.

    Raises:
      InvalidInput: The file cannot be read, or a line is not JSON; the message names the line.
    """
    try:
        with _opened(path) as file:
            for number, line in enumerate(file, start=1):
                line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                if not line.strip():
                    continue
                try:
                    row = json.loads(line, object_pairs_hook=unique_fields)
                except InvalidInput as error:
                    raise InvalidInput(f"{path}: row {number}: {error}") from error
                except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
                    raise InvalidInput(f"{path}: row {number}: not JSON: {error}") from error
                yield number, row
    except (OSError, EOFError, zlib.error) as error:  # e.g. a truncated .gz
        raise InvalidInput(f"{path}: cannot be read: {error}") from error


def unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Returns a JSON object as a dict; raises InvalidInput if two of its fields have one name."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"two fields are named {twice!r}")
    return found


def _opened(path: Path) -> Any:  # as files.open_binary, which cannot be imported here
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")

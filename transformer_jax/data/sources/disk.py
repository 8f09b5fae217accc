"""The files below a folder, the rows of JSON lines, and the encoding that a file states."""

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformer_jax.errors import InvalidInput

# Byte order marks -> the encodings that begin with them
_MARKS = {codecs.BOM_UTF32: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def visible(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder, links followed, except hidden ones (._a from a Mac)."""
    seen = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        folders[:] = [] if real in seen else [f for f in folders if not f.startswith(".")]
        yield from (Path(root) / n for n in names if real not in seen and not n.startswith("."))
        seen.add(real)


def encoding_of(path: Path) -> str:
    """Returns the encoding that a file's first bytes state; latin1 without a mark."""
    with _opened(path) as file:
        mark = file.read(4)
    return next((name for first, name in _MARKS.items() if mark.startswith(first)), "latin1")


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
                    row = json.loads(line)
                except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
                    raise InvalidInput(f"{path}: row {number}: not JSON: {error}") from error
                yield number, row
    except (OSError, EOFError, zlib.error) as error:  # e.g. a truncated .gz
        raise InvalidInput(f"{path}: cannot be read: {error}") from error


def _opened(path: Path) -> Any:  # as files.open_binary, which cannot be imported here
    return gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb")

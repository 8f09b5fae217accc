"""Functions that find the files of a source and read their lines."""

import codecs
import filecmp
import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from transformer_jax.errors import InvalidInput

# Byte order marks -> the encodings that begin with them
_MARKS = {codecs.BOM_UTF32: "utf-32", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_HERE = Path(__file__).parents[1] / "embedded"
# kind of source -> name -> file; LICENSES.md beside the files says where they come from
EMBEDDED = {
    "text": {
        "shakespeare": _HERE / "shakespeare.txt.gz",
        "movie_snippets": _HERE / "movie_snippets.tsv.gz",
    },
    "labelled text": {"movie_snippets": _HERE / "movie_snippets.tsv.gz"},
    "pairs": {"tatoeba_en_es": _HERE / "tatoeba_en_es.tsv.gz"},
    "images": {"digits": _HERE / "digits.npz", "fashion_mnist": _HERE / "fashion_mnist.npz"},
    "vectors": {},
    # drawn by synthetic.py, without a file
    "made-up languages": dict.fromkeys(
        ("copy", "reverse", "recall", "agreement", "markov", "modular_addition"), _HERE
    ),
}


class OwnSource(str):
    """A user-defined source: its name, MODULE:NAME, and `read`, the function that reads it.

    `read` returns the content that files would have: documents (strings), texts with labels,
    sentences with translations, or a dict of arrays named as in an .npz file.
    """

    read: Callable[[], Any]

    def __new__(cls, name: str, read: Callable[[], Any]) -> "OwnSource":
        """Returns a source with a name, and a function without arguments that reads it."""
        made = super().__new__(cls, name)
        made.read = read
        return made

    def rows(self, what: str, *columns: int) -> Iterator[Any]:
        """Yields the rows that `read` returns, each a string or a tuple of strings.

        `columns` are the allowed numbers of strings in a row; if only 1 is allowed, rows are plain
        strings. `what` describes a valid row in error messages.

        Raises:
          InvalidInput: A row has a different form, or contains an empty string.
        """
        for number, row in enumerate(self.read()):
            texts = (row,) if columns == (1,) else row
            has_form = isinstance(texts, tuple) and len(texts) in columns
            if not has_form or not all(isinstance(text, str) and text.strip() for text in texts):
                got = repr(row) if len(repr(row)) <= 60 else repr(row)[:57] + "..."
                raise InvalidInput(f"data.source={self}: row {number}: expected {what}, got {got}")
            yield row


class PartOfFolder(str):
    """A folder as a source, without the files that are read for other splits."""

    left_out: frozenset[Path]

    @classmethod
    def without(cls, source: str, others: Iterable[str | None]) -> str:
        """Returns a source without the files of other sources that lie in it."""
        if isinstance(source, OwnSource) or not Path(source).is_dir():
            return source
        part, files = cls(source), [Path(other).resolve() for other in others if other]
        part.left_out = frozenset(files)
        for file in filter(Path.is_file, visible(Path(source))):
            for other in filter(Path.is_file, files):
                if other != file.resolve() and filecmp.cmp(file, other, shallow=False):
                    raise InvalidInput(
                        f"{file}: a copy of {other}, which is not for training; remove it"
                    )
        return part


def is_there(source: str, kind: str) -> bool:
    """Returns whether a source is embedded under `kind`, an existing path, or user-defined."""
    return source in EMBEDDED[kind] or isinstance(source, OwnSource) or Path(source).exists()


def refuse_missing(source: str, kind: str) -> None:
    """Raises InvalidInput if there is no such source; `kind` is a key of EMBEDDED."""
    if not is_there(source, kind):
        names = ", ".join(EMBEDDED[kind]) or "none"
        raise InvalidInput(
            f"data.source={source}: no such file or folder; embedded {kind}: {names}"
        )


def find_files(source: str, kind: str, *suffixes: str) -> list[Path]:
    """Returns the files of a source: one file, or those in a folder with a suffix, sorted.

    Raises:
      InvalidInput: There is no such source, or the folder has no such file.
    """
    refuse_missing(source, kind)
    path = EMBEDDED[kind].get(source, Path(source))
    if path.is_file():
        return [path]
    left_out = source.left_out if isinstance(source, PartOfFolder) else frozenset()
    found = sorted(file for file in visible(path) if file.name.lower().endswith(suffixes))
    if found := [
        file for file in found if not left_out & {file.resolve(), *file.resolve().parents}
    ]:
        return found
    endings = " or ".join(suffixes)
    raise InvalidInput(f"data.source={source}: the folder contains no {endings} file")


def visible(folder: Path) -> Iterator[Path]:
    """Yields all files below a folder, links followed, except hidden ones (._a from a Mac)."""
    seen = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(root)
        folders[:] = [] if real in seen else [f for f in folders if not f.startswith(".")]
        yield from (Path(root) / n for n in names if real not in seen and not n.startswith("."))
        seen.add(real)


def lines_of(path: Path) -> Iterator[str]:
    """Yields decoded lines with their original line endings, so that no byte is lost.

    Raises:
      InvalidInput: The file cannot be read or is not UTF-8; the message names the offset.
    """
    offset = 0
    try:
        with open_binary(path) as file:
            for line in file:
                yield line.decode("utf-8")
                offset += len(line)
    except UnicodeDecodeError as error:
        with open_binary(path) as file:
            mark = file.read(4)
        found = next((name for first, name in _MARKS.items() if mark.startswith(first)), "latin1")
        raise InvalidInput(
            f"{path}: expected UTF-8, got byte 0x{error.object[error.start]:02X} at offset "
            f"{offset + error.start}\nconvert the file first: iconv -f {found} -t utf-8"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path}: cannot be read after {offset} bytes: {error}") from error


def json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields number and value of each line of a file of JSON lines, gzipped or not.

    Raises:
      InvalidInput: The file cannot be read, or a line is not JSON; the message names the line.
    """
    try:
        with open_binary(path) as file:
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


def open_binary(path: Path) -> BinaryIO:
    """Opens a file, gzipped or not, for reading."""
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # ty: ignore

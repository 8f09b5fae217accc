"""Functions that find the files of a source and read their lines."""

import gzip
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from transformer_jax.errors import InvalidInput

TABLES = (".tsv", ".csv", ".tsv.gz", ".csv.gz")  # endings
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
          InvalidInput: The rows have no order, or one has a different form or is empty.
        """
        content = self.read()
        if isinstance(content, (str, bytes, set, frozenset)) or hasattr(content, "keys"):
            raise InvalidInput(f"data.source={self}: expected a list, got {type(content).__name__}")
        for number, row in enumerate(content):
            texts = (row,) if columns == (1,) else row
            has_form = isinstance(texts, tuple) and len(texts) in columns
            if not has_form or not all(isinstance(text, str) and text.strip() for text in texts):
                got = repr(row) if len(repr(row)) <= 60 else repr(row)[:57] + "..."
                raise InvalidInput(f"data.source={self}: row {number}: expected {what}, got {got}")
            yield row


def is_there(source: str, kind: str) -> bool:
    """Returns whether a source is embedded under `kind`, an existing path, or user-defined."""
    return source in EMBEDDED[kind] or isinstance(source, OwnSource) or Path(source).exists()


def refuse_missing(source: str, kind: str) -> None:
    """Raises InvalidInput if there is no such source; `kind` is a key of EMBEDDED."""
    if not is_there(source, kind):
        has = ", ".join(EMBEDDED[kind]) or "none"
        raise InvalidInput(f"data.source={source}: no such file or folder; embedded {kind}: {has}")


def find_files(source: str, kind: str, *suffixes: str) -> list[Path]:
    """Returns the files of a source: one file, or those in a folder with a suffix, sorted.

    Raises:
      InvalidInput: There is no such source, or the folder has no such file.
    """
    refuse_missing(source, kind)
    path = EMBEDDED[kind].get(source, Path(source))
    if path.is_file():
        return [path]
    from transformer_jax.data.sources.disk import visible

    found = sorted(file for file in visible(path) if file.name.lower().endswith(suffixes))
    if found := [file for file in found if file.resolve() not in getattr(source, "held_out", ())]:
        return found
    raise InvalidInput(f"data.source={source}: the folder contains no {' or '.join(suffixes)} file")


def lines_of(path: Path) -> Iterator[str]:
    """Yields decoded lines with their original line endings, so that no byte is lost.

    Raises:
      InvalidInput: The file cannot be read or is not UTF-8; the message names the offset.
    """
    offset = 0
    try:
        with open_binary(path) as file:
            for line in file:
                if not offset and line.startswith(b"version https://git-lfs"):
                    raise InvalidInput(f"{path}: a pointer of git-lfs; fetch it: git lfs pull")
                if not offset and b"\0" in line[:2]:  # UTF-16 without a mark
                    raise UnicodeDecodeError("utf-8", line, line.index(b"\0"), 2, "a zero byte")
                yield line.decode("utf-8")
                offset += len(line)
    except UnicodeDecodeError as error:
        from transformer_jax.data.sources.disk import how_to_convert

        raise InvalidInput(
            f"{path}: expected UTF-8, got byte 0x{error.object[error.start]:02X} at offset "
            f"{offset + error.start}\n{how_to_convert(path)}"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path}: cannot be read after {offset} bytes: {error}") from error


def open_binary(path: Path) -> BinaryIO:
    """Opens a file, gzipped or not, for reading."""
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # ty: ignore

"""Rows of text: sentence pairs, and texts with labels, from TSV and CSV files (.gz too).

A row that is not as it should be is refused with its file and line; nothing is skipped silently.
"""

import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from transformer_jax.data.sources.files import find_files, lines_of
from transformer_jax.errors import InvalidInput

csv.field_size_limit(1 << 24)


class Pairs(NamedTuple):
    """Sentences and their translations, and the sha256 of them all."""

    rows: list[tuple[str, str]]
    sha256: str


class LabelledText(NamedTuple):
    """Texts, the class of each, the names of the classes, and the sha256 of them all."""

    texts: list[str]
    labels: list[int]
    classes: tuple[str, ...]
    sha256: str


def load_pairs(source: str) -> Pairs:
    """Reads sentence pairs: the first two columns of each row, without a header.

    Args:
      source: an embedded name, a .tsv or .csv file, or a folder of such files.
    Raises:
      InvalidInput: no such source, or a row has fewer than two columns or an empty one.
    """
    rows = []
    for path in find_files(source, "pairs", ".tsv", ".csv", ".tsv.gz", ".csv.gz"):
        for line, columns in _rows(path):
            if len(columns) < 2 or not columns[0].strip() or not columns[1].strip():
                raise InvalidInput(
                    f"{path}: line {line}: expected a sentence and its translation, separated by "
                    f"{_separator(path)}, got {_shorten(columns)}"
                )
            rows.append((columns[0].strip(), columns[1].strip()))
    _refuse_empty(source, rows)
    return Pairs(rows, _sha256(rows))


def load_labelled_text(source: str) -> LabelledText:
    """Reads texts with labels: the columns `text` and `label` of each row, named in the first.

    Args:
      source: an embedded name, a .tsv or .csv file, or a folder of such files.
    Raises:
      InvalidInput: no such source, a column is missing, a row has another number of columns or an
        empty text or label, or there is only one class.
    """
    rows = []
    for path in find_files(source, "labelled text", ".tsv", ".csv", ".tsv.gz", ".csv.gz"):
        rows += read_labelled_file(path)
    _refuse_empty(source, rows)
    classes = tuple(sorted({label for _, label in rows}))
    if len(classes) < 2:
        raise InvalidInput(f"data.source={source}: every label is {classes[0]!r}; expected two")
    number = {name: index for index, name in enumerate(classes)}
    texts, labels = zip(*rows, strict=True)
    return LabelledText(list(texts), [number[label] for label in labels], classes, _sha256(rows))


def read_labelled_file(path: Path) -> Iterator[tuple[str, str]]:
    """Yields the text and the label of each row of a file."""
    numbered = _rows(path)
    _, header = next(numbered, (0, []))
    missing = [name for name in ("text", "label") if name not in header]
    if missing:
        raise InvalidInput(
            f"{path}: line 1: expected the names of the columns, text and label among them, "
            f"separated by {_separator(path)}, got {_shorten(header)}"
        )
    places = header.index("text"), header.index("label")
    for line, columns in numbered:
        if len(columns) != len(header):
            raise InvalidInput(
                f"{path}: line {line}: expected {len(header)} columns like line 1, got "
                f"{len(columns)}: {_shorten(columns)}"
            )
        text, label = (columns[place].strip() for place in places)
        if not text or not label:
            empty = "text" if not text else "label"
            raise InvalidInput(f"{path}: line {line}: the {empty} is empty")
        yield text, label


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yields line numbers and columns; in a TSV a quote is a character like any other."""
    is_tsv = path.name.removesuffix(".gz").endswith(".tsv")
    dialect: dict = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if is_tsv else {"strict": True}
    reader = csv.reader(lines_of(path), **dialect)
    try:
        for columns in reader:
            if columns:
                first = columns[0].removeprefix("\ufeff") if reader.line_num == 1 else columns[0]
                yield reader.line_num, [first, *columns[1:]]
    except csv.Error as error:
        raise InvalidInput(f"{path}: line {reader.line_num}: {error}") from error


def _separator(path: Path) -> str:
    return "a tab" if path.name.removesuffix(".gz").endswith(".tsv") else "a comma"


def _shorten(columns: list[str]) -> str:
    shown = repr(columns)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _refuse_empty(source: str, rows: list) -> None:
    if not rows:
        raise InvalidInput(f"data.source={source}: expected rows, found none")


def _sha256(rows: list[tuple[str, str]]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        digest.update("\t".join(row).encode() + b"\n")
    return digest.hexdigest()

"""Rows of text: sentence pairs, and texts or pairs with labels, from TSV and CSV files (.gz too).

An invalid row raises InvalidInput with its file and line; only empty lines are skipped. A warning
names the rows with white space around a sentence, text or label, which is left out.
"""

import csv
import hashlib
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from transformer_jax.data.order import place_of
from transformer_jax.data.sources.disk import HELD_OUT, TRAINING, words_of
from transformer_jax.data.sources.files import TABLES, OwnSource, find_files, lines_of
from transformer_jax.errors import InvalidInput

csv.field_size_limit(1 << 24)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|infinity)|nan", re.I)


class Pairs(NamedTuple):
    """Sentence pairs, and the sha256 of the whole set."""

    rows: list[tuple[str, str]]
    sha256: str


class LabelledText(NamedTuple):
    """Examples of one or two texts, with their labels, the class names, and the sha256 of all."""

    texts: list[tuple[str, ...]]
    labels: list[int]
    classes: tuple[str, ...]
    sha256: str


def load_pairs(source: str) -> Pairs:
    """Reads sentence pairs: the first two columns of each row, without a header.

    Args:
      source: An embedded name, a .tsv or .csv file, a folder of such files, or an OwnSource.
    Raises:
      InvalidInput: There is no such source, it has no rows, or a row lacks one of the sentences.
    """
    what = "a sentence and its translation, (str, str)"
    rows = list(source.rows(what, 2)) if isinstance(source, OwnSource) else []
    for path in _tables(source, "pairs"):
        numbered = list(_rows(path, strips=True))
        rest = {",".join(columns).count(";") for _, columns in numbered}
        if rest == {1} and _separator(path) == "a comma":
            raise InvalidInput(f"{path}: expected commas between columns, got semicolons")
        for line, columns in numbered:
            if len(columns) > (most := max(2, len(numbered[0][1]))):
                raise InvalidInput(
                    f"{path}: line {line}: expected {most} columns at most, like the first row, "
                    f"got {_shorten(columns)}"
                )
            pair = tuple(columns[:2])
            if len(pair) < 2 or "" in pair:
                raise InvalidInput(
                    f"{path}: line {line}: expected a sentence and its translation, separated by "
                    f"{_separator(path)}, got {_shorten(columns)}"
                )
            rows.append(pair)
    return Pairs(rows, _checked_sha256(source, rows))


def load_labelled_text(source: str, text_field: str = "text") -> LabelledText:
    """Reads texts with labels from the columns `text_field` and `label`, named in the first row.

    If there is a column `text_pair`, an example has two texts, e.g. premise and hypothesis.

    Args:
      source: An embedded name, a .tsv or .csv file, a folder of such files, or an OwnSource.
    Raises:
      InvalidInput: There is no such source, a column is missing, a row has too few columns or an
        empty text or label, only some examples are pairs, or there is only one class.
    """
    what = "a text, a second one or none, and their label, (str, str) or (str, str, str)"
    rows = list(source.rows(what, 2, 3)) if isinstance(source, OwnSource) else []
    for path in _tables(source, "labelled text"):
        rows += _columns(path, text_field, "label", optional="text_pair")
    sha256 = _checked_sha256(source, rows)
    if len({len(row) for row in rows}) > 1:
        raise InvalidInput(f"data.source={source}: some rows have two texts, others one")
    classes = tuple(sorted({label for *_, label in rows}))
    if len(classes) < 2:
        raise InvalidInput(
            f"data.source={source}: every label is {classes[0]!r}; expected two or more classes"
        )
    labels = [classes.index(row[-1]) for row in rows]
    return LabelledText([row[:-1] for row in rows], labels, classes, sha256)


def _tables(source: str, kind: str) -> list[Path]:
    """Returns the files of a source; refuses separate files for splits, which would be merged."""
    if isinstance(source, OwnSource):
        return []
    files = find_files(source, kind, *TABLES)
    for file in files:
        if not file.name.lower().endswith(TABLES):
            raise InvalidInput(f"{file}: expected a file that ends with {' or '.join(TABLES)}")
        if len(files) > 1 and words_of(source, [file]) & (TRAINING | HELD_OUT):
            raise InvalidInput(
                f"{file}: a folder's files are read as one table and split by data.splits; "
                f"give one file; if {file.name} is no split of its own, rename it"
            )
    return files


def read_texts(path: Path, text_field: str = "text") -> list[str]:
    """Returns the texts in a column of a file, in an order independent of the file's.

    The order is that of the random numbers in `split_by_key` with seed 0. So the first fraction of
    the texts is the train split of that fraction, except for a few texts at the border.
    """
    texts = [text for (text,) in _columns(path, text_field, strips=False)]
    return sorted(texts, key=lambda text: place_of(text, 0))


def _columns(
    path: Path, *names: str, optional: str = "", strips: bool = True
) -> Iterator[tuple[str, ...]]:
    """Yields the named columns of each row; the optional one, if present, comes second."""
    numbered = _rows(path, strips)
    _, header = next(numbered, (0, []))
    if any(name not in header for name in names):
        raise InvalidInput(
            f"{path}: line 1: expected the names of the columns, including {' and '.join(names)}, "
            f"separated by {_separator(path)}, got {_shorten(header)}"
        )
    if optional and optional in header:
        names = (names[0], optional, *names[1:])
    _refuse_twice(path, [name for name in header if name in names])
    places = [header.index(name) for name in names]
    for line, columns in numbered:
        if len(columns) != len(header):
            raise InvalidInput(
                f"{path}: line {line}: expected {len(header)} columns like line 1, got "
                f"{len(columns)}: {_shorten(columns)}"
            )
        values = tuple(columns[place] for place in places)
        for name, value in zip(names, values, strict=True):
            if not value.strip():
                raise InvalidInput(f"{path}: line {line}: the {name} is empty")
        yield values


def _rows(path: Path, strips: bool = False) -> Iterator[tuple[int, list[str]]]:
    """Yields each row's line number and fields; quotes have no special meaning in TSV."""
    is_tsv = path.name.lower().removesuffix(".gz").endswith(".tsv")
    dialect: dict = {"delimiter": "\t", "quoting": csv.QUOTE_NONE}
    if not is_tsv:
        dialect = {"strict": True, "skipinitialspace": strips}
    # Excel begins with a byte order mark, which would make a quoted first field an unquoted one.
    lines = (line if n else line.removeprefix("\ufeff") for n, line in enumerate(lines_of(path)))
    reader = csv.reader(lines, **dialect)
    changed = 0
    try:
        for columns in reader:
            if is_tsv and any(len(c) > 2 and c[0] == c[-1] == '"' and '""' in c for c in columns):
                raise InvalidInput(
                    f"{path}: line {reader.line_num}: quotes have no special meaning in .tsv; "
                    "write the text as it is, or a .csv file"
                )
            bare = [column.strip() for column in columns] if strips else columns
            changed += any(b and b != c for b, c in zip(bare, columns, strict=True))
            if columns:
                yield reader.line_num, bare
    except csv.Error as error:
        why = str(error)
        if "new-line character" in why:
            why = "a line ends with CR alone; convert the file first: tr '\\r' '\\n'"
        raise InvalidInput(f"{path}: line {reader.line_num}: {why}") from error
    if changed:
        told = f"{path}: white space around the cells of {changed:,} rows is left out"
        warnings.warn(told, stacklevel=2)


def _refuse_twice(path: Path, header: list[str]) -> None:
    if twice := {name for name in header if header.count(name) > 1}:
        raise InvalidInput(f"{path}: line 1: two columns are named {min(twice)!r}")


def _separator(path: Path) -> str:
    return "a tab" if path.name.lower().removesuffix(".gz").endswith(".tsv") else "a comma"


def _shorten(columns: list[str]) -> str:
    shown = repr(columns)
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _checked_sha256(source: str, rows: list[tuple[str, ...]]) -> str:
    """Returns the sha256 of the rows; refuses a source without rows."""
    if not rows:
        raise InvalidInput(f"data.source={source}: expected rows, found none")
    lines = ("\t".join(row) + "\n" for row in rows)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def number(text: str, where: str) -> float:
    """Returns a cell as a number; decimal commas, units and 1_000 are refused."""
    if not _NUMBER.fullmatch(text.strip()):
        near = "; expected a decimal point" if re.fullmatch(r"[+-]?\d+,\d+", text.strip()) else ""
        raise InvalidInput(f"{where}={text[:40]}: expected a number{near}")
    return float(text)


def read_table(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yields line number and cells, by column, of each row of a table with a header.

    Raises:
      InvalidInput: The file cannot be read, a row does not fit the header, or names are double.
    """
    if not path.is_file():
        raise InvalidInput(f"{path}: no such file")
    first = next(lines_of(path), "")
    if first.count(";") > first.count(","):
        raise InvalidInput(f"{path}: expected commas between columns, got semicolons")
    if path.suffix == ".csv" and not path.read_bytes().endswith(b"\n"):
        warnings.warn(f"{path}: the last line has no line end; it may be cut", stacklevel=2)
    rows = _rows(path)
    header = [name.strip() for name in next(rows, (0, []))[1]]
    _refuse_twice(path, header)
    for line, cells in rows:
        if len(cells) != len(header):
            raise InvalidInput(
                f"{path}, line {line}: {len(cells)} cells, and the header has {len(header)}: "
                f"{','.join(cells)[:60]}"
            )
        yield line, dict(zip(header, cells, strict=True))

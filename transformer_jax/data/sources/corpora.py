"""Corpora as they lie on disk: documents in JSON lines, Parquet and Arrow, and files of tokens.

A row that is no document raises InvalidInput with its file and number; none is left out.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.sources.disk import HELD_OUT, TRAINING, is_cache, json_rows, words_of
from transformer_jax.data.sources.files import find_files
from transformer_jax.data.sources.shards import ShardedTokens, digest_of
from transformer_jax.data.sources.stream import LoadedText, TokenStream
from transformer_jax.data.tokenizers import TOKENIZERS, make_tokenizer
from transformer_jax.errors import InvalidInput, require, suggest

_HEADER = 256  # numbers, int32, before the tokens of llm.c's files
# First numbers of a header, magic and version -> dtype of the tokens
_HEADERS = {(20240520, 1): "<u2", (20240801, 7): "<u4"}
_OTHERS = {b"\x93NUMPY": "an array that np.save wrote", b"PK\3\4": "a zip file, or torch.save's"}


def files_of_folder(source: str, endings: tuple[str, ...]) -> list[Path]:
    """Returns the files of a folder, which are of one kind and not of several splits."""
    files = [file for file in find_files(source, "text", *endings) if not is_cache(file)]
    words = words_of(source, files)
    kinds = {next(end[1:] for end in endings if path.name.lower().endswith(end)) for path in files}
    if len(kinds) > 1:
        listed = " and ".join(sorted(kinds))
        raise InvalidInput(f"data.source={source}: it has {listed} files; expected one kind")
    held_out = words & HELD_OUT
    if held_out and words & TRAINING:
        raise InvalidInput(
            f"data.source={source}: the folder has files named train and {min(held_out)}; give one "
            "of them, and the other as data.validation_source"
        )
    return files


def documents_of(path: Path, field: str) -> Iterator[str]:
    """Yields the documents of a file: the strings in a field of each row, each ended by a newline.

    Raises:
      InvalidInput: The file or a row cannot be read, or the field is missing, empty or no text.
    """
    is_of_arrow = path.suffix.lower() in (".parquet", ".arrow", ".feather")
    rows = _of_arrow(path, field) if is_of_arrow else _of_json(path, field)
    for number, text in rows:
        if not isinstance(text, str) or not text.strip():
            found = "null" if text is None else f"{type(text).__name__} {text!r}"
            found = "an empty text" if isinstance(text, str) else found
            raise InvalidInput(f"{path}: row {number}: {field}: expected a text, got {found[:60]}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            half = f"half of a surrogate pair at offset {error.start}"
            raise InvalidInput(f"{path}: row {number}: {field}: {half}") from error
        yield text if text.endswith("\n") else text + "\n"


def _of_json(path: Path, field: str) -> Iterator[tuple[int, Any]]:
    for number, row in json_rows(path):
        if not isinstance(row, dict) or field not in row:
            names = list(row) if isinstance(row, dict) else []
            raise InvalidInput(_no_field(f"{path}: row {number}", field, names))
        yield number, row[field]


def _no_field(where: str, field: str, names: list[str]) -> str:
    has = f"it has {', '.join(map(str, names[:8]))}" if names else "expected an object with fields"
    return f"{where}: no field {field!r}{suggest(field, names)}; {has} (data.text_field)"


def _of_arrow(path: Path, field: str) -> Iterator[tuple[int, Any]]:
    require("pyarrow", str(path), "corpora")
    import pyarrow as pa
    import pyarrow.parquet

    try:
        if path.suffix.lower() == ".parquet":
            with pa.parquet.ParquetFile(path) as file:
                _refuse_other_column(path, field, file.schema_arrow)
                yield from _numbered(file.iter_batches(1024, columns=[field]))
            return
        with pa.memory_map(str(path)) as source:
            try:
                file = pa.ipc.open_file(source)
                batches = (file.get_batch(number) for number in range(file.num_record_batches))
            except pa.ArrowInvalid:  # the format of datasets.save_to_disk has no footer
                source.seek(0)
                batches = file = pa.ipc.open_stream(source)
            _refuse_other_column(path, field, file.schema)
            yield from _numbered(batch.select([field]) for batch in batches)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read: {str(error).partition(chr(10))[0]}") from error


def _refuse_other_column(path: Path, field: str, schema: Any) -> None:
    import pyarrow as pa

    kinds = dict(zip(schema.names, schema.types, strict=True))
    if field not in kinds:
        raise InvalidInput(_no_field(str(path), field, list(kinds)))
    if schema.names.count(field) > 1:
        raise InvalidInput(f"{path}: two columns are named {field!r}")
    kind = kinds[field]
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if str(value) not in ("string", "large_string", "string_view"):
        texts = [name for name, other in kinds.items() if pa.types.is_string(other)]
        raise InvalidInput(
            f"{path}: data.text_field={field}: the column holds {kind}; expected a column of "
            f"strings{f', e.g. {texts[0]}' if texts else ''}"
        )


def _numbered(batches: Any) -> Iterator[tuple[int, Any]]:
    number = 0
    for batch in batches:
        for text in batch.column(0).to_pylist():
            number += 1
            yield number, text


def open_token_files(paths: list[Path], source: str, choice: Any, vocab_size: int) -> LoadedText:
    """Returns the memory-mapped tokens of files, each of which is one document.

    `choice` and `vocab_size` are those of make_tokenizer; no tokenizer can be trained on tokens.

    A file begins with llm.c's header of 256 int32 (magic, version, number of tokens), as those of
    modded-nanogpt do, or has uint16 tokens alone, as nanoGPT's.

    Raises:
      InvalidInput: A header, a size or a token does not fit.
    """
    if isinstance(choice, type) or choice in TOKENIZERS.keys() - {"numbers"}:
        raise InvalidInput(
            f"data.tokenizer={choice}: {source} holds tokens, on which no tokenizer can be "
            "trained; expected the path of their tokenizer.json, or numbers with data.vocab_size"
        )
    tokenizer = make_tokenizer(choice, tuple, vocab_size)
    rows = [_open_tokens(path, tokenizer.vocab_size) for path in paths]
    starts = np.cumsum([0, *map(len, rows[:-1])])
    tokens = ShardedTokens(rows, Path(source), tokenizer.vocab_size)
    stream = TokenStream(tokens, starts.astype(np.int64), 0, len(tokens), source)
    return LoadedText(stream, tokenizer, digest_of(paths))


def _open_tokens(path: Path, vocab_size: int) -> np.ndarray:
    size = path.stat().st_size
    head = np.fromfile(path, "<i4", min(_HEADER, size // 4))
    kind = _HEADERS.get(tuple(head[:2].tolist())) if len(head) == _HEADER else None
    if other := next((_OTHERS[b] for b in _OTHERS if head.tobytes().startswith(b)), None):
        raise InvalidInput(f"{path}: expected uint16 tokens, or llm.c's header, got {other}")
    if kind is None:
        if len(head) > 1 and int(head[0]) in {magic for magic, _ in _HEADERS}:
            known = ", ".join(f"{magic} version {version}" for magic, version in _HEADERS)
            raise InvalidInput(f"{path}: header {head[:2].tolist()}; expected {known}")
        if vocab_size > 1 << 16:
            raise InvalidInput(
                f"{path}: expected llm.c's header, since uint16 cannot hold {vocab_size} tokens"
            )
        if not size or size % 2:
            raise InvalidInput(f"{path}: {size} bytes; expected whole uint16 tokens")
        tokens = np.memmap(path, "<u2", "r")
        first = tokens[: 1 << 16]
        if len(first) > 16 and not first[1::2].any():
            raise InvalidInput(
                f"{path}: every other uint16 token is 0, as in a file of uint32; expected uint16, "
                "or llm.c's header"
            )
    else:
        count, width = int(head[2]), np.dtype(kind).itemsize
        found, left_over = divmod(size - 4 * _HEADER, width)
        if found != count or left_over:
            raise InvalidInput(
                f"{path}: the header says {count} tokens of {width} bytes, and the file has "
                f"{size - 4 * _HEADER} bytes after it; expected {count * width}"
            )
        tokens = np.memmap(path, kind, "r", offset=4 * _HEADER)
        first = tokens[: 1 << 16]
    if len(first) and first.max() >= vocab_size:
        raise InvalidInput(
            f"{path}: token {first.max()} at position {int(first.argmax())} is outside the "
            f"vocabulary of {vocab_size} tokens; expected a data.tokenizer or data.vocab_size that "
            "these tokens were made with"
        )
    return tokens

"""Text from embedded data, the user's files, or memory-mapped shards.

Files are read line by line, and tokenized in the same pieces in memory and for shards.
"""

import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from transformer_jax.data.sources.files import TABLES, OwnSource, find_files, lines_of
from transformer_jax.data.sources.stream import LoadedText, Piece, TokenStream, narrowest_dtype
from transformer_jax.data.tokenizers import Tokenizer, encode_corpus, make_tokenizer
from transformer_jax.errors import InvalidInput

_PIECE_CHARACTERS = 1 << 20
# Kinds of files that are read by corpora.py
DOCUMENTS = (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz", ".parquet", ".arrow", ".feather")
TOKENS = (".bin",)
TEXTS = (".txt", ".txt.gz", *DOCUMENTS, *TOKENS)


def load_text(
    source: str,
    tokenizer: str | Tokenizer,
    vocab_size: int = 4096,
    document_separator: str | None = None,
    train_share: float = 1.0,
    text_field: str = "text",
) -> LoadedText:
    """Reads and tokenizes a source, or opens its shards.

    Args:
      source: An embedded name, a text file (.gz too), a table, of which a column is read as lines
        (see read_texts), a file of documents or tokens (see corpora), a folder of files of one of
        these kinds, shards made by `python -m experiments.make_shards`, or an OwnSource.
      tokenizer: As in make_tokenizer; ignored for shards, which have their own.
      vocab_size: Maximum number of tokens of a bpe or word tokenizer that is trained.
      document_separator: Line that ends a document, kept as its last line; None makes each
        file one document. Shards must have been made with the same separator.
      train_share: Fraction of the text, from its beginning, for training a tokenizer.
      text_field: Field of JSON lines, or column of tables, with the documents.
    Raises:
      InvalidInput: The source is missing, empty, or not UTF-8.
    """
    if (Path(source) / "index.json").is_file():
        from transformer_jax.data.sources.shards import open_shards

        return open_shards(Path(source), document_separator)
    if (tokens := _files(source)) and tokens[0].suffix.lower() in TOKENS:
        from transformer_jax.data.sources.corpora import open_token_files

        return open_token_files(tokens, source, tokenizer, vocab_size)
    tokenizer = make_tokenizer(
        tokenizer,
        lambda: first_texts(source, train_share, text_field),
        vocab_size,
        lambda: first_texts(source, text_field=text_field),
    )
    digest = hashlib.sha256()
    encoded, starts, count = [np.zeros(0, np.int32)], [], 0
    for piece in read_pieces(source, document_separator, text_field):
        digest.update(piece.text.encode())
        if piece.starts_document:
            starts.append(count)
        encoded.append(encode_corpus(tokenizer, piece.text))
        count += len(encoded[-1])
    tokens = np.concatenate(encoded).astype(narrowest_dtype(tokenizer.vocab_size))
    if not count:
        raise InvalidInput(f"data.source={source}: expected text, found none")
    stream = TokenStream(tokens, np.array(starts, np.int64), 0, count, source)
    return LoadedText(stream, tokenizer, digest.hexdigest())


def first_texts(source: str, share: float = 1.0, text_field: str = "text") -> Iterator[str]:
    """Yields the text of a source from its beginning, up to a share of its bytes."""
    read = functools.partial(read_pieces, source, text_field=text_field)
    if share == 1:
        yield from (piece.text for piece in read())
        return
    left = int(share * sum(len(piece.text.encode()) for piece in read()))
    for piece in read():
        encoded = piece.text.encode()
        yield encoded[:left].decode("utf-8", "ignore")  # drops a character that is cut
        left -= len(encoded)
        if left <= 0:
            return


def read_pieces(
    source: str, document_separator: str | None = None, text_field: str = "text"
) -> Iterator[Piece]:
    """Yields the text of a source in pieces of whole lines, of about a million characters at most.

    Joined, the pieces are the exact text. Arguments and errors are as in load_text. Each document
    of an OwnSource or of a file of documents is one piece.
    """
    if isinstance(source, OwnSource):
        yield from (Piece(text, True) for text in source.rows("a document, a str", 1))
        return
    is_empty = True
    for path in _files(source):
        if path.name.lower().endswith((".json", ".json.gz", *TOKENS)):
            expected = "text, or documents, one in each line of a .jsonl file"
            raise InvalidInput(f"{path}: expected {expected}, got a {path.suffix} file")
        if path.name.lower().endswith(DOCUMENTS):
            from transformer_jax.data.sources.corpora import documents_of

            for document in documents_of(path, text_field):
                yield Piece(document, True)
                is_empty = False
            continue
        lines: list[str] = []
        size, starts_document = 0, True
        texts: Iterator[str] = lines_of(path)
        if path.name.lower().endswith(TABLES):
            from transformer_jax.data.sources.tables import read_texts

            texts = (f"{text}\n" for text in read_texts(path, text_field))
        for line in texts:
            lines.append(line)
            size += len(line)
            ends_document = line.rstrip("\r\n") == document_separator
            if ends_document or size >= _PIECE_CHARACTERS:
                yield Piece("".join(lines), starts_document)
                lines, size, starts_document, is_empty = [], 0, ends_document, False
        if lines:
            yield Piece("".join(lines), starts_document)
            is_empty = False
    if is_empty:
        raise InvalidInput(f"data.source={source}: expected text, found 0 bytes")


def _files(source: str) -> list[Path]:
    if isinstance(source, OwnSource):
        return []
    if not Path(source).is_dir():
        return find_files(source, "text")
    from transformer_jax.data.sources.corpora import files_of_folder

    return files_of_folder(source, TEXTS)

"""Memory-mapped tokens on disk, for text that does not fit in memory."""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.data.sources.stream import (
    COUNTED_AT_ONCE,
    JoinedTokens,
    LoadedText,
    Piece,
    TokenRow,
    TokenStream,
    narrowest_dtype,
)
from transformer_jax.data.tokenizers import (
    Tokenizer,
    encode_corpus,
    load_tokenizer,
    tokenizer_text,
    warn_of_unknown,
)
from transformer_jax.errors import InvalidInput

_SHARD_FORMAT = 2
_HASHED_WHOLE = 1 << 30  # bytes of all files; of more, parts are hashed
_PART, _PARTS = 1 << 20, 256


class ShardedTokens(JoinedTokens):
    """View of several memory-mapped files as one row of tokens.

    Tokens are checked when they are read, since checking all of them first would read the whole
    corpus at every launch. A token outside the vocabulary raises InvalidInput.
    """

    def __init__(self, shards: Sequence[TokenRow], folder: Path, vocab_size: int) -> None:
        super().__init__(shards)
        self._folder, self._vocab_size = folder, vocab_size

    def __getitem__(self, indices: np.ndarray | slice) -> np.ndarray:
        tokens = super().__getitem__(indices)
        if tokens.size and tokens.max() >= self._vocab_size:
            raise InvalidInput(
                f"{self._folder}: token {tokens.max()} is outside the "
                f"vocabulary of {self._vocab_size} tokens: a file is damaged, or the "
                "tokenizer is another\nshards are made anew by python -m experiments.make_shards"
            )
        return tokens


def refuse_used_folder(folder: Path) -> None:
    """Raises InvalidInput if the folder is not empty or cannot be created."""
    above = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not above.is_dir() or (above == folder and {*above.iterdir()} - {*above.glob("*.bin.tmp")}):
        raise InvalidInput(f"--out={folder}: expected a new or an empty folder")
    if not os.access(above, os.W_OK):
        raise InvalidInput(f"--out={folder}: {above} is not writable")


def write_shards(
    pieces: Iterable[Piece],
    tokenizer: Tokenizer,
    folder: Path,
    shard_tokens: int = 100_000_000,
    document_separator: str | None = None,
) -> int:
    """Tokenizes pieces of text into shards, and returns the number of tokens written.

    The folder receives `tokens-00000.bin` ... (raw little-endian uint16, or uint32 for a vocabulary
    above 65,536), `documents.npy` (starts of the documents, int64), `tokenizer.json` and, last,
    `index.json`. After an error, or if it is killed, the same command can be run again.

    A .bin file has at most `shard_tokens` tokens; `document_separator` is the line that ends a
    document in the pieces, and is stored; see open_shards.

    Raises:
      InvalidInput: The folder is not empty, shard_tokens < 1, or the text has no tokens.
    """
    if shard_tokens < 1:
        raise InvalidInput(f"--shard_tokens={shard_tokens}: expected at least 1")
    refuse_used_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for unfinished in folder.iterdir():
            unfinished.unlink()
    except OSError as error:
        why = "a link to nothing" if folder.is_symlink() else error.strerror
        raise InvalidInput(f"--out={folder}: {why}") from error
    dtype = narrowest_dtype(tokenizer.vocab_size)
    digest, sizes = hashlib.sha256(), tokenizer.token_bytes
    starts, shards, count = [], [], 0
    nbytes, byte_ends = 0, []
    try:
        for piece in pieces:
            digest.update(piece.text.encode())
            if piece.starts_document:
                starts.append(count)
            tokens = encode_corpus(tokenizer, piece.text).astype(dtype)
            if sizes is not None and len(tokens):
                ends = nbytes + np.cumsum(sizes[tokens])
                left = COUNTED_AT_ONCE - count % COUNTED_AT_ONCE
                byte_ends += ends[left - 1 :: COUNTED_AT_ONCE].tolist()
                nbytes = int(ends[-1])
            count += len(tokens)
            while len(tokens):
                if not shards or shards[-1]["tokens"] == shard_tokens:
                    shards.append({"file": f"tokens-{len(shards):05d}.bin", "tokens": 0})
                head = tokens[: shard_tokens - shards[-1]["tokens"]]
                with (folder / (shards[-1]["file"] + ".tmp")).open("ab") as file:
                    file.write(head.tobytes())
                shards[-1]["tokens"] += len(head)
                tokens = tokens[len(head) :]
        warn_of_unknown(tokenizer)
        if not count:
            raise InvalidInput(f"{folder}: the text has no tokens; expected some text")
        np.save(folder / "documents.npy", np.array(starts, np.int64))
        (folder / "tokenizer.json").write_text(tokenizer_text(tokenizer), encoding="utf-8")
        index = {
            "format": _SHARD_FORMAT,
            "dtype": dtype.str,
            "text_sha256": digest.hexdigest(),
            "sha256": _digest(folder, [shard["file"] + ".tmp" for shard in shards]),
            "shards": shards,
            "document_separator": document_separator,
        }
        if tokenizer.token_bytes is not None:
            # Bytes up to the end of each block, so that splits by bytes need not read all tokens.
            index["byte_ends"] = byte_ends + ([nbytes] if count % COUNTED_AT_ONCE else [])
        for part in folder.glob("*.bin.tmp"):
            part.rename(part.with_suffix(""))
        (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    except BaseException:
        for file in folder.iterdir():
            file.unlink()
        raise
    return count


def open_shards(folder: Path, document_separator: str | None = None) -> LoadedText:
    """Returns the memory-mapped text in a folder made by write_shards.

    If `document_separator` is None, the documents are those that were stored.

    Raises:
      InvalidInput: A file is missing or damaged, or the stored separator is a different one.
    """
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        if index["format"] != _SHARD_FORMAT or index["dtype"] not in ("<u2", "<u4"):
            raise ValueError(f"format {index['format']}, dtype {index['dtype']}")
        counts = [(str(shard["file"]), int(shard["tokens"])) for shard in index["shards"]]
        text_sha256, digest = str(index["text_sha256"]), str(index["sha256"])
        byte_ends = index.get("byte_ends")  # none if the tokenizer loses some of the text
        byte_ends = None if byte_ends is None else np.array(byte_ends, np.int64)
        made_with = index.get("document_separator")  # older shards do not say
        starts = np.load(folder / "documents.npy", allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{folder}: not a readable folder of shards: {error!r}") from error
    if document_separator not in (None, made_with):
        raise InvalidInput(
            f"data.document_separator={document_separator!r}: the documents in {folder} were made "
            f"with {made_with!r}\nexpected None, or shards of `python -m experiments.make_shards "
            f"--document_separator={document_separator}`"
        )
    dtype, shards = np.dtype(index["dtype"]), []
    for name, count in counts:
        path = folder / name
        size = path.stat().st_size if path.is_file() and path.parent == folder else -1
        if size != count * dtype.itemsize:
            raise InvalidInput(
                f"{path}: expected {count * dtype.itemsize} bytes, found "
                f"{'no file' if size < 0 else size}; rebuild the shards"
            )
        shards.append(np.memmap(path, dtype, "r", shape=(count,)))
    if _digest(folder, [name for name, _ in counts]) != digest:
        raise InvalidInput(f"{folder}: the files are not those of index.json; rebuild the shards")
    tokenizer: Any = load_tokenizer(folder / "tokenizer.json")
    if byte_ends is None and tokenizer.token_bytes is not None:
        tokenizer.token_bytes = None
    tokens = ShardedTokens(shards, folder, tokenizer.vocab_size)
    if byte_ends is not None and len(byte_ends) != -(-len(tokens) // COUNTED_AT_ONCE):
        byte_ends = None  # made with blocks of a different size: bytes are counted anew
    stream = TokenStream(tokens, starts, 0, len(tokens), str(folder), byte_ends)
    return LoadedText(stream, tokenizer, text_sha256)


def _digest(folder: Path, names: Sequence[str]) -> str:
    return digest_of([folder / name for name in ("documents.npy", *names)])


def digest_of(paths: Sequence[Path]) -> str:
    """Returns the sha256 of files, or of parts of them, spread evenly, above 1 GiB in all."""
    sizes, digest = [path.stat().st_size for path in paths], hashlib.sha256()
    count = max(2, _PARTS // len(paths))
    for path, size in zip(paths, sizes, strict=True):
        with path.open("rb") as file:
            if sum(sizes) <= _HASHED_WHOLE or size <= count * _PART:
                digest.update(hashlib.file_digest(file, "sha256").digest())
                continue
            digest.update(str(size).encode())
            for start in np.linspace(0, size - _PART, count).astype(np.int64):
                file.seek(int(start))
                digest.update(file.read(_PART))
    return digest.hexdigest()

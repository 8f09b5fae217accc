"""Where tokens come from: embedded text, the user's files, or memory-mapped shards.

Everything ends as a `TokenStream`: N tokens in a row and the places where documents start. Text is
read line by line and encoded in pieces, the same way whether it stays in memory or goes to shards.
"""

import dataclasses
import functools
import gzip
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from transformer_jax.data.tokenizers import TOKENIZERS, Tokenizer, load_tokenizer, tokenizer_text
from transformer_jax.errors import InvalidInput

EMBEDDED = {"shakespeare": Path(__file__).parent / "embedded" / "shakespeare.txt.gz"}
SPLITS = ("train", "tuning", "test")
_PIECE_CHARACTERS = 1 << 20
_PIECE_TOKENS = 1 << 24
_SHARD_FORMAT = 1


class Piece(NamedTuple):
    """A stretch of text that ends with a line, a document or a file."""

    text: str
    starts_document: bool


@dataclasses.dataclass(frozen=True)
class TokenStream:
    """Tokens begin .. end of a longer row of tokens, with the documents that they belong to.

    Attributes:
      tokens: all N tokens.
      document_starts: [number of documents] int64, ascending from 0.
      begin: first token of this stream.
      end: one past its last token.
      name: where the tokens come from, for messages.
    """

    tokens: "np.ndarray | ShardedTokens"
    document_starts: np.ndarray
    begin: int
    end: int
    name: str

    def __len__(self) -> int:
        return self.end - self.begin

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Returns tokens[start : start + length] for each start, counted from `begin`.

        Args:
          starts: [B] int.
          length: tokens in each window, L.
        Returns:
          [B, L] int32; tokens beyond the end of the stream are 0.
        """
        places = self._places(starts, length)
        tokens = np.asarray(self.tokens[np.minimum(places, self.end - 1)])
        return np.where(places < self.end, tokens, 0).astype(np.int32)

    def documents(self, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns which document each token of each window is in, and its place in it.

        Args:
          starts: [B] int.
          length: tokens in each window, L.
        Returns:
          segments [B, L] int32, documents numbered from 1 in each window; and positions [B, L]
          int32, from 0 at the document's start or at the window's.
        """
        places = self._places(starts, length)
        documents = np.searchsorted(self.document_starts, places, side="right") - 1
        document_begins = np.maximum(self.document_starts[documents], places[:, :1])
        segments = documents - documents[:, :1] + 1
        return segments.astype(np.int32), (places - document_begins).astype(np.int32)

    def _places(self, starts: np.ndarray, length: int) -> np.ndarray:
        return self.begin + np.asarray(starts, np.int64)[:, None] + np.arange(length)[None, :]

    def split(self, fractions: tuple[float, ...]) -> dict[str, "TokenStream"]:
        """Cuts the stream into consecutive parts: train, tuning, test.

        Args:
          fractions: share of the tokens of each part; they sum to 1.
        Returns:
          name of the split -> its stream.
        """
        cuts = [self.begin + int(share * len(self)) for share in np.cumsum((0.0, *fractions))]
        cuts[-1] = self.end
        bounds = zip(SPLITS, cuts, cuts[1:], strict=False)
        return {
            split: dataclasses.replace(self, begin=a, end=b, name=f"{self.name} ({split})")
            for split, a, b in bounds
        }


class LoadedText(NamedTuple):
    """A tokenized source: its tokens, their tokenizer, and the sha256 of the text."""

    stream: TokenStream
    tokenizer: Tokenizer
    text_sha256: str


def load_text(
    source: str,
    tokenizer: str | Tokenizer,
    vocab_size: int = 4096,
    document_separator: str | None = None,
) -> LoadedText:
    """Reads and tokenizes a source, or opens its shards.

    Args:
      source: a name in EMBEDDED, a text file (.gz too), a folder of .txt files, or a folder of
        shards made by `python -m experiments.tokenize`.
      tokenizer: a name in TOKENIZERS, trained on the text; or a tokenizer. Shards bring their own.
      vocab_size: tokens that a bpe tokenizer shall have.
      document_separator: the line that ends a document, kept as its last line; None makes each
        file one document.
    Returns:
      The stream, the tokenizer and the text's hash.
    Raises:
      InvalidInput: the source is missing, empty, or not UTF-8.
    """
    if (Path(source) / "index.json").is_file():
        return _open_shards(Path(source))
    if isinstance(tokenizer, str):
        tokenizer = train_tokenizer(source, tokenizer, vocab_size)
    digest = hashlib.sha256()
    encoded, starts, count = [np.zeros(0, np.int32)], [], 0
    for piece in read_pieces(source, document_separator):
        digest.update(piece.text.encode("utf-8"))
        if piece.starts_document:
            starts.append(count)
        encoded.append(tokenizer.encode(piece.text))
        count += len(encoded[-1])
    tokens = np.concatenate(encoded).astype(_narrowest_dtype(tokenizer.vocab_size))
    stream = TokenStream(tokens, np.array(starts, np.int64), 0, len(tokens), source)
    return LoadedText(stream, tokenizer, digest.hexdigest())


def train_tokenizer(source: str, kind: str, vocab_size: int) -> Tokenizer:
    """Makes a tokenizer of a kind in TOKENIZERS from the whole text of a source."""
    return TOKENIZERS[kind].train((piece.text for piece in read_pieces(source)), vocab_size)


def read_pieces(source: str, document_separator: str | None = None) -> Iterator[Piece]:
    """Reads a source as pieces of about a million characters, each cut after a line.

    Args:
      source: a name in EMBEDDED, a file or a folder, as in load_text.
      document_separator: as in load_text.
    Yields:
      Pieces in order; joined, they are the exact text.
    Raises:
      InvalidInput: the source is missing, empty, or not UTF-8.
    """
    is_empty = True
    for path in find_files(source):
        lines: list[str] = []
        size, starts_document = 0, True
        for line in _lines(path):
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


def find_files(source: str) -> list[Path]:
    """Returns the files of a source, in the order of their text.

    Raises:
      InvalidInput: there is no such source, or no text in it.
    """
    if source in EMBEDDED:
        return [EMBEDDED[source]]
    path = Path(source)
    if path.is_file():
        return [path]
    if path.is_dir():
        found = sorted(file for file in path.rglob("*.txt") if file.is_file())
        if found:
            return found
        raise InvalidInput(f"data.source={source}: the folder holds no .txt file and no shards")
    raise InvalidInput(
        f"data.source={source}: no such file or folder; embedded texts are: {', '.join(EMBEDDED)}"
    )


def _lines(path: Path) -> Iterator[str]:
    """Decodes line by line without touching line ends, so that every byte survives."""
    offset = 0
    try:
        with _open_binary(path) as file:
            for line in file:
                yield line.decode("utf-8")
                offset += len(line)
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"{path}: expected UTF-8, got byte 0x{error.object[error.start]:02X} at offset "
            f"{offset + error.start}\nconvert the file first: iconv -f latin1 -t utf-8"
        ) from error
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput(f"{path}: cannot be read after {offset} bytes: {error}") from error


def _open_binary(path: Path) -> BinaryIO:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # ty: ignore


def _narrowest_dtype(vocab_size: int) -> np.dtype:
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


# ---------------------------------------------------------------- shards


class ShardedTokens:
    """Several memory-mapped files that read as one row of tokens."""

    def __init__(self, paths: list[Path], counts: list[int], dtype: np.dtype) -> None:
        """Maps the files; nothing is read before it is asked for."""
        self._shards = [
            np.memmap(path, dtype, "r", shape=(n,)) for path, n in zip(paths, counts, strict=True)
        ]
        self._ends = np.cumsum(counts)

    def refuse_beyond(self, vocab_size: int) -> None:
        """Reads every token once and refuses one that is outside the vocabulary.

        Raises:
          InvalidInput: naming the file and the place.
        """
        for shard in self._shards:
            for first in range(0, len(shard), _PIECE_TOKENS):
                piece = shard[first : first + _PIECE_TOKENS]
                if piece.max() >= vocab_size:
                    place = int(np.argmax(piece >= vocab_size))
                    raise InvalidInput(
                        f"{shard.filename}: token {piece[place]} at offset {first + place} is "
                        f"outside the vocabulary of {vocab_size} tokens\n"
                        "make the shards again with python -m experiments.tokenize"
                    )

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, indices: np.ndarray) -> np.ndarray:
        owners = np.searchsorted(self._ends, indices, side="right")
        picked = np.empty(indices.shape, self._shards[0].dtype)
        for owner in np.unique(owners):
            mine = owners == owner
            begin = self._ends[owner] - len(self._shards[owner])
            picked[mine] = self._shards[owner][indices[mine] - begin]
        return picked


def refuse_used_folder(folder: Path) -> None:
    """Raises InvalidInput where a folder of shards would mix with other files."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InvalidInput(f"--out={folder}: expected a new or an empty folder")


def write_shards(
    pieces: Iterable[Piece], tokenizer: Tokenizer, folder: Path, shard_tokens: int = 100_000_000
) -> int:
    """Tokenizes pieces of text into shards that need not fit in memory.

    The folder gets `tokens-00000.bin` ... (raw little-endian uint16, or uint32 for a vocabulary
    above 65,536), `documents.npy` (int64 starts), `tokenizer.json` and, last, `index.json`.

    Args:
      pieces: text in order.
      tokenizer: gives the tokens.
      folder: a new or empty folder.
      shard_tokens: most tokens in one file.
    Returns:
      Number of tokens written.
    Raises:
      InvalidInput: the folder holds something already, or shard_tokens < 1.
    """
    if shard_tokens < 1:
        raise InvalidInput(f"--shard_tokens={shard_tokens}: expected at least 1")
    refuse_used_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    dtype = _narrowest_dtype(tokenizer.vocab_size)
    digest = hashlib.sha256()
    starts, shards, count = [], [], 0
    for piece in pieces:
        digest.update(piece.text.encode("utf-8"))
        if piece.starts_document:
            starts.append(count)
        tokens = tokenizer.encode(piece.text).astype(dtype)
        count += len(tokens)
        while len(tokens):
            if not shards or shards[-1]["tokens"] == shard_tokens:
                shards.append({"file": f"tokens-{len(shards):05d}.bin", "tokens": 0})
            head = tokens[: shard_tokens - shards[-1]["tokens"]]
            with (folder / shards[-1]["file"]).open("ab") as file:
                file.write(head.tobytes())
            shards[-1]["tokens"] += len(head)
            tokens = tokens[len(head) :]
    np.save(folder / "documents.npy", np.array(starts, np.int64))
    (folder / "tokenizer.json").write_text(tokenizer_text(tokenizer), encoding="utf-8")
    index = {
        "format": _SHARD_FORMAT,
        "dtype": dtype.str,
        "text_sha256": digest.hexdigest(),
        "shards": shards,
    }
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")
    return count


def _open_shards(folder: Path) -> LoadedText:
    try:
        index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        if index["format"] != _SHARD_FORMAT or index["dtype"] not in ("<u2", "<u4"):
            raise ValueError(f"format {index['format']}, dtype {index['dtype']}")
        names = [str(shard["file"]) for shard in index["shards"]]
        counts = [int(shard["tokens"]) for shard in index["shards"]]
        text_sha256 = str(index["text_sha256"])
        starts = np.load(folder / "documents.npy", allow_pickle=False)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{folder}: not a readable folder of shards: {error!r}") from error
    dtype = np.dtype(index["dtype"])
    for name, count in zip(names, counts, strict=True):
        path = folder / name
        size = path.stat().st_size if path.is_file() and path.parent == folder else -1
        if size != count * dtype.itemsize:
            raise InvalidInput(
                f"{path}: expected {count * dtype.itemsize} bytes, found "
                f"{'no file' if size < 0 else size}; make the shards again"
            )
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    tokens = ShardedTokens([folder / name for name in names], counts, dtype)
    tokens.refuse_beyond(tokenizer.vocab_size)
    stream = TokenStream(tokens, starts, 0, len(tokens), str(folder))
    return LoadedText(stream, tokenizer, text_sha256)


# ---------------------------------------------------------------- order


def example_order(
    seed: int, step: int, batch_size: int, num_examples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which examples make the batch of a step: random access into shuffled epochs.

    Epoch e is a permutation of all examples drawn from (seed, e) alone, and epochs follow each
    other without a gap, so every example comes exactly once per epoch whatever the batch size; a
    batch may hold the end of one epoch and the start of the next.

    Args:
      seed: of the run.
      step: optimizer updates so far.
      batch_size: examples in the batch, B.
      num_examples: examples in an epoch.
    Returns:
      examples [B] int64 and the epoch of each [B] int64.
    """
    epochs, places = np.divmod(np.arange(step * batch_size, (step + 1) * batch_size), num_examples)
    examples = np.empty(batch_size, np.int64)
    for epoch in np.unique(epochs):
        mine = epochs == epoch
        examples[mine] = _permutation(seed, int(epoch), num_examples)[places[mine]]
    return examples, epochs


def epoch_generator(seed: int, epoch: int) -> np.random.Generator:
    """Returns the random numbers that belong to one epoch of one run."""
    return np.random.default_rng(np.random.SeedSequence((seed, epoch)))


@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    return epoch_generator(seed, epoch).permutation(num_examples)

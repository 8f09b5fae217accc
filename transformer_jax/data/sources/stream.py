"""Streams of tokens, with the positions at which documents start."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from transformer_jax.data.order import SPLITS
from transformer_jax.data.tokenizers import Tokenizer

COUNTED_AT_ONCE = 1 << 24  # tokens in a block whose bytes are counted in one pass


class TokenRow(Protocol):
    """Interface of N tokens, indexed by an array or a slice: an array, or files read on demand."""

    def __len__(self) -> int: ...
    def __getitem__(self, indices: Any, /) -> Any: ...


class JoinedTokens:
    """View of several rows of tokens as one row, without a copy."""

    def __init__(self, rows: Sequence[TokenRow]) -> None:
        self._rows = rows
        self._ends = np.cumsum([len(row) for row in rows])
        self._begins = [0, *self._ends[:-1]]

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, indices: np.ndarray | slice) -> np.ndarray:
        if isinstance(indices, slice):
            parts = zip(self._rows, self._begins, strict=True)
            first, last = indices.start, indices.stop
            return np.concatenate(
                [row[max(0, first - begin) : max(0, last - begin)] for row, begin in parts]
            )
        owners = np.searchsorted(self._ends, indices, side="right")
        picked = np.empty(indices.shape, np.int64)
        for owner in np.unique(owners):
            mine = owners == owner
            picked[mine] = self._rows[owner][indices[mine] - self._begins[owner]]
        return picked


class Piece(NamedTuple):
    """A piece of text that ends at the end of a line, a document or a file."""

    text: str
    starts_document: bool


@dataclasses.dataclass(frozen=True)
class TokenStream:
    """Tokens from `begin` up to `end` in a longer row of tokens, with their documents.

    Attributes:
      tokens: The longer row of tokens.
      document_starts: Index in `tokens` at which each document starts, int64, ascending from 0.
      begin: Index of the first token of this stream.
      end: Index one past its last token.
      name: Name of the source, for messages.
      byte_ends: Number of bytes up to the end of each block of COUNTED_AT_ONCE tokens, if this is
        the whole row and they are known without reading the tokens; else None.
    """

    tokens: TokenRow
    document_starts: np.ndarray
    begin: int
    end: int
    name: str
    byte_ends: np.ndarray | None = None

    def __len__(self) -> int:
        return self.end - self.begin

    def __getitem__(self, indices: np.ndarray | slice) -> np.ndarray:
        if isinstance(indices, slice):
            first, last, _ = indices.indices(len(self))
            return self.tokens[self.begin + first : self.begin + last]
        return self.tokens[self.begin + indices]

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Returns tokens[start : start + length] for each start [B], counted from `begin`.

        The result is [B, length] int32; tokens beyond the end of the stream are 0.
        """
        places = self._places(starts, length)
        tokens = np.asarray(self.tokens[np.minimum(places, self.end - 1)])
        return np.where(places < self.end, tokens, 0).astype(np.int32)

    def document_of(self, starts: np.ndarray) -> np.ndarray:
        """Returns the index of the document at each position in `starts` [B], as [B] int64."""
        return np.searchsorted(self.document_starts, self.begin + starts, side="right") - 1

    def documents(self, starts: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns each token's document and position in it, for the windows at `starts` [B].

        Returns:
          segments [B, L] int32, the documents numbered from 1 in each window; and positions [B, L]
          int32, counted from 0 at the start of the document or, if later, of the window.
        """
        places = self._places(starts, length)
        documents = np.searchsorted(self.document_starts, places, side="right") - 1
        document_begins = np.maximum(self.document_starts[documents], places[:, :1])
        segments = documents - documents[:, :1] + 1
        return segments.astype(np.int32), (places - document_begins).astype(np.int32)

    def _places(self, starts: np.ndarray, length: int) -> np.ndarray:
        return self.begin + np.asarray(starts, np.int64)[:, None] + np.arange(length)

    def split(
        self, fractions: tuple[float, ...], token_bytes: np.ndarray | None = None
    ) -> dict[str, "TokenStream"]:
        """Returns consecutive parts of the stream by split: train, validation, test.

        If the number of bytes in each token is given, [V] int, `fractions` are of bytes, so that
        the parts of a text are the same for all tokenizers, up to one token; otherwise of tokens.
        """
        shares = np.cumsum(fractions)[:-1]
        if token_bytes is None:
            counts = [int(share * len(self)) for share in shares]
        else:
            counts = self._tokens_within(shares, token_bytes)
        cuts = [self.begin, *(self.begin + count for count in counts), self.end]
        return {
            s: TokenStream(self.tokens, self.document_starts, begin, end, f"{self.name} ({s})")
            for s, begin, end in zip(SPLITS, cuts, cuts[1:], strict=False)
        }

    def _tokens_within(self, shares: np.ndarray, token_bytes: np.ndarray) -> list[int]:
        """Returns the number of leading tokens within each cumulative share of the bytes."""
        if not len(self):
            return [0 for _ in shares]
        firsts = range(0, len(self), COUNTED_AT_ONCE)

        def sizes(first: int) -> np.ndarray:
            return token_bytes[self[first : first + COUNTED_AT_ONCE]]

        ends = self.byte_ends
        if ends is None:
            ends = np.cumsum([sizes(first).sum() for first in firsts])
        counts = []
        for wanted in shares * ends[-1]:
            piece = min(int(np.searchsorted(ends, wanted, side="right")), len(ends) - 1)
            before = ends[piece - 1] if piece else 0
            within = np.searchsorted(np.cumsum(sizes(firsts[piece])), wanted - before, side="right")
            counts.append(firsts[piece] + int(within))
        return counts


class LoadedText(NamedTuple):
    """A tokenized source: its tokens, their tokenizer, and the sha256 of the text."""

    stream: TokenStream
    tokenizer: Tokenizer
    text_sha256: str


def narrowest_dtype(vocab_size: int) -> np.dtype:
    """Returns the narrower little-endian dtype, uint16 or uint32, that holds all token IDs."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")

"""Tokenizers: bytes, characters, byte-pair encoding, words, and Hugging Face files.

A tokenizer is made from text or from its own JSON. Bytes, characters and byte pairs are lossless:
decode(encode(text)) == text, or encode raises InvalidInput. Word tokenizers, and some Hugging Face
tokenizers, lose information, so the bytes of their tokens are unknown.
"""

import hashlib
import itertools
import json
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np

from transformer_jax.errors import InvalidInput
from transformer_jax.options import entry_of


class Tokenizer(Protocol):
    """Interface of a tokenizer.

    A user-defined class, `data.tokenizer=MODULE:NAME`, also has two class methods: `train(texts,
    vocab_size)`, with the training split's text, and `from_json`, with the result of to_json.
    """

    @property
    def vocab_size(self) -> int:
        """Number of tokens, V."""

    @property
    def token_bytes(self) -> np.ndarray | None:
        """Number of UTF-8 bytes in each token, [V] int64, or None if unknown."""

    def encode(self, text: str) -> np.ndarray:
        """Returns the tokens of a text, [N] int32."""

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of the tokens."""

    def to_json(self) -> dict:
        """Returns the argument of `from_json`."""


class Stored:
    """Base class of tokenizers whose JSON has their kind and the arguments of `__init__`."""

    @classmethod
    def from_json(cls, state: dict) -> Self:
        """Returns a tokenizer from the result of to_json."""
        return cls(**{name: value for name, value in state.items() if name != "kind"})


class ByteTokenizer(Stored):
    """Tokenizer with one token per UTF-8 byte; the vocabulary always has 256 tokens."""

    vocab_size = 256
    token_bytes = np.ones(256, np.int64)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "ByteTokenizer":
        """Returns the tokenizer, which needs no training; the arguments are ignored."""
        return cls()

    def to_json(self) -> dict:
        """Returns a dict with the kind alone, since there is no state."""
        return {"kind": "byte"}

    def encode(self, text: str) -> np.ndarray:
        """Returns the UTF-8 bytes of a text as tokens, [N] int32."""
        return np.frombuffer(refuse_surrogates(text), np.uint8).astype(np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of the tokens; invalid UTF-8 becomes the replacement character."""
        return bytes(known(tokens, 256)).decode("utf-8", errors="replace")


class CharTokenizer(Stored):
    """Tokenizer with one token per distinct character (code point), in sorted order."""

    def __init__(self, symbols: str) -> None:
        self._symbols = np.array([ord(symbol) for symbol in symbols], np.uint32)
        self._order = np.argsort(self._symbols, kind="stable")
        self.vocab_size = len(symbols)
        sizes = [len(refuse_surrogates(symbol)) for symbol in symbols]
        self.token_bytes = np.array(sizes, np.int64)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "CharTokenizer":
        """Returns a tokenizer of all characters in the texts; vocab_size is ignored."""
        return cls("".join(sorted(set(itertools.chain.from_iterable(texts)))))

    def to_json(self) -> dict:
        """Returns a dict with the kind, and the vocabulary as one string."""
        return {"kind": "char", "symbols": "".join(map(chr, self._symbols))}

    def encode(self, text: str) -> np.ndarray:
        """Returns one token per character, [N] int32.

        Raises:
          InvalidInput: A character is not in the vocabulary; the message names it and its offset.
        """
        points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        ordered = self._symbols[self._order]
        slots = np.minimum(np.searchsorted(ordered, points), self.vocab_size - 1)
        unknown = np.flatnonzero(ordered[slots] != points)
        if unknown.size:
            offset = int(unknown[0])
            raise InvalidInput(
                f"text: character {text[offset]!r} (U+{ord(text[offset]):04X}) at offset {offset} "
                f"is not among the {self.vocab_size} characters that this tokenizer knows\n"
                f"known: {self.to_json()['symbols']!r}\n"
                "remove it, or train with data.tokenizer=byte or bpe, which can encode any text"
            )
        return self._order[slots].astype(np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of the tokens."""
        return "".join(chr(self._symbols[token]) for token in known(tokens, self.vocab_size))


class NumberTokenizer(Stored):
    """Tokenizer of files that have tokens and no text: the text of a token is its number."""

    token_bytes = None

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "NumberTokenizer":
        """Returns a tokenizer of `vocab_size` tokens; the texts are ignored."""
        return cls(vocab_size)

    def to_json(self) -> dict:
        """Returns a dict with the kind and the size of the vocabulary."""
        return {"kind": "numbers", "vocab_size": self.vocab_size}

    def encode(self, text: str) -> np.ndarray:
        """Returns the numbers in a text, [N] int32."""
        for word in text.split():
            if not (word.isdecimal() and len(word) < 10 and int(word) < self.vocab_size):
                expected = f"expected numbers of tokens below {self.vocab_size}"
                raise InvalidInput(f"text: {word[:20]!r}: {expected}")
        return np.array(text.split(), np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the numbers of the tokens, separated by spaces."""
        return " ".join(str(int(token)) for token in tokens)


def known(tokens: Iterable[int], vocab_size: int) -> list[int]:
    """Returns tokens as integers; raises InvalidInput if one is not in the vocabulary."""
    numbers = [int(token) for token in tokens]
    if wrong := [token for token in numbers if not 0 <= token < vocab_size]:
        raise InvalidInput(f"tokens: expected 0 to {vocab_size - 1}, got {wrong[0]}")
    return numbers


def refuse_surrogates(text: str) -> bytes:
    """Returns the UTF-8 bytes of a text without lone surrogates.

    Raises:
      InvalidInput: The text contains half of a surrogate pair, which UTF-8 cannot encode.
    """
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        symbol = ord(text[error.start])
        raise InvalidInput(
            f"text: U+{symbol:04X} at offset {error.start} is half of a surrogate pair, "
            "which UTF-8 cannot encode; remove it"
        ) from error


def encode_corpus(tokenizer: Any, text: str) -> np.ndarray:
    """Returns the tokens of a text, [N] int32; if they lose some of it, their bytes are unknown."""
    tokens = tokenizer.encode(text)
    has_bytes = tokenizer.token_bytes is not None and hasattr(tokenizer, "loses")
    if has_bytes and tokenizer.loses(text, tokens):
        told = "this tokenizer loses or adds text, so bits per byte are unknown"
        warnings.warn(told, stacklevel=2)
        tokenizer.token_bytes = None
    return tokens


def unknown_words(tokenizer: Any, tokens: np.ndarray | None = None) -> str:
    """Returns a remark on unknown words among tokens, or in all texts encoded so far; or ""."""
    unknown = getattr(tokenizer, "unknown", None)
    if unknown is None or not hasattr(tokenizer, "counts"):  # e.g. the user's own
        return ""
    counts = tokenizer.counts if tokens is None else ((tokens == unknown).sum(), tokens.size)
    return f"{counts[0]:,} of {counts[1]:,} tokens stand for unknown words" if counts[0] else ""


def warn_of_unknown(tokenizer: Any, tokens: np.ndarray | None = None) -> None:
    """Warns of unknown words; see unknown_words."""
    if remark := unknown_words(tokenizer, tokens):
        warnings.warn(remark, stacklevel=3)


_SUBWORDS = "transformer_jax.data.subword_tokenizers"
TOKENIZERS: dict[str, Any] = {
    "byte": ByteTokenizer,
    "char": CharTokenizer,
    "bpe": f"{_SUBWORDS}:BPETokenizer",
    "word": f"{_SUBWORDS}:WordTokenizer",
    "numbers": NumberTokenizer,
}
_KINDS = {**TOKENIZERS, "huggingface": f"{_SUBWORDS}:HuggingFaceTokenizer"}


def make_tokenizer(
    choice: str | Tokenizer | type,
    texts: Callable[[], Iterable[str]],
    vocab_size: int,
    whole: Callable[[], Iterable[str]] | None = None,
) -> Tokenizer:
    """Returns the chosen tokenizer, which is trained or loaded if necessary.

    Args:
      choice: A name in TOKENIZERS or a user-defined class, which is then trained; the path of a
        tokenizer.json (a run's, or Hugging Face's) or of its folder; or a tokenizer.
      texts: Function that returns the training text.
      vocab_size: Maximum number of tokens of a trained tokenizer.
      whole: Function that returns all text, every character of which a char tokenizer has.
    Raises:
      InvalidInput: There is no such name or file.
    """
    if isinstance(choice, type):
        return choice.train(texts(), vocab_size)  # ty: ignore[missing-attribute]
    if not isinstance(choice, str):
        return choice
    if choice in TOKENIZERS:
        read = whole if whole and choice == "char" else texts
        return entry_of(TOKENIZERS, choice).train(read(), vocab_size)
    path = Path(choice)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        wanted = f"one of {', '.join(TOKENIZERS)}, or the path of a tokenizer.json"
        raise InvalidInput(f"data.tokenizer={choice}: expected {wanted}")
    return load_tokenizer(path)


def fingerprint(tokenizer: Tokenizer) -> str:
    """Returns the sha256 of a tokenizer's JSON as a hexadecimal string."""
    canonical = json.dumps(tokenizer.to_json(), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def tokenizer_text(tokenizer: Tokenizer) -> str:
    """Returns a built-in or user-defined tokenizer as the JSON text that load_tokenizer reads."""
    state, kind = tokenizer.to_json(), type(tokenizer)
    if state.get("kind") not in _KINDS:
        state = {"kind": f"{kind.__module__}:{kind.__name__}", "state": state}
    return json.dumps(state, ensure_ascii=True) + "\n"


def load_tokenizer(path: Path, own: Any = None) -> Tokenizer:
    """Returns the tokenizer in a file from tokenizer_text, or in a Hugging Face tokenizer.json.

    `own` is the only user-defined class that the file is allowed to name.

    Raises:
      InvalidInput: The file is missing or damaged, or contains no known tokenizer.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if "kind" not in state and "model" in state:
            state = {"kind": "huggingface", "model": state, "folder": path.parent}
        kind = str(state["kind"])
        if kind not in _KINDS and own and kind == f"{own.__module__}:{own.__name__}":
            return own.from_json(state["state"])
        return entry_of(_KINDS, kind).from_json(state)
    except InvalidInput:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for bad JSON
        wanted = f"expected the JSON of a tokenizer ({', '.join(_KINDS)})"
        raise InvalidInput(f"{path}: {wanted} ({error!r})") from error

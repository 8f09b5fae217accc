"""Text to token numbers and back: bytes, characters, and byte-pair encoding.

Each tokenizer is a value: made from text, or from the plain JSON that it gives of itself. All are
lossless: decode(encode(text)) == text, or encode refuses.
"""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np

from transformer_jax.errors import InvalidInput


class Tokenizer(Protocol):
    """What every row of TOKENIZERS can do.

    Attributes:
      vocab_size: tokens, V.
      token_bytes: [V] int64, UTF-8 bytes that each token stands for.
    """

    vocab_size: int
    token_bytes: np.ndarray

    def encode(self, text: str) -> np.ndarray:
        """Returns the tokens of a text, [N] int32."""
        ...

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens."""
        ...

    def to_json(self) -> dict:
        """Returns what `from_json` of the same class takes."""
        ...


class ByteTokenizer:
    """One token a byte of UTF-8: 256 tokens, knows every text."""

    vocab_size = 256
    token_bytes = np.ones(256, np.int64)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "ByteTokenizer":
        """Needs no training; takes the arguments that all rows take."""
        return cls()

    @classmethod
    def from_json(cls, state: dict) -> "ByteTokenizer":
        """The inverse of to_json."""
        return cls()

    def to_json(self) -> dict:
        """Nothing to remember."""
        return {"kind": "byte"}

    def encode(self, text: str) -> np.ndarray:
        """Returns the UTF-8 bytes, [N] int32."""
        return np.frombuffer(_utf8(text), np.uint8).astype(np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text; bytes that are no UTF-8 show as the replacement character."""
        return bytes(int(token) for token in tokens).decode("utf-8", errors="replace")


class CharTokenizer:
    """One token a character (code point) of the text that it was trained on, in sorted order."""

    def __init__(self, symbols: str) -> None:
        """Takes the characters of the vocabulary; their order gives the token numbers."""
        self._symbols = np.array([ord(symbol) for symbol in symbols], np.uint32)
        self._order = np.argsort(self._symbols, kind="stable")
        self.vocab_size = len(symbols)
        self.token_bytes = np.array([len(_utf8(symbol)) for symbol in symbols], np.int64)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "CharTokenizer":
        """Collects the characters of the texts; takes them all, whatever vocab_size is."""
        symbols: set[str] = set()
        for text in texts:
            symbols.update(text)
        return cls("".join(sorted(symbols)))

    @classmethod
    def from_json(cls, state: dict) -> "CharTokenizer":
        """The inverse of to_json."""
        return cls(state["symbols"])

    def to_json(self) -> dict:
        """The vocabulary as one string."""
        return {"kind": "char", "symbols": "".join(map(chr, self._symbols))}

    def encode(self, text: str) -> np.ndarray:
        """Returns one token a character, [N] int32.

        Raises:
          InvalidInput: a character is not in the vocabulary; the text names it and its place.
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
                "leave it out, or train with data.tokenizer=byte or bpe, which know every text"
            )
        return self._order[slots].astype(np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the characters of the tokens."""
        return "".join(chr(self._symbols[int(token)]) for token in tokens)


class BPETokenizer:
    """Byte-level byte-pair encoding (GPT-2's), trained and run by Hugging Face `tokenizers`."""

    def __init__(self, model) -> None:
        """Takes a `tokenizers.Tokenizer`."""
        self._model = model
        self.vocab_size = model.get_vocab_size()
        # The byte-level alphabet writes each byte as one character.
        lengths = [len(model.id_to_token(token)) for token in range(self.vocab_size)]
        self.token_bytes = np.array(lengths, np.int64)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "BPETokenizer":
        """Merges the commonest pairs until there are vocab_size tokens (at least 256)."""
        library = _tokenizers_library()
        model = library.Tokenizer(library.models.BPE())
        model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocab_size,
            initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        model.train_from_iterator(texts, trainer)
        return cls(model)

    @classmethod
    def from_json(cls, state: dict) -> "BPETokenizer":
        """The inverse of to_json."""
        return cls(_tokenizers_library().Tokenizer.from_str(json.dumps(state["model"])))

    def to_json(self) -> dict:
        """The library's own format, under `model`."""
        return {"kind": "bpe", "model": json.loads(self._model.to_str())}

    def encode(self, text: str) -> np.ndarray:
        """Returns the merged tokens, [N] int32."""
        _utf8(text)
        return np.array(self._model.encode(text).ids, np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text; bytes that are no UTF-8 show as the replacement character."""
        return self._model.decode([int(token) for token in tokens], skip_special_tokens=False)


def _tokenizers_library():
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError as error:
        raise InvalidInput(
            "data.tokenizer=bpe needs the package tokenizers: "
            "pip install 'transformer_jax[train]', or choose char or byte"
        ) from error
    return tokenizers


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        symbol = ord(text[error.start])
        raise InvalidInput(
            f"text: U+{symbol:04X} at offset {error.start} is half of a surrogate pair, "
            "which UTF-8 cannot write; remove it"
        ) from error


TOKENIZERS = {"byte": ByteTokenizer, "char": CharTokenizer, "bpe": BPETokenizer}


def fingerprint(tokenizer: Tokenizer) -> str:
    """Returns the sha256 of the tokenizer's JSON, to tell two tokenizers apart."""
    canonical = json.dumps(tokenizer.to_json(), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def tokenizer_text(tokenizer: Tokenizer) -> str:
    """Returns a tokenizer as the plain JSON that load_tokenizer reads."""
    return json.dumps(tokenizer.to_json(), ensure_ascii=True) + "\n"


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads a file that holds what tokenizer_text gave.

    Raises:
      InvalidInput: the file is missing, damaged or names no row of TOKENIZERS.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return TOKENIZERS[state["kind"]].from_json(state)
    except InvalidInput:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for bad JSON
        kinds = ", ".join(TOKENIZERS)
        raise InvalidInput(
            f"{path}: expected the JSON of a tokenizer ({kinds}), got {error!r}"
        ) from error

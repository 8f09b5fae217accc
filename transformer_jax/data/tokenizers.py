"""Text to token numbers and back: bytes, characters, byte-pair encoding, words, and others' files.

Each tokenizer is a value: made from text, or from the plain JSON that it gives of itself. Bytes,
characters and byte pairs are lossless: decode(encode(text)) == text, or encode refuses. Words, and
tokenizers read from a Hugging Face file, lose what they do not know, and count no bytes.
"""

import collections
import hashlib
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from transformer_jax.errors import InvalidInput


class Tokenizer(Protocol):
    """What every row of TOKENIZERS can do.

    A class of your own, `data.tokenizer=MODULE:NAME`, also has two class methods: `train(texts,
    vocab_size)` makes one from the text of the training split, `from_json` from what to_json gave.
    """

    @property
    def vocab_size(self) -> int:
        """Tokens, V."""
        ...

    @property
    def token_bytes(self) -> np.ndarray | None:
        """UTF-8 bytes that each token stands for, [V] int64; None if that is not known."""
        ...

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
        library = tokenizers_library()
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
        return cls(tokenizers_library().Tokenizer.from_str(json.dumps(state["model"])))

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


def tokenizers_library() -> Any:
    """Returns the package tokenizers.

    Raises:
      InvalidInput: it is not installed.
    """
    try:
        import tokenizers
    except ImportError as error:
        raise InvalidInput(
            "data.tokenizer: bpe and tokenizer.json need the package tokenizers: "
            "pip install 'transformer_jax[train]', or choose char, byte or word"
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


class WordTokenizer:
    """One token a word or a punctuation mark, in lower case; the rarer ones are <unknown>.

    For models that start from word vectors. Decoding joins the words with spaces.
    """

    token_bytes = None
    _PATTERN = re.compile(r"\w+|[^\w\s]")

    def __init__(self, words: list[str]) -> None:
        """Takes the vocabulary; the first entry stands for what is not in it."""
        self.words = words
        self.vocab_size = len(words)
        self._numbers = {word: number for number, word in enumerate(words)}

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "WordTokenizer":
        """Takes the commonest words, vocab_size at most, in that order."""
        counts = collections.Counter(word for text in texts for word in cls._split(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(["<unknown>", *ranked[: vocab_size - 1]])

    @classmethod
    def from_json(cls, state: dict) -> "WordTokenizer":
        """The inverse of to_json."""
        return cls([str(word) for word in state["words"]])

    def to_json(self) -> dict:
        """The vocabulary in order."""
        return {"kind": "word", "words": self.words}

    def encode(self, text: str) -> np.ndarray:
        """Returns one token a word, [N] int32; 0 for a word that is not known."""
        _utf8(text)
        return np.array([self._numbers.get(word, 0) for word in self._split(text)], np.int32)

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the words, joined by spaces."""
        return " ".join(self.words[int(token)] for token in tokens)

    @classmethod
    def _split(cls, text: str) -> list[str]:
        return cls._PATTERN.findall(text.lower())


class HuggingFaceTokenizer:
    """A tokenizer.json of Hugging Face `tokenizers`, as it comes with pretrained weights."""

    token_bytes = None

    def __init__(self, model) -> None:
        """Takes a `tokenizers.Tokenizer`; padding and truncation are left to the task."""
        model.no_padding()
        model.no_truncation()
        self._model = model
        # Their numbers may have gaps.
        self.vocab_size = 1 + max(model.get_vocab(with_added_tokens=True).values(), default=-1)

    @classmethod
    def from_json(cls, state: dict) -> "HuggingFaceTokenizer":
        """The inverse of to_json."""
        return cls(tokenizers_library().Tokenizer.from_str(json.dumps(state["model"])))

    def to_json(self) -> dict:
        """The library's own format, under `model`."""
        return {"kind": "huggingface", "model": json.loads(self._model.to_str())}

    def encode(self, text: str) -> np.ndarray:
        """Returns the tokens, [N] int32, without special ones.

        Raises:
          InvalidInput: a character is in no token; the text names it and its place.
        """
        _utf8(text)
        try:
            return np.array(self._model.encode(text, add_special_tokens=False).ids, np.int32)
        except Exception as error:  # the library raises bare Exception where none means "unknown"
            raise InvalidInput(f"text: {self._unknown(text)}") from error

    def encode_whole(self, text: str) -> list[int]:
        """Returns the tokens of a text with the special ones around it that its model reads."""
        self.encode(text)  # refuses what it does not know
        return self._model.encode(text).ids

    def _unknown(self, text: str) -> str:
        """Names the first character that cannot be encoded by itself."""
        for offset, symbol in enumerate(text):
            try:
                self._model.encode(symbol, add_special_tokens=False)
            except Exception:
                named = f"character {symbol!r} (U+{ord(symbol):04X}) at offset {offset}"
                return f"{named} is not known to this tokenizer"
        return "a part of it is not known to this tokenizer"

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of tokens, without special ones."""
        return self._model.decode([int(token) for token in tokens])

    @property
    def is_byte_level(self) -> bool:
        """Whether a word's token holds the space before it, as GPT-2's do."""
        return '"ByteLevel"' in json.dumps(json.loads(self._model.to_str())["pre_tokenizer"])

    def number_of(self, *names: str) -> int | None:
        """Returns the number of the first of these tokens that there is."""
        found = [self._model.token_to_id(name) for name in names]
        return next((number for number in found if number is not None), None)


TOKENIZERS = {
    "byte": ByteTokenizer,
    "char": CharTokenizer,
    "bpe": BPETokenizer,
    "word": WordTokenizer,
}
_KINDS = {**TOKENIZERS, "huggingface": HuggingFaceTokenizer}


def make_tokenizer(
    choice: str | Tokenizer | type,
    texts: Callable[[], Iterable[str]],
    vocab_size: int,
    whole: Callable[[], Iterable[str]] | None = None,
) -> Tokenizer:
    """Returns the tokenizer that a config names.

    Args:
      choice: a name in TOKENIZERS, which is then trained, or a class of your own; the path of a
        tokenizer.json (a run's, or Hugging Face's) or of its folder; or a tokenizer.
      texts: gives the text to train on, that of the training split.
      vocab_size: tokens that a trained one shall have at most.
      whole: gives all text, where that is more: a tokenizer of characters has to know them all.
    Raises:
      InvalidInput: no such name or file.
    """
    if isinstance(choice, type):
        return choice.train(texts(), vocab_size)  # ty: ignore[missing-attribute]
    if not isinstance(choice, str):
        return choice
    if choice in TOKENIZERS:
        everything = whole if whole is not None and choice == "char" else texts
        return TOKENIZERS[choice].train(everything(), vocab_size)
    path = Path(choice)
    path = path / "tokenizer.json" if path.is_dir() else path
    if not path.is_file():
        wanted = f"one of {', '.join(TOKENIZERS)}, or the path of a tokenizer.json"
        raise InvalidInput(f"data.tokenizer={choice}: expected {wanted}")
    return load_tokenizer(path)


def fingerprint(tokenizer: Tokenizer) -> str:
    """Returns the sha256 of the tokenizer's JSON, to tell two tokenizers apart."""
    canonical = json.dumps(tokenizer.to_json(), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def tokenizer_text(tokenizer: Tokenizer) -> str:
    """Returns a tokenizer as the plain JSON that load_tokenizer reads.

    That of a class of the user's own names the class as its kind.
    """
    state, kind = tokenizer.to_json(), type(tokenizer)
    if kind not in _KINDS.values():
        state = {"kind": f"{kind.__module__}:{kind.__name__}", "state": state}
    return json.dumps(state, ensure_ascii=True) + "\n"


def load_tokenizer(path: Path, own: Any = None) -> Tokenizer:
    """Reads a file that holds what tokenizer_text gave, or a Hugging Face tokenizer.json.

    Args:
      path: of the file.
      own: the class of the user's own that the tokenizer is of.
    Raises:
      InvalidInput: the file is missing, damaged or holds no tokenizer that is known.
    """
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        if "kind" not in state and "model" in state:
            state = {"kind": "huggingface", "model": state}
        kind = state["kind"]
        if kind not in _KINDS and own and kind == f"{own.__module__}:{own.__name__}":
            return own.from_json(state["state"])
        return _KINDS[kind].from_json(state)
    except InvalidInput:
        raise
    except Exception as error:  # the tokenizers library raises bare Exception for bad JSON
        wanted = f"expected the JSON of a tokenizer ({', '.join(_KINDS)})"
        raise InvalidInput(f"{path}: {wanted}, got {error!r}") from error

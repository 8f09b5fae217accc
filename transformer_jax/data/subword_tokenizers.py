"""Byte-pair, word and Hugging Face tokenizers."""

import collections
import contextlib
import json
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from transformer_jax.data.tokenizers import Stored, known, refuse_surrogates
from transformer_jax.errors import InvalidInput

_SPECIAL = (
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
    *("additional_special_tokens", "extra_special_tokens"),
)
_BYTE = "<0x[0-9A-F]{2}>"  # a token of SentencePiece that stands for a byte


class _LibraryTokenizer:
    """Wrapper of a `tokenizers.Tokenizer`, which is stored in the library's own format."""

    _kind: ClassVar[str]
    _skips_special: ClassVar[bool]

    def __init__(self, model: Any) -> None:
        """Wraps a `tokenizers.Tokenizer`.

        Padding and truncation, which tasks do, and dropout, which draws, are disabled.
        """
        self._model = model
        model.no_padding()
        model.no_truncation()
        if rate := getattr(model.model, "dropout", None):
            warnings.warn(f"tokenizer.json: dropout={rate} is not used", stacklevel=2)
            model.model.dropout = None
        # The token IDs of Hugging Face tokenizers can have gaps.
        self.vocab_size = 1 + max(model.get_vocab(with_added_tokens=True).values(), default=-1)
        self._written, self.token_bytes, self.unknown = _facts_of(model, self.vocab_size)
        self.counts, self._alphabet = np.zeros(2, np.int64), _alphabet_of(model)

    @classmethod
    def from_json(cls, state: dict) -> Self:
        """Returns a tokenizer from the result of to_json."""
        return cls(tokenizers_library().Tokenizer.from_str(json.dumps(state["model"])))

    def to_json(self) -> dict:
        """Returns a dict with the kind, and the library's own JSON under `model`."""
        return {"kind": self._kind, "model": json.loads(self._model.to_str())}

    def encode(self, text: str) -> np.ndarray:
        """Returns the tokens of a text, [N] int32, without special tokens.

        Raises:
          InvalidInput: The tokenizer lacks a character; the message names it and its offset.
        """
        refuse_surrogates(text)
        try:
            tokens = np.array(self._model.encode(text, add_special_tokens=False).ids, np.int32)
        except Exception as error:  # the library raises bare Exception if no token means "unknown"
            raise InvalidInput(f"text: {self._unknown(text)}") from error
        if self._left_out(text):
            raise InvalidInput(f"text: {self._unknown(text)}")
        self.counts += ((tokens == self.unknown).sum(), tokens.size)
        return tokens

    def loses(self, text: str, tokens: np.ndarray) -> bool:
        """Returns whether tokens have other bytes than their text, but for spaces put before it."""
        added = int(self._written[tokens].sum()) - len(text.encode())
        return not 0 <= added <= 1 + (self.token_bytes[tokens] == 0).sum()

    def _left_out(self, text: str) -> set[str]:
        """Returns the characters, as the model reads them, that byte pairs leave out silently."""
        if self._alphabet is None:
            return set()
        model = self._model
        added = (re.escape(token.content) for token in model.get_added_tokens_decoder().values())
        parts = re.split("|".join(added) or "(?!)", text)
        parts = map(model.normalizer.normalize_str, parts) if model.normalizer else parts
        if split := model.pre_tokenizer:
            parts = (piece for part in parts for piece, _ in split.pre_tokenize_str(part))
        return set().union(*parts) - self._alphabet

    def _unknown(self, text: str) -> str:
        """Returns a message about the first character that cannot be encoded."""
        for offset, symbol in enumerate(text):
            with contextlib.suppress(Exception):  # as in encode
                self._model.encode(symbol, add_special_tokens=False)
                if not self._left_out(symbol):
                    continue
            named = f"character {symbol!r} (U+{ord(symbol):04X}) at offset {offset}"
            return f"{named} cannot be encoded by this tokenizer"
        return "a part of the text cannot be encoded by this tokenizer"

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text of the tokens; invalid UTF-8 becomes the replacement character."""
        numbers = [int(token) for token in tokens]
        return self._model.decode(numbers, skip_special_tokens=self._skips_special)


class BPETokenizer(_LibraryTokenizer):
    """Byte-level byte-pair encoding as in GPT-2, trained and run by Hugging Face `tokenizers`."""

    _kind, _skips_special = "bpe", False

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "BPETokenizer":
        """Returns a tokenizer of vocab_size tokens (at least 256), made by merging common pairs."""
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


def tokenizers_library() -> Any:
    """Returns the package `tokenizers`; raises InvalidInput if it is not installed."""
    try:
        import tokenizers
    except ImportError as error:
        raise InvalidInput(
            "data.tokenizer: bpe and tokenizer.json need the package tokenizers: "
            "pip install 'transformer_jax[train]', or choose char, byte or word"
        ) from error
    return tokenizers


class WordTokenizer(Stored):
    """Tokenizer with a token per lower-case word or punctuation mark; rare ones are <unknown>.

    It is meant for models that start from word vectors. The first entry of the vocabulary stands
    for unknown words. Decoding joins the words with spaces.
    """

    token_bytes, unknown = None, 0
    _PATTERN = re.compile(r"\w+|[^\w\s]")

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.vocab_size = len(words)
        self._numbers = {word: number for number, word in enumerate(words)}
        self.counts = np.zeros(2, np.int64)  # unknown words, and all, in the texts encoded so far

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "WordTokenizer":
        """Returns a tokenizer of at most vocab_size tokens: <unknown> and the most common words."""
        counts = collections.Counter(word for text in texts for word in cls._split(text))
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(["<unknown>", *ranked[: vocab_size - 1]])

    def to_json(self) -> dict:
        """Returns a dict with the kind, and the vocabulary in order."""
        return {"kind": "word", "words": self.words}

    def encode(self, text: str) -> np.ndarray:
        """Returns one token per word, [N] int32; 0 for an unknown word."""
        refuse_surrogates(text)
        tokens = np.array([self._numbers.get(word, 0) for word in self._split(text)], np.int32)
        self.counts += ((tokens == 0).sum(), tokens.size)
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the words, joined by spaces."""
        return " ".join(self.words[token] for token in known(tokens, self.vocab_size))

    @classmethod
    def _split(cls, text: str) -> list[str]:
        return cls._PATTERN.findall(text.lower())


def _facts_of(model: Any, vocab_size: int) -> tuple[Any, Any, int | None]:
    """Returns each token's UTF-8 bytes, [V] int64, with those of special tokens and without.

    They are None if decoding loses text. The third is the token of unknown words, or None.

    Byte-level BPE writes each byte as one character. SentencePiece (Metaspace) writes a space as
    U+2581 and the bytes of unknown characters as e.g. <0x0A>. WordPiece loses case and spaces.
    """
    state = json.loads(model.to_str())
    decoder = state.get("decoder") or {}
    kinds = {part.get("type") for part in (decoder, *decoder.get("decoders", ()))}
    symbols = [model.id_to_token(token) or "" for token in range(vocab_size)]
    unknown = model.token_to_id(state["model"].get("unk_token") or "")
    unknown = state["model"].get("unk_id", unknown)
    if "ByteLevel" in kinds:
        lengths = [len(symbol) for symbol in symbols]
    elif kinds & {"Metaspace", "Replace"}:
        lengths = [
            1 if re.fullmatch(_BYTE, symbol) else len(symbol.replace("▁", " ").encode())
            for symbol in symbols
        ]
    else:
        return None, None, unknown
    special = [token["id"] for token in state["added_tokens"] if token["special"]]
    written = np.array(lengths, np.int64)
    token_bytes = written.copy()
    token_bytes[[token for token in special if token < len(lengths)]] = 0
    if unknown is not None:
        written[unknown] = -1  # of no text
    is_whole = {*tokenizers_library().pre_tokenizers.ByteLevel.alphabet()} <= {*symbols}
    return written, token_bytes, None if "ByteLevel" in kinds and is_whole else unknown


def _alphabet_of(model: Any) -> set[str] | None:
    """Returns the characters of byte pairs without a token for others, or None for the rest."""
    kind, bytes_of = model.model, tokenizers_library().pre_tokenizers.ByteLevel.alphabet()
    if type(kind).__name__ != "BPE" or kind.unk_token or kind.byte_fallback:
        return None
    ends = kind.end_of_word_suffix or "", kind.continuing_subword_prefix or ""
    words = (word.removesuffix(ends[0]).removeprefix(ends[1]) for word in model.get_vocab())
    alphabet = {word for word in words if len(word) == 1}
    return None if alphabet.issuperset(bytes_of) else alphabet


class HuggingFaceTokenizer(_LibraryTokenizer):
    """Tokenizer from a tokenizer.json of Hugging Face, as used by pretrained models."""

    _kind, _skips_special = "huggingface", True

    @classmethod
    def from_json(cls, state: dict) -> Self:
        """Returns a tokenizer from the result of to_json, or from a model's folder."""
        if folder := state.get("folder"):
            _refuse_contradictions(folder, state["model"])
            state = {"model": _with_special_tokens(folder, state["model"])}
        return super().from_json(state)

    def encode_whole(self, text: str) -> list[int]:
        """Returns the tokens of a text, with the special tokens that its tokenizer.json adds."""
        self.encode(text)  # refuses unknown characters
        return self._model.encode(text).ids

    def without_last_bytes(self, tokens: list[int]) -> list[int]:
        """Returns the tokens without the bytes at their end, whose text later bytes may change."""
        symbols, special = [self._model.id_to_token(token) or "" for token in tokens], self.special
        while symbols and (symbols[-1] in special or re.fullmatch(_BYTE, symbols[-1])):
            symbols.pop()
        return tokens[: len(symbols)]

    def without_text(self, tokens: Iterable[int]) -> list[int]:
        """Returns the tokens that the tokenizer does not have."""
        return [token for token in tokens if self._model.id_to_token(token) is None]

    @property
    def special(self) -> dict[str, int]:
        """IDs of the special tokens, which `decode` leaves out, by their texts."""
        added = self._model.get_added_tokens_decoder()
        return {token.content: number for number, token in added.items() if token.special}

    @property
    def is_byte_level(self) -> bool:
        """True if the token of a word includes the space before it, as in GPT-2."""
        return '"ByteLevel"' in json.dumps(json.loads(self._model.to_str())["pre_tokenizer"])

    def number_of(self, *names: str) -> int | None:
        """Returns the ID of the first of `names` that is a token, or None if none is."""
        found = [self._model.token_to_id(name) for name in names]
        return next((number for number in found if number is not None), None)


def _refuse_contradictions(folder: Path, model: dict) -> None:
    """Raises InvalidInput if files beside a tokenizer.json, which transformers obeys, differ."""
    file = folder / "tokenizer_config.json"
    stated = _json_at(file)
    normalizer = model.get("normalizer") or {}
    lowers, strips = normalizer.get("lowercase"), normalizer.get("strip_accents")
    switches = {
        "do_lower_case": lowers,
        "strip_accents": lowers if strips is None else strips,
        "tokenize_chinese_chars": normalizer.get("handle_chinese_chars"),
        "split_special_tokens": False,
        "add_prefix_space": (model.get("pre_tokenizer") or {}).get("add_prefix_space"),
    }
    for name, value in switches.items():
        if value is not None and stated.get(name) not in (None, value):
            raise InvalidInput(f"{file}: {name}={stated[name]}: expected {value} (tokenizer.json)")
    added = [entry["content"] for entry in stated.get("added_tokens_decoder", {}).values()]
    added += _json_at(folder / "added_tokens.json")
    has = {entry["content"] for entry in model.get("added_tokens", ())}
    if lacking := [token for token in added if token not in has]:
        raise InvalidInput(f"{folder}: tokenizer.json lacks the added token {lacking[0]!r}")


def _with_special_tokens(folder: Path, model: dict) -> dict:
    """Returns a tokenizer.json's content with the special tokens that files beside it name.

    Raises:
      InvalidInput: One of them is not in the vocabulary, so that transformers would append it.
    """
    library = tokenizers_library()
    tokenizer, named = library.Tokenizer.from_str(json.dumps(model)), []
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        stated = _json_at(folder / file)
        for value in filter(None, map(stated.get, _SPECIAL)):
            is_of_many = isinstance(value, dict) and "content" not in value
            entries = [*value.values()] if is_of_many else value
            named += entries if isinstance(entries, list) else [entries]
    has = {entry["content"] for entry in model.get("added_tokens", ())}
    for entry in named:
        facts = {"content": entry} if isinstance(entry, str) else entry
        if (text := facts["content"]) in has:
            continue
        if tokenizer.token_to_id(text) is None:
            raise InvalidInput(f"{folder}: tokenizer.json lacks the special token {text!r}")
        flags = {key: facts.get(key, False) for key in ("lstrip", "rstrip", "single_word")}
        tokenizer.add_special_tokens([library.AddedToken(text, normalized=False, **flags)])
    return json.loads(tokenizer.to_str())


def stated_beside(folder: Path) -> dict:
    """Returns the special tokens and the chat template that files beside a tokenizer.json state."""
    said = {}
    for file in ("special_tokens_map.json", "tokenizer_config.json"):
        said |= {key: value for key, value in _json_at(folder / file).items() if value}
    if (template := folder / "chat_template.jinja").is_file():
        said["chat_template"] = template.read_text(encoding="utf-8")
    said = {key: said[key] for key in (*_SPECIAL, "chat_template") if key in said}
    return {k: v.get("content", v) if isinstance(v, dict) else v for k, v in said.items()}


def _json_at(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}

"""Conversion of this package's tokenizers to Hugging Face tokenizers, for exported models."""

import json
from collections.abc import Iterable
from typing import Any

from transformer_jax.data.special_tokens import SPECIAL_NAMES, special_tokens
from transformer_jax.data.subword_tokenizers import (
    BPETokenizer,
    HuggingFaceTokenizer,
    WordTokenizer,
    tokenizers_library,
)
from transformer_jax.data.tokenizers import ByteTokenizer, CharTokenizer, NumberTokenizer, Tokenizer
from transformer_jax.errors import InvalidInput


def as_huggingface(tokenizer: Tokenizer, template: str | None = "$A") -> Any:
    """Returns an equivalent `tokenizers.Tokenizer`.

    Its tokens can differ for text that contains the name of a special token, e.g. "[MASK]", and,
    for a word tokenizer, for words that end with a Greek capital.

    Args:
      tokenizer: An entry of TOKENIZERS, or a Hugging Face tokenizer.
      template: Template of the special tokens around a text, e.g. "{begin} $A {end}". If it
        names any, the special tokens that the tokenizer lacks are added, including padding and
        mask. None keeps the tokenizer's own template.
    Raises:
      InvalidInput: The tokenizer is user-defined, or added tokens would get different numbers.
    """
    library = tokenizers_library()
    made = _without_template(library, tokenizer)
    if template is None:
        return made
    names, specials = special_names(tokenizer), special_tokens(tokenizer)
    named = {purpose: name for purpose, name in names.items() if f"{{{purpose}}}" in template}
    if named:
        made.add_special_tokens([n for n in names.values() if made.token_to_id(n) is None])
        numbers = {name: getattr(specials, purpose) for purpose, name in names.items()}
        moved = [name for name, number in numbers.items() if made.token_to_id(name) != number]
        if moved:
            raise InvalidInput(
                "data.tokenizer: its token IDs have gaps, so the package tokenizers would "
                f"number {', '.join(moved)} differently from the model"
            )
    single = template.format(**names)
    second = f"$B:1 {names['end']}:1" if "end" in named else "$B:1"
    made.post_processor = library.processors.TemplateProcessing(
        single=single,
        pair=f"{single} {second}",
        special_tokens=[(name, getattr(specials, purpose)) for purpose, name in named.items()],
    )
    return made


def special_names(tokenizer: Tokenizer) -> dict[str, str]:
    """Returns each special token's name by purpose: the tokenizer's own, or else a default."""
    has = tokenizer.number_of if isinstance(tokenizer, HuggingFaceTokenizer) else lambda _: None
    return {
        purpose: next((name for name in names if has(name) is not None), names[0])
        for purpose, names in SPECIAL_NAMES.items()
    }


def _without_template(library: Any, tokenizer: Tokenizer) -> Any:
    if isinstance(tokenizer, ByteTokenizer):
        # Byte pairs without merges; ByteLevel writes bytes as characters, as GPT-2 does.
        alphabet = {*library.pre_tokenizers.ByteLevel.alphabet()}
        # A printable byte is its own character; the others follow from 256 on.
        others = iter(sorted(symbol for symbol in alphabet if ord(symbol) > 255))
        symbols = [chr(byte) if chr(byte) in alphabet else next(others) for byte in range(256)]
        made = library.Tokenizer(library.models.BPE(vocab=_numbered(symbols), merges=[]))
        by_byte = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer, made.decoder = by_byte, library.decoders.ByteLevel()
    elif isinstance(tokenizer, CharTokenizer):
        # Words of one character; unknown characters are refused by the library too.
        symbols = tokenizer.to_json()["symbols"]
        made = library.Tokenizer(library.models.WordLevel(_numbered(symbols), unk_token=""))
        any_character = library.Regex(r"[\s\S]")
        made.pre_tokenizer = library.pre_tokenizers.Split(any_character, "isolated")
        made.decoder = library.decoders.Fuse()
    elif isinstance(tokenizer, WordTokenizer):
        words, unknown = _numbered(tokenizer.words), tokenizer.words[0]
        made = library.Tokenizer(library.models.WordLevel(words, unk_token=unknown))
        made.normalizer = library.normalizers.Lowercase()
        # Python's \w has letters, numbers and the underscore; theirs also has combining marks.
        word = library.Regex(r"[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s]")
        made.pre_tokenizer = library.pre_tokenizers.Split(word, "removed", invert=True)
    elif isinstance(tokenizer, NumberTokenizer):
        numbers = _numbered(map(str, range(tokenizer.vocab_size)))
        made = library.Tokenizer(library.models.WordLevel(numbers, unk_token=""))
        made.pre_tokenizer = library.pre_tokenizers.WhitespaceSplit()
    elif isinstance(tokenizer, BPETokenizer | HuggingFaceTokenizer):
        made = library.Tokenizer.from_str(json.dumps(tokenizer.to_json()["model"]))
    else:
        kind = type(tokenizer)
        raise InvalidInput(
            f"data.tokenizer={kind.__module__}.{kind.__name__}: transformers does not have this "
            "tokenizer; expected byte, char, word, bpe, numbers or a Hugging Face tokenizer"
        )
    return made


def _numbered(symbols: Iterable[str]) -> dict[str, int]:
    return {symbol: number for number, symbol in enumerate(symbols)}

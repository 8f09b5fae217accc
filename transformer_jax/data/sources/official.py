"""Validation and test splits from files of their own."""

import dataclasses
import hashlib
import json
from typing import NamedTuple

from transformer_jax.data.sources.folders import PartOfFolder
from transformer_jax.data.sources.stream import LoadedText, TokenStream
from transformer_jax.data.sources.text import load_text
from transformer_jax.data.tokenizers import Tokenizer, fingerprint
from transformer_jax.errors import InvalidInput


class Splits(NamedTuple):
    """A source's splits: a stream for each, the tokenizer, and a hash of all text."""

    streams: dict[str, TokenStream]
    tokenizer: Tokenizer
    sha256: str


def load_splits(
    source: str,
    tokenizer: str | Tokenizer,
    vocab_size: int,
    document_separator: str | None,
    fractions: tuple[float, ...],
    text_field: str = "text",
    official: tuple[str | None, str | None, int | None] = (None, None, None),
    by_bytes: bool = True,
) -> Splits:
    """Reads a source and splits it, or reads its validation and test splits from other files.

    The other arguments are as in load_text. `fractions` are of the bytes if these are known and
    `by_bytes` is true, else of the tokens. `official` has the validation source, the test source,
    and the number of tokens of the former; their files are not for training, wherever they lie.
    """
    share = 1.0 if official[0] else fractions[0]
    source = PartOfFolder.without(source, official[:2]) if any(official) else source
    text = load_text(source, tokenizer, vocab_size, document_separator, share, text_field)
    stream, tokenizer, sha256 = text
    if any(official):
        streams, sha256 = official_splits(text, *official, document_separator, text_field)
    else:
        streams = stream.split(fractions, tokenizer.token_bytes if by_bytes else None)
    return Splits(streams, tokenizer, sha256)


def official_splits(
    train: LoadedText,
    validation_source: str | None,
    test_source: str | None,
    validation_tokens: int | None,
    document_separator: str | None,
    text_field: str,
) -> tuple[dict[str, TokenStream], str]:
    """Returns the whole text for training, the splits in files of their own, and a hash of all.

    Without a test source, the test split is the validation split.

    Raises:
      InvalidInput: A source cannot be read, equals the training text, or has another tokenizer.
    """
    found = {"train": train}
    for split, source in (("validation", validation_source), ("test", test_source)):
        if source is None:
            continue
        key = f"data.{split}_source={source}"
        try:
            text = load_text(source, train.tokenizer, 0, document_separator, text_field=text_field)
        except InvalidInput as error:
            told = str(error).replace(f"data.source={source}", key)
            raise InvalidInput(told if source in told else f"{key}: {told}") from error
        if fingerprint(text.tokenizer) != fingerprint(train.tokenizer):
            raise InvalidInput(f"{key}: its tokenizer differs from that of {train.stream.name}")
        same = [name for name, other in found.items() if other.text_sha256 == text.text_sha256]
        if same:
            raise InvalidInput(f"{key}: this is the text of the {same[0]} split")
        found[split] = text
    streams = {split: text.stream for split, text in found.items()}
    if validation_tokens is not None:
        whole = streams["validation"]
        if validation_tokens > len(whole):
            raise InvalidInput(
                f"data.validation_tokens={validation_tokens}: {whole.name} has {len(whole)} tokens"
            )
        streams["validation"] = dataclasses.replace(whole, end=whole.begin + validation_tokens)
    streams.setdefault("test", streams["validation"])
    hashes = [[split, text.text_sha256] for split, text in found.items()]
    told = json.dumps([hashes, validation_tokens])
    return streams, hashlib.sha256(told.encode()).hexdigest()

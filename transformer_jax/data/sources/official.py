"""Validation and test splits from files of their own."""

import dataclasses
import hashlib
import json

from transformer_jax.data.sources.stream import LoadedText, TokenStream
from transformer_jax.data.sources.text import load_text
from transformer_jax.data.tokenizers import fingerprint
from transformer_jax.errors import InvalidInput


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
            raise InvalidInput(str(error).replace(f"data.source={source}", key)) from error
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

"""Mixture of several texts in one row of tokens, from which training draws with given shares."""

import hashlib
import json
from collections.abc import Sequence

import numpy as np

from transformer_jax.data.order import SPLITS, Part, numbers_of_step, step_generator, window_starts
from transformer_jax.data.sources.stream import JoinedTokens, LoadedText, TokenStream
from transformer_jax.data.sources.text import load_text
from transformer_jax.data.tokenizers import fingerprint
from transformer_jax.errors import InvalidInput

_HAND = 1000  # consecutive examples in which each part has exactly its share


def _joined(streams: Sequence[TokenStream], name: str) -> TokenStream:
    """Returns several streams joined into one; each of them begins a new document."""
    starts, before = [], 0
    for stream in streams:
        inside = stream.document_starts < stream.end
        own = np.unique(np.maximum(stream.document_starts[inside], stream.begin))
        starts.append(own - stream.begin + before)
        before += len(stream)
    return TokenStream(JoinedTokens(streams), np.concatenate(starts), 0, before, name)


def mix(
    first: LoadedText,
    mixture: Sequence[str],
    fractions: tuple[float, ...],
    document_separator: str | None,
    text_field: str = "text",
) -> tuple[dict[str, TokenStream], tuple[Part, ...], str]:
    """Reads the other sources of a mixture and joins all, using the tokenizer of the first.

    Args:
      first: Text of `data.source`, which has the remaining share.
      mixture: SOURCE=SHARE for each of the other sources.
      fractions: Fractions of train, validation and test, for each source.
      document_separator, text_field: As in load_text.
    Returns:
      A dict from split to stream; each source's part of the train split (see mixed_window_starts);
      and a hash of the texts and their shares, which does not depend on file paths.
    Raises:
      InvalidInput: A source cannot be read, occurs twice, or its shards have a different tokenizer.
    """
    others = dict(pair.rsplit("=", 1) for pair in mixture)
    texts = {first.stream.name: first}
    for source in others:
        if source in texts or len(others) < len(mixture):
            raise InvalidInput(f"data.mixture={','.join(mixture)}: a source occurs twice")
        try:
            text = load_text(source, first.tokenizer, 0, document_separator, text_field=text_field)
        except InvalidInput as error:
            what = str(error).replace("data.source=", "data.mixture: ")
            raise InvalidInput(what) from error
        texts[source] = text
        if fingerprint(text.tokenizer) != fingerprint(first.tokenizer):
            raise InvalidInput(
                f"data.mixture: {source}: its tokenizer differs from that of {first.stream.name}\n"
                f"rebuild its shards with --tokenizer=FILE, {first.stream.name}'s tokenizer.json"
            )
    shares = {name: round(float(share), 3) for name, share in others.items()}
    shares = {first.stream.name: round(1 - sum(shares.values()), 3), **shares}
    split_texts = [t.stream.split(fractions, t.tokenizer.token_bytes) for t in texts.values()]
    counts = [len(streams["train"]) for streams in split_texts]
    begins = np.cumsum([0, *counts[:-1]]).tolist()
    parts = (Part(*part) for part in zip(shares, shares.values(), begins, counts, strict=True))
    mixed = [[f"{shares[source]:.3f}", text.text_sha256] for source, text in texts.items()]
    whole = {
        split: _joined([streams[split] for streams in split_texts], f"the mixture ({split})")
        for split in SPLITS
    }
    return whole, tuple(parts), hashlib.sha256(json.dumps(mixed).encode()).hexdigest()


def mixed_window_starts(
    seed: int, step: int, batch_size: int, parts: Sequence[Part], length: int
) -> np.ndarray:
    """Returns the start positions of the windows in a training batch, [B] int64.

    In each block of 1,000 examples, every part has exactly its share, in random order.
    Each part goes through its own epochs (see `window_starts`), so a small part with a large
    share is read more often. Positions depend on seed and step alone.
    A window of `length` tokens lies within one part.
    """
    starts = np.empty(batch_size, np.int64)
    shares = np.array([part.share for part in parts])
    owners, numbers = _dealt(seed, numbers_of_step(step, batch_size), shares)
    for owner, part in enumerate(parts):
        mine = owners == owner
        starts[mine] = part.begin + window_starts(seed, numbers[mine], part.count - 1, length)
    return starts


def _dealt(seed: int, numbers: np.ndarray, shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the part of each example and the example's index in that part; both [N] int64."""
    of_hand = np.rint(_HAND * shares).astype(np.int64)
    hands, places = np.divmod(numbers, _HAND)
    owners, running = np.empty((2, len(numbers)), np.int64)
    for hand in np.unique(hands):
        mine = hands == hand
        dealt = np.repeat(np.arange(len(shares)), of_hand)
        dealt = step_generator(seed, int(hand), "mixture").permutation(dealt)
        before = np.cumsum(dealt[:, None] == np.arange(len(shares)), axis=0) - 1
        owners[mine] = dealt[places[mine]]
        running[mine] = hand * of_hand[owners[mine]] + before[places[mine], owners[mine]]
    return owners, running

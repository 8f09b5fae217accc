"""Language modelling: predict the next token."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Predicate

from transformer_jax.data.order import Part, numbers_of_step, window_starts
from transformer_jax.data.sources.stream import TokenStream
from transformer_jax.data.sources.text import load_text
from transformer_jax.data.tasks.batch import Batch, data_facts
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.errors import InvalidInput
from transformer_jax.options import Form, Natural


def _is_mixture(value: tuple) -> bool:
    try:
        pairs = [part.rsplit("=", 1) for part in value]
        thousandths = [round(1000 * float(share)) for _, share in pairs]  # as mix reads them
    except (AttributeError, ValueError, OverflowError):
        return False
    is_named = all(path for path, _ in pairs)
    return is_named and min(thousandths, default=1) >= 1 and sum(thousandths) <= 999


Mixture = Annotated[
    tuple[str, ...],
    Predicate(_is_mixture),
    Form(
        "SOURCE=SHARE, each share at least 0.001, their sum at most 0.999",
        "more.txt=0.3,shards=0.2",
    ),
]


@dataclasses.dataclass(frozen=True)
class LanguageModelling:
    """Task of predicting the next token.

    In training, an epoch divides the train split into windows of `length` tokens.

    Evaluation covers a whole split in windows that start every `stride` tokens. All predictions in
    the first window are scored, but only the last `stride` in each later one. So every token but
    the first (of each document, if they are separate) is scored exactly once, with at least
    length - stride tokens before it in the same window (if the text has them). `unscored` excludes
    the first predictions of each window.

    Attributes:
      tokenizer: Tokenizer of the text.
      splits: Token stream by name of the split.
      length: Number of tokens that the model reads in a window, L.
      batch_size: Number of windows in a training batch, B.
      separate_documents: Whether documents in a window are separate: no attention and no
        prediction across their borders, and positions from 0 in each.
      stride: Distance in tokens between evaluated windows, 1 .. length; length if None.
      unscored: Number of tokens at the beginning of each window, or of each separate document,
        that are read but not predicted, e.g. a prefix.
      facts: Facts that identify the data; see Task.
      parts: Parts of the train split, with their shares of training windows; () for one text.
    """

    tokenizer: Tokenizer
    splits: dict[str, TokenStream]
    length: int
    batch_size: int
    separate_documents: bool = False
    stride: int | None = None
    unscored: int = 0
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    parts: tuple[Part, ...] = ()
    counted: ClassVar[str] = "tokens"
    target: ClassVar[str] = "token"

    @classmethod
    def load(
        cls,
        *,
        source: str,
        tokenizer: str | Tokenizer,
        vocab_size: int,
        document_separator: str | None,
        separate_documents: bool,
        splits: tuple[float, ...],
        length: int,
        batch_size: int,
        stride: int | None,
        text_field: str = "text",
        validation_source: str | None = None,
        test_source: str | None = None,
        validation_tokens: int | None = None,
        unscored: Natural = 0,
        mixture: Mixture = (),
    ) -> "LanguageModelling":
        """Returns the task on the text that a config's options specify; see load_text.

        `splits` are consecutive fractions of the bytes, or of the tokens if bytes are unknown.

        Args:
          unscored: Number of tokens at the beginning of each window that are not predicted.
          mixture: Further sources and the share of training windows from each; the rest come
            from data.source, whose tokenizer is used. Each source is split separately, and
            evaluation uses the validation or test parts of all sources.
        """
        about = (source, tokenizer, vocab_size, document_separator)
        parts: tuple[Part, ...] = ()
        if validation_source is not None:
            from transformer_jax.data.sources.official import load_splits

            official = (validation_source, test_source, validation_tokens)
            streams, tokenizer, sha256 = load_splits(*about, splits, text_field, official)
        else:
            text = load_text(*about, splits[0], text_field)
            stream, tokenizer, sha256 = text
            streams = stream.split(splits, tokenizer.token_bytes) if not mixture else {}
        if mixture:
            from transformer_jax.data.sources.mixture import mix

            streams, parts, sha256 = mix(text, mixture, splits, document_separator, text_field)
        facts = data_facts(source, sha256, streams, tokenizer)
        shape = (length, batch_size, separate_documents, stride, unscored)
        return cls(tokenizer, streams, *shape, facts, parts)

    def __post_init__(self) -> None:
        refuse_short_splits(self.splits, self.length + 1, self.length)
        for _, _, begin, count in self.parts:
            train = dataclasses.replace(self.splits["train"], begin=begin, end=begin + count)
            refuse_short_splits({"train": train}, self.length + 1, self.length)

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes that a model has to know; see Task."""
        return {"vocab_size": self.tokenizer.vocab_size}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Lines that the user sees before training; see Task."""
        of_each = [f"{part.share:.1%} {part.name} ({part.count:,} tokens)" for part in self.parts]
        return (f"mixture: {', '.join(of_each)}",) if of_each else ()

    @property
    def protocol(self) -> dict[str, Any]:
        """Facts about the evaluation of a split; see Task."""
        protocol = {"context": self.length, "stride": self.stride or self.length}
        return protocol | ({"unscored": self.unscored} if self.unscored else {})

    def batch(self, seed: int, step: int) -> Batch:
        """Returns a step's training batch, which depends on `seed` and `step` alone."""
        return self.batch_rows(seed, step, slice(None))

    def batch_rows(self, seed: int, step: int, rows: np.ndarray | slice) -> Batch:
        """Returns only `rows` of a step's batch, [R] int or a slice, without reading the others."""
        if self.parts:
            from transformer_jax.data.sources.mixture import mixed_window_starts

            starts = mixed_window_starts(seed, step, self.batch_size, self.parts, self.length)
        else:
            numbers = numbers_of_step(step, self.batch_size)
            starts = window_starts(seed, numbers, len(self.splits["train"]) - 1, self.length)
        return self._examples("train", starts[rows])

    def evaluation_batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Yields the whole split in batches of the same shape; padding rows have weight 0."""
        count, stride = self._evaluated(split)
        is_fresh = np.arange(self.length) >= self.length - stride
        for first in range(0, count, batch_size):
            windows = np.arange(first, first + batch_size)
            batch = self._examples(split, windows * stride)
            batch["weights"] *= (windows[:, None] == 0) | is_fresh
            yield batch

    def clusters(self, split: str) -> np.ndarray:
        """Returns the index of the document in which each evaluated window begins, [N] int64."""
        count, stride = self._evaluated(split)
        return self.splits[split].document_of(np.arange(count) * stride)

    def _evaluated(self, split: str) -> tuple[int, int]:
        """Returns the number of evaluated windows in a split, and their distance in tokens."""
        stride = self.stride or self.length
        left = len(self.splits[split]) - 1 - self.length  # predictions after the first window
        return 1 + max(0, -(-left // stride)), stride

    def scored_bytes(self, batch: Batch) -> np.ndarray | None:
        """Returns the UTF-8 bytes in each row's scored targets, [B] int64; None if unknown."""
        token_bytes = self.tokenizer.token_bytes
        if token_bytes is None:
            return None
        return (token_bytes[batch["targets"]] * (batch["weights"] > 0)).sum(-1)

    def _examples(self, split: str, starts: np.ndarray) -> Batch:
        """Returns a Batch of the windows of a split that start at `starts` [B]."""
        stream = self.splits[split]
        tokens = stream.windows(starts, self.length + 1)
        target_places = starts[:, None] + np.arange(1, self.length + 1)
        weights = (target_places < len(stream)).astype(np.float32)
        inputs = {"tokens": tokens[:, :-1]}
        if self.separate_documents:
            segments, positions = stream.documents(starts, self.length + 1)
            inputs |= {"segments": segments[:, :-1], "positions": positions[:, :-1]}
            weights *= segments[:, 1:] == segments[:, :-1]
        weights *= inputs.get("positions", np.arange(self.length)) >= self.unscored
        return {"inputs": inputs, "targets": tokens[:, 1:], "weights": weights}


def refuse_short_splits(splits: dict[str, TokenStream], window: int, length: int) -> None:
    """Raises InvalidInput if a split has too few tokens for its windows.

    Training needs 2 * window - 1 tokens, since the grid of its windows is shifted at random.
    `length` is the value of data.length, for messages.
    """
    for split, stream in splits.items():
        fewest = 2 * window - 1 if split == "train" else window
        if len(stream) < fewest:
            raise InvalidInput(
                f"{stream.name}: {len(stream)} tokens are too few for windows of "
                f"data.length={length}; expected at least {fewest}: "
                "provide more text, a smaller data.length, or different data.splits"
            )

"""Masked language modelling: predict masked tokens from the tokens on both sides."""

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from transformer_jax.data.order import numbers_of_step, step_generator, window_starts
from transformer_jax.data.sources.official import load_splits
from transformer_jax.data.sources.stream import TokenStream
from transformer_jax.data.special_tokens import Specials, special_tokens
from transformer_jax.data.tasks.batch import Batch, data_facts
from transformer_jax.data.tasks.language_modelling import refuse_short_splits
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.options import OpenShare

EVALUATION_SEED = 0  # the masked positions of an evaluated window never change


@dataclasses.dataclass(frozen=True)
class MaskedLanguageModelling:
    """Task of predicting masked tokens (Devlin et al. 2019, arXiv:1810.04805, section 3.1).

    A window is a begin token and length - 1 tokens of text. Each token of text is chosen with
    probability `mask_rate`. Of the chosen tokens, 80 % are replaced by the mask token, 10 % by a
    random token, and 10 % are left unchanged; all of them are predicted. In training, the choice
    depends on seed and step; in an evaluated window, it is always the same.

    The other fields are as in LanguageModelling.
    """

    tokenizer: Tokenizer
    splits: dict[str, TokenStream]
    length: int
    batch_size: int
    mask_rate: float = 0.15
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    counted: ClassVar[str] = "tokens"
    target: ClassVar[str] = "hidden token"
    remarks: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def load(
        cls,
        *,
        source: str,
        tokenizer: str | Tokenizer,
        vocab_size: int,
        document_separator: str | None,
        splits: tuple[float, ...],
        length: int,
        batch_size: int,
        text_field: str = "text",
        validation_source: str | None = None,
        test_source: str | None = None,
        validation_tokens: int | None = None,
        mask_rate: OpenShare = 0.15,
    ) -> "MaskedLanguageModelling":
        """Returns the task on the text that a config's options specify; see load_splits.

        `splits` are consecutive fractions of the text's tokens.

        Args:
          mask_rate: Probability that a token is predicted.
        """
        about = (source, tokenizer, vocab_size, document_separator, splits, text_field)
        official = (validation_source, test_source, validation_tokens)
        streams, tokenizer, sha256 = load_splits(*about, official, by_bytes=False)
        facts = data_facts(source, sha256, streams, tokenizer)
        return cls(tokenizer, streams, length, batch_size, mask_rate, facts)

    def __post_init__(self) -> None:
        refuse_short_splits(self.splits, self.length, self.length)

    @property
    def specials(self) -> Specials:
        """Special tokens of the tokenizer."""
        return special_tokens(self.tokenizer)

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes that a model has to know; see Task."""
        return {"vocab_size": self.specials.vocab_size}

    @property
    def protocol(self) -> dict[str, Any]:
        """Facts about the evaluation of a split; see Task."""
        return {"context": self.length, "mask_rate": self.mask_rate}

    def batch(self, seed: int, step: int) -> Batch:
        """Returns a step's training batch, which depends on `seed` and `step` alone."""
        return self.batch_rows(seed, step, slice(None))

    def batch_rows(self, seed: int, step: int, rows: np.ndarray | slice) -> Batch:
        """Returns only `rows` of a step's batch, [R] int or a slice, without reading the others."""
        window, numbers = self.length - 1, numbers_of_step(step, self.batch_size)
        starts = window_starts(seed, numbers, len(self.splits["train"]), window)
        draws = step_generator(seed, step, "mask").random((3, self.batch_size, window))
        return self._examples("train", starts[rows], draws[:, rows])

    def evaluation_batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Yields the whole split in batches of the same shape; padding rows have weight 0."""
        window = self.length - 1
        for first in range(0, -(-len(self.splits[split]) // window), batch_size):
            windows = np.arange(first, first + batch_size)
            draw = [step_generator(EVALUATION_SEED, w, "mask").random((3, window)) for w in windows]
            yield self._examples(split, windows * window, np.stack(draw, axis=1))

    def clusters(self, split: str) -> np.ndarray:
        """Returns the index of the document in which each evaluated window begins, [N] int64."""
        stream = self.splits[split]
        return stream.document_of(np.arange(0, len(stream), self.length - 1))

    def scored_bytes(self, batch: Batch) -> np.ndarray | None:
        """Returns None, since the masked tokens alone do not give the text's length in bytes."""
        return None

    def _examples(self, split: str, starts: np.ndarray, draws: np.ndarray) -> Batch:
        """Returns a Batch of the windows at `starts` [B], masked by uniform draws [3, B, L-1]."""
        text, is_text = self._windows(split, starts)
        chosen = (draws[0] < self.mask_rate) & is_text
        random_tokens = (draws[2] * self.tokenizer.vocab_size).astype(np.int32)
        replaced = np.where(draws[1] < 0.8, self.specials.mask, random_tokens)
        seen = np.where(chosen & (draws[1] < 0.9), replaced, text)
        return self._batch(text, seen, is_text, chosen)

    def _windows(self, split: str, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of the windows at `starts` [B], and whether each exists, [B, L-1]."""
        stream, window = self.splits[split], self.length - 1
        return stream.windows(starts, window), starts[:, None] + np.arange(window) < len(stream)

    def _batch(
        self, text: np.ndarray, seen: np.ndarray, is_text: np.ndarray, weights: np.ndarray
    ) -> Batch:
        """Returns a Batch of windows with a begin token; all arguments are [B, L-1]."""
        specials = self.specials
        seen = np.where(is_text, seen, specials.padding).astype(np.int32)
        begin = np.full((len(text), 1), specials.begin, np.int32)
        first = np.ones((len(text), 1))
        return {
            "inputs": {
                "tokens": np.concatenate([begin, seen], axis=1),
                "segments": np.concatenate([first, is_text], axis=1).astype(np.int32),
            },
            "targets": np.concatenate([begin, text], axis=1),
            "weights": np.concatenate([0 * first, weights], axis=1).astype(np.float32),
        }

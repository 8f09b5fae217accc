"""Masked diffusion: predict any part of a text from the rest of it."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from transformer_jax.data.order import numbers_of_step, step_generator, window_starts
from transformer_jax.data.sources.official import load_splits
from transformer_jax.data.tasks.batch import Batch, data_facts
from transformer_jax.data.tasks.masked_language_modelling import (
    EVALUATION_SEED,
    MaskedLanguageModelling,
)
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.options import Count

_GOLDEN = (5**0.5 - 1) / 2


@dataclasses.dataclass(frozen=True)
class MaskedDiffusion(MaskedLanguageModelling):
    """Task of masked diffusion (Sahoo et al. 2024, arXiv:2406.07524; Nie et al. 2025).

    A window is a begin token and n <= length - 1 tokens of text, of which k, uniform in 1 .. n,
    are replaced by the mask token and predicted, each with weight n / k (Nie et al. 2025,
    arXiv:2502.09992, equation 14). A window's weights thus sum to n, and the mean loss is an upper
    bound on the negative log-likelihood per token, in expectation over k and the masked positions.
    The numbers k of a batch, and those of a split's windows, are spread evenly (in stages of
    growing batches, those of each unit are).

    Attributes:
      maskings: Number of times that a window is masked in evaluation.
    """

    maskings: int = 1
    target = "token"

    @classmethod
    def load(  # ty: ignore[incompatible-method-override]
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
        maskings: Count = 4,
    ) -> "MaskedDiffusion":
        """Returns the task on the text that a config's options specify; see load_splits.

        `splits` are consecutive fractions of the bytes, or of the tokens if bytes are unknown.

        Args:
          maskings: Number of times that each window is masked in evaluation; a larger number
            measures the bound more exactly.
        """
        about = (source, tokenizer, vocab_size, document_separator, splits, text_field)
        official = (validation_source, test_source, validation_tokens)
        streams, tokenizer, sha256 = load_splits(*about, official)
        facts = data_facts(source, sha256, streams, tokenizer)
        return cls(tokenizer, streams, length, batch_size, facts=facts, maskings=maskings)

    @property
    def protocol(self) -> dict[str, Any]:
        """Facts about the evaluation of a split; see Task."""
        return {"context": self.length, "maskings": self.maskings}

    def batch_rows(self, seed: int, step: int, rows: np.ndarray | slice) -> Batch:
        """Returns only `rows` of a step's batch, [R] int or a slice, without reading the others."""
        window, numbers = self.length - 1, numbers_of_step(step, self.batch_size)
        starts = window_starts(seed, numbers, len(self.splits["train"]), window)
        random = step_generator(seed, step, "mask")
        places = (np.arange(self.batch_size) + random.random()) / self.batch_size
        draws = random.random((self.batch_size, window))
        return self._masked("train", starts[rows], places[rows], draws[rows])

    def evaluation_batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Yields the whole split in batches of the same shape; padding rows have weight 0."""
        window = self.length - 1
        count = -(-len(self.splits[split]) // window) * self.maskings
        for first in range(0, count, batch_size):
            rows = np.arange(first, first + batch_size)
            windows, numbers = np.divmod(rows, self.maskings)
            places = (numbers + windows * _GOLDEN % 1) / self.maskings
            random = [step_generator(EVALUATION_SEED, row, "mask").random(window) for row in rows]
            yield self._masked(split, windows * window, places, np.stack(random))

    def clusters(self, split: str) -> np.ndarray:
        """Returns the index of the document in which each evaluated window begins, [N] int64."""
        return np.repeat(super().clusters(split), self.maskings)

    def scored_bytes(self, batch: Batch) -> np.ndarray | None:
        """Returns the UTF-8 bytes in each row's text, [B] int64; None if unknown."""
        token_bytes = self.tokenizer.token_bytes
        if token_bytes is None:
            return None
        text = np.where(batch["inputs"]["segments"], batch["targets"], 0)[:, 1:]
        return (token_bytes[text] * batch["inputs"]["segments"][:, 1:]).sum(-1)

    def _masked(self, split: str, at: np.ndarray, places: np.ndarray, draws: np.ndarray) -> Batch:
        """Returns the windows at `at` [B], of whose places those with small draws are masked.

        `places` [B] in [0, 1) determine how many, and `draws` [B, L-1] which.
        """
        text, is_text = self._windows(split, at)
        counts = is_text.sum(-1, keepdims=True)
        masked = 1 + np.floor(places[:, None] * counts)
        ranks = np.where(is_text, draws, np.inf).argsort(-1).argsort(-1)
        chosen = (ranks < masked) & is_text
        seen = np.where(chosen, self.specials.mask, text)
        return self._batch(text, seen, is_text, chosen * (counts / masked))

"""Synthetic languages with a known best loss: copying, recall, agreement, sums."""

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge

from transformer_jax.data.order import SPLITS, batches_of, example_order, step_generator
from transformer_jax.data.sources.synthetic import Examples, Language, load_language
from transformer_jax.data.splits import split_by_key
from transformer_jax.data.tasks.batch import Batch
from transformer_jax.data.tasks.translation import refuse_empty_splits

_EVALUATED = 512


@dataclasses.dataclass(frozen=True)
class SyntheticTask:
    """Predict the predictable tokens of a synthetic language.

    Every training batch is drawn anew; validation and test split are 512 examples each that do not
    depend on the run's seed. If all examples can be listed, the splits share them, and
    training draws from its share.

    Attributes:
      source: Name of the language.
      language: See Language.
      held: Split -> its examples; for an infinite language without the train split.
      batch_size: Examples in a training batch, B.
      facts: See Task.
    """

    source: str
    language: Language
    held: dict[str, Examples]
    batch_size: int
    facts: dict[str, Any]
    tokenizer: ClassVar[None] = None
    counted: ClassVar[str] = "tokens"
    target: ClassVar[str] = "answer"
    remarks: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def load(
        cls,
        *,
        source: str,
        length: int,
        splits: tuple[float, ...],
        split_seed: int,
        batch_size: int,
        symbols: Annotated[int, Ge(2)] = 8,
    ) -> "SyntheticTask":
        """Makes the language that a config's options name.

        Args:
          source: Name of the language.
          length: Tokens of an example, L.
          splits: Fractions of train, validation and test, for finite languages.
          split_seed: Seed of the split.
          batch_size: Examples in a batch, B.
          symbols: Number of symbols, nouns of agreement, or the modulus of modular_addition.
        """
        language = load_language(source, length, symbols)
        if language.finite is None:
            draws = {  # the word is the task's older name: a seed is what it is
                split: step_generator(split_seed, index, "exact")
                for index, split in enumerate(SPLITS)
                if split != "train"
            }
            held = {split: language.draw(numbers, _EVALUATED) for split, numbers in draws.items()}
        else:
            keys = [str(row) for row in language.finite.tokens.tolist()]
            parts = split_by_key(keys, splits, split_seed)
            refuse_empty_splits(source, parts)
            held = {
                split: Examples(*(array[rows] for array in language.finite))
                for split, rows in parts.items()
            }
        counts = {split: len(examples.tokens) for split, examples in held.items()}
        digest = hashlib.sha256()
        for examples in held.values():
            digest.update(examples.tokens.tobytes())
        facts = {
            "source": source,
            "symbols": symbols,
            "sha256": digest.hexdigest(),
            "counts": counts,
            "floor": language.floor,
        }
        return cls(source, language, held, batch_size, facts)

    @property
    def sizes(self) -> dict[str, Any]:
        """See Task."""
        return {"vocab_size": len(self.language.words)}

    @property
    def words(self) -> tuple[str, ...]:
        """See Task."""
        return tuple(self.language.words)

    @property
    def protocol(self) -> dict[str, Any]:
        """See Task."""
        return {"floor": self.language.floor}

    def batch(self, seed: int, step: int) -> Batch:
        """Returns the training batch of a step: a pure function of its arguments."""
        if "train" in self.held:
            train = self.held["train"]
            rows, _ = example_order(seed, step, self.batch_size, len(train.tokens))
            return _batch(Examples(*(array[rows] for array in train)))
        return _batch(self.language.draw(step_generator(seed, step, "draw"), self.batch_size))

    def evaluation_batches(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Yields the whole split in batches of one shape; padding rows have weight 0."""
        held = self.held[split]
        for rows, counts in batches_of(np.arange(len(held.tokens)), batch_size):
            batch = _batch(Examples(*(array[rows] for array in held)))
            yield {**batch, "weights": batch["weights"] * counts[:, None]}

    def scored_bytes(self, batch: Batch) -> np.ndarray | None:
        """Returns None, since the tokens are not text."""
        return None

    def spell(self, tokens: np.ndarray) -> str:
        """Returns the words of some tokens."""
        return " ".join(self.language.words[token] for token in tokens)


def _batch(examples: Examples) -> Batch:
    tokens = examples.tokens
    weights = examples.scored[:, 1:].astype(np.float32)
    return {"inputs": {"tokens": tokens[:, :-1]}, "targets": tokens[:, 1:], "weights": weights}

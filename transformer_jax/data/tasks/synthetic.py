"""Task on synthetic languages with a known minimum loss, such as copying and recall."""

import dataclasses
import hashlib
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge

from transformer_jax.data.order import SPLITS, split_by_key, step_generator
from transformer_jax.data.sources.synthetic import Examples, Language, load_language
from transformer_jax.data.tasks.batch import Batch, ListedTask, data_facts
from transformer_jax.data.tasks.translation import refuse_empty_splits

_EVALUATED = 512


@dataclasses.dataclass(frozen=True)
class SyntheticTask(ListedTask):
    """Task of predicting the scored tokens of a synthetic language.

    If all examples of the language can be listed, they are divided among the splits. Otherwise
    every training batch is drawn anew, and the validation and test splits have 512 examples each,
    which do not depend on the run's seed.

    Attributes:
      splits: Indices into `listed` by split; an infinite language has no train split.
      listed: Examples of all splits.
    """

    language: Language
    listed: Examples
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
        """Returns the task on the language that a config's options specify.

        Args:
          symbols: Number of symbols; for agreement, of nouns; for modular_addition, the modulus.
        """
        language = load_language(source, length, symbols)
        if isinstance(language.examples, Examples):
            listed = language.examples
            parts = split_by_key([str(row) for row in listed.tokens.tolist()], splits, split_seed)
            refuse_empty_splits(source, parts)
        else:
            draw, counts = language.examples, range(1, len(SPLITS))
            # Each split has its own step of the generator; "exact" only names the stream.
            drawn = [draw(step_generator(split_seed, n, "exact"), _EVALUATED) for n in counts]
            listed = Examples(*map(np.concatenate, zip(*drawn, strict=True)))
            held = np.arange(2 * _EVALUATED).reshape(2, _EVALUATED)
            parts = dict(zip(SPLITS[1:], held, strict=True))
        digest = hashlib.sha256()
        for indices in parts.values():
            digest.update(listed.tokens[indices].tobytes())
        facts = data_facts(source, digest.hexdigest(), parts, symbols=symbols, floor=language.floor)
        return cls(parts, batch_size, language, listed, facts)

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes that a model has to know; see Task."""
        return {"vocab_size": len(self.language.words)}

    @property
    def words(self) -> tuple[str, ...]:
        """Names of the tokens; see Task."""
        return self.language.words

    @property
    def protocol(self) -> dict[str, Any]:
        """Facts about the evaluation of a split; see Task."""
        return {"floor": self.language.floor}

    def batch(self, seed: int, step: int) -> Batch:
        """Returns a step's training batch, which depends on `seed` and `step` alone."""
        if isinstance(self.language.examples, Examples):
            return super().batch(seed, step)
        draws = step_generator(seed, step, "draw")
        return _batch(*self.language.examples(draws, self.batch_size))

    def examples_at(self, indices: np.ndarray) -> Batch:
        """Returns a Batch of the examples at `indices`, [B] int."""
        return _batch(self.listed.tokens[indices], self.listed.scored[indices])

    def spell(self, tokens: np.ndarray) -> str:
        """Returns the words for a sequence of tokens, joined by spaces."""
        return " ".join(self.language.words[token] for token in tokens)


def _batch(tokens: np.ndarray, scored: np.ndarray) -> Batch:
    weights = scored[:, 1:].astype(np.float32)
    return {"inputs": {"tokens": tokens[:, :-1]}, "targets": tokens[:, 1:], "weights": weights}

"""Translation: write the target sentence after reading the source sentence."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np

from transformer_jax.data.order import split_by_key
from transformer_jax.data.sources.tables import load_pairs
from transformer_jax.data.special_tokens import special_tokens
from transformer_jax.data.tasks.batch import Batch, ListedTask, data_facts
from transformer_jax.data.tokenizers import Tokenizer, make_tokenizer
from transformer_jax.errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class Translation(ListedTask):
    """Task of writing a target sentence after reading a source sentence, with teacher forcing.

    Both languages share one tokenizer. The model reads `source` (tokens and an end token) and
    `tokens` (a begin token and the target), and predicts the target and an end token. Pairs longer
    than `length` are left out; `facts` has their number.

    Attributes:
      splits: Indices of pairs by split; pairs with the same source sentence stay together.
      tokenizer: Tokenizer of both languages.
      pairs: Pairs (source sentence, target sentence) of at most `length` tokens each.
      length: Maximum number of tokens in a source or a target, special tokens included, L.
      facts: Facts that identify the data; see Task.
    """

    tokenizer: Tokenizer
    pairs: list[tuple[str, str]]
    length: int
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)
    counted: ClassVar[str] = "pairs"
    target: ClassVar[str] = "token"

    @classmethod
    def load(
        cls,
        *,
        source: str,
        tokenizer: str | Tokenizer,
        vocab_size: int,
        splits: tuple[float, ...],
        split_seed: int,
        length: int,
        batch_size: int,
    ) -> "Translation":
        """Returns the task on the sentence pairs that a config's options specify."""
        pairs, sha256 = load_pairs(source)
        to_learn = split_by_key([pair[0] for pair in pairs], splits, split_seed)["train"]
        tokenizer = make_tokenizer(
            tokenizer,
            lambda: (sentence for index in to_learn for sentence in pairs[index]),
            vocab_size,
            lambda: (sentence for pair in pairs for sentence in pair),
        )
        fitting = [pair for pair in pairs if max(len(tokenizer.encode(t)) for t in pair) < length]
        parts = split_by_key([pair[0] for pair in fitting], splits, split_seed)
        refuse_empty_splits(source, parts)
        left_out = len(pairs) - len(fitting)
        facts = data_facts(source, sha256, parts, tokenizer, left_out=left_out)
        return cls(parts, batch_size, tokenizer, fitting, length, facts)

    @functools.cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        """Inputs and targets of all pairs by name, encoded once."""
        specials = special_tokens(self.tokenizer)
        encode = functools.partial(with_end, self.tokenizer)
        texts = (pair[0] for pair in self.pairs)
        sources = encode_sources(encode, texts, self.length, specials.padding)
        targets = [[specials.begin, *self.tokenizer.encode(pair[1])] for pair in self.pairs]
        tokens, segments = padded(targets, self.length, specials.padding)
        following = np.concatenate([tokens[:, 1:], tokens[:, :1]], axis=1)
        ends = np.arange(self.length) == segments.sum(1, keepdims=True) - 1
        following = np.where(ends, specials.end, following)
        return {**sources, "tokens": tokens, "segments": segments, "targets": following}

    @property
    def sizes(self) -> dict[str, Any]:
        """Sizes that a model has to know; see Task."""
        return {"vocab_size": special_tokens(self.tokenizer).vocab_size}

    @property
    def protocol(self) -> dict[str, Any]:
        """Facts about the evaluation of a split; see Task."""
        return {"context": self.length}

    @property
    def remarks(self) -> tuple[str, ...]:
        """Lines that the user sees before training; see Task."""
        left_out = self.facts.get("left_out", 0)
        if not left_out:
            return ()
        return (f"{left_out:,} pairs are left out: they do not fit into data.length={self.length}",)

    def examples_at(self, indices: np.ndarray) -> Batch:
        """Returns a Batch of the pairs at `indices`, [B] int."""
        rows = {name: array[indices] for name, array in self._arrays.items()}
        targets = rows.pop("targets")
        weights = (rows["segments"] > 0).astype(np.float32)
        return {"inputs": rows, "targets": targets, "weights": weights}

    def references(self, split: str) -> dict[str, list[str]]:
        """Returns the reference translations of each source sentence in a split."""
        found: dict[str, list[str]] = {}
        for index in self.splits[split]:
            source, target = self.pairs[index]
            found.setdefault(source, []).append(target)
        return found


def with_end(tokenizer: Tokenizer, text: str) -> list[int]:
    """Returns the tokens of a sentence to translate, followed by an end token."""
    return [*tokenizer.encode(text), special_tokens(tokenizer).end]


def encode_sources(
    encode: Callable[[str], list[int]], texts: Iterable[str], length: int, padding: int
) -> dict[str, np.ndarray]:
    """Returns the model's inputs for N sentences: source and source_segments, [N, length] int32.

    `encode` returns the tokens of a sentence, special tokens included.

    Raises:
      InvalidInput: A sentence has more than `length` tokens.
    """
    rows = []
    for text in texts:
        rows.append(encode(text))
        if len(rows[-1]) > length:
            raise InvalidInput(
                f"a sentence of {len(rows[-1])} tokens, special ones included, does not fit into "
                f"data.length={length}: {text[:60]!r}"
            )
    tokens, segments = padded(rows, length, padding)
    return {"source": tokens, "source_segments": segments}


def padded(rows: list[list[int]], length: int, padding: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows padded to `length`, and segments (0 for padding, else 1), [N, length] int32."""
    tokens = np.full((len(rows), length), padding, np.int32)
    segments = np.zeros((len(rows), length), np.int32)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = row
        segments[index, : len(row)] = 1
    return tokens, segments


def refuse_empty_splits(source: str, splits: dict[str, np.ndarray]) -> None:
    """Raises InvalidInput if a split has no examples."""
    empty = [split for split, indices in splits.items() if len(indices) == 0]
    if empty:
        raise InvalidInput(
            f"data.source={source}: too few examples: none for {', '.join(empty)}; "
            "provide more examples, or different data.splits"
        )

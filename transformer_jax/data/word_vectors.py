"""Vectors of words from which words stand near each other in a text."""

import collections
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from transformer_jax.data.tokenizers import WordTokenizer
from transformer_jax.errors import InvalidInput, require


def word_vectors(
    texts: Iterable[str], tokenizer: WordTokenizer, width: int, window: int = 5
) -> np.ndarray:
    """Factors how much more often than by chance two words stand near each other.

    The matrix is max(0, ln p(a, b) / (p(a) p(b))), contexts counted to the power 3/4, and W = U
    sqrt(S) of its largest singular values: Levy and Goldberg 2014, "Neural word embedding as
    implicit matrix factorization", sections 3.2 and 5.1 (word2vec's own objective has the same
    matrix, shifted); the power and the root from Levy, Goldberg and Dagan 2015, section 3.1 and
    table 1. Deterministic.

    Args:
      texts: sentences; no pair reaches from one into another.
      tokenizer: of words; token 0, the unknown word, gets no vector.
      width: numbers in a vector, D.
      window: words on each side that count as near.
    Returns:
      [V, D] float32, with a mean square of 1 over the words that have a vector; 0 for the others.
    Raises:
      InvalidInput: fewer words than numbers in a vector, no two words in a text, or no scipy.
    """
    require("scipy", "counting neighbours of words")
    from scipy.sparse import coo_array
    from scipy.sparse.linalg import svds

    counts: collections.Counter[tuple[int, int]] = collections.Counter()
    for text in texts:
        counts.update(_near(tokenizer.encode(text).tolist(), window))
    if not counts:
        raise InvalidInput("word vectors: no two known words stand in one line of this text")
    vocab_size = tokenizer.vocab_size
    if width >= vocab_size:
        raise InvalidInput(f"width={width}: expected less than the {vocab_size} words there are")
    rows, columns = np.array(list(counts), np.int64).reshape(-1, 2).T
    pairs = np.array(list(counts.values()), np.float64)
    words = np.bincount(rows, pairs, vocab_size)
    contexts = words**0.75
    chance = words[rows] / words.sum() * contexts[columns] / contexts.sum()
    information = np.maximum(0, np.log(pairs / pairs.sum() / chance))
    if not information.any():
        raise InvalidInput("word vectors: no two words stand together more often than by chance")
    matrix = coo_array((information, (rows, columns)), shape=(vocab_size, vocab_size)).tocsr()
    start = np.full(vocab_size, vocab_size**-0.5)  # svds would draw one
    left, singular, _ = svds(matrix, k=width, v0=start)
    known = words > 0
    vectors = np.where(known[:, None], left * np.sqrt(singular), 0)
    return (vectors / np.sqrt((vectors[known] ** 2).mean())).astype(np.float32)


def _near(tokens: list[int], window: int) -> Iterator[tuple[int, int]]:
    """Pairs of known words, in both orders, that stand at most `window` places apart."""
    for place, token in enumerate(tokens):
        for other in tokens[place + 1 : place + 1 + window]:
            if token and other:
                yield token, other
                yield other, token


def write_word_vectors(path: Path, words: list[str], vectors: np.ndarray) -> int:
    """Writes word2vec's text format: how many and how long, then a word and its numbers a line.

    Args:
      path: of a new file.
      words: V words.
      vectors: [V, D]; rows of zeros are left out.
    Returns:
      Words written.
    """
    known = np.flatnonzero(np.abs(vectors).sum(-1) > 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(f"{len(known)} {vectors.shape[1]}\n")
        for row in known:
            file.write(" ".join([words[row], *(f"{value:.6g}" for value in vectors[row])]) + "\n")
    return len(known)

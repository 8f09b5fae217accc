"""Synthetic languages with a known minimum loss, each of which isolates a mechanism.

Each entry of LANGUAGES is a function (length, symbols) -> Language. A sequence has one token more
than a model reads; `scored` marks the tokens to predict.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from transformer_jax.errors import InvalidInput


class Examples(NamedTuple):
    """Token sequences [N, T + 1] int32, and a mask of the tokens to predict, [N, T + 1] bool."""

    tokens: np.ndarray
    scored: np.ndarray


class Language(NamedTuple):
    """A synthetic language with a known minimum loss.

    Attributes:
      words: Name of each token.
      examples: All examples, to be divided among the splits, if they can be listed; otherwise a
        function (generator, N) -> N examples.
      floor: Minimum expected loss in nats per scored token.
    """

    words: tuple[str, ...]
    examples: Examples | Callable[[np.random.Generator, int], Examples]
    floor: float = 0.0


def copy(length: int, symbols: int) -> Language:
    """Returns a language of symbols, a bar, and the same symbols again: c1 c2 c3 | c1 c2 c3."""
    return _echo(length, symbols, lambda row: row)


def reverse(length: int, symbols: int) -> Language:
    """Returns a language of symbols, a bar, and the symbols reversed: c1 c2 c3 | c3 c2 c1."""
    return _echo(length, symbols, lambda row: row[:, ::-1])


def _echo(length: int, symbols: int, order: Callable[[np.ndarray], np.ndarray]) -> Language:
    count = length // 2

    def draw(numbers: np.random.Generator, size: int) -> Examples:
        row = numbers.integers(symbols, size=(size, count))
        bars = np.full((size, 1), symbols)
        tokens = np.concatenate([row, bars, order(row)], axis=1)
        return _examples(tokens, np.arange(tokens.shape[1]) > count)

    return Language((*_letters(symbols), "|"), draw)


def recall(length: int, symbols: int) -> Language:
    """Returns a language of key–value pairs, followed by the same pairs in random order.

    An example is k1 v1 k2 v2 k2 v2 k1 v1: associative recall with many queries (Arora et al. 2023,
    arXiv:2312.04927, section 4.1). No key in a sequence has two values.
    """
    pairs = (length + 1) // 4
    if not pairs:
        raise InvalidInput(f"data.length={length}: expected at least 3, for a pair and its query")
    if pairs > symbols:
        raise InvalidInput(
            f"data.symbols={symbols}: data.length={length} needs {pairs} distinct "
            f"keys; expected at least {pairs} symbols"
        )

    def draw(numbers: np.random.Generator, size: int) -> Examples:
        keys = numbers.permuted(np.tile(np.arange(symbols), (size, 1)), axis=1)[:, :pairs]
        values = symbols + numbers.integers(symbols, size=(size, pairs))
        order = numbers.permuted(np.tile(np.arange(pairs), (size, 1)), axis=1)
        held = np.stack([keys, values], axis=2)
        asked = np.take_along_axis(held, order[..., None], axis=1)
        tokens = np.concatenate([held, asked], axis=1).reshape(size, 4 * pairs)
        places = np.arange(4 * pairs)
        return _examples(tokens, (places >= 2 * pairs) & (places % 2 == 1))

    letters = _letters(symbols)
    return Language((*letters, *map(str.upper, letters)), draw)


_NOUNS = ("key", "door", "letter", "window", "picture", "garden", "river", "machine")
_PREPOSITIONS = ("near", "behind", "above", "beside")


def agreement(length: int, symbols: int) -> Language:
    """Returns a language in which verbs agree with distant subjects: the keys near the door are.

    It simplifies Linzen et al. 2016, arXiv:1611.01368: each distractor is a preposition, "the" and
    a noun, randomly singular or plural. The verb agrees with the first noun, the subject. Shorter
    sentences are padded with dots in front.

    `symbols` is the number of nouns, each of which has a singular and a plural.
    """
    if symbols > len(_NOUNS):
        raise InvalidInput(f"data.symbols={symbols}: expected at most {len(_NOUNS)} nouns")
    nouns = tuple(noun + ending for noun in _NOUNS[:symbols] for ending in ("", "s"))
    words = (".", "the", "is", "are", *_PREPOSITIONS, *nouns)
    the, verbs, first_noun = 1, 2, 4 + len(_PREPOSITIONS)
    most = (length - 2) // 3

    def draw(numbers: np.random.Generator, size: int) -> Examples:
        shape = size, 1 + most
        noun = first_noun + numbers.integers(len(nouns), size=shape)
        preposition = 4 + numbers.integers(len(_PREPOSITIONS), size=shape)
        phrases = np.stack([preposition, np.full(shape, the), noun], axis=2)
        before = phrases.reshape(size, -1)[:, 1:]  # the subject has no preposition
        counts = numbers.integers(most + 1, size=size)  # distractors of each sentence
        verb = verbs + (noun[:, 0] - first_noun) % 2
        tokens = np.zeros((size, before.shape[1] + 1), int)
        for row, count in enumerate(counts):
            sentence = before[row, : 2 + 3 * count]
            tokens[row, -1 - len(sentence) : -1] = sentence
        tokens[:, -1] = verb
        return _examples(tokens, np.arange(tokens.shape[1]) == tokens.shape[1] - 1)

    return Language(words, draw)


def markov(length: int, symbols: int) -> Language:
    """Returns the language of a Markov chain, whose entropy rate is the floor.

    Each symbol depends only on the previous one. The rate is H = - sum_i pi_i sum_j P_ij log P_ij
    with pi P = pi (Shannon 1948, section 7). The rows of P are softmaxes of normal numbers with
    standard deviation 1.5, which are always the same for a number of symbols.
    """
    table = np.exp(1.5 * np.random.default_rng(symbols).normal(size=(symbols, symbols)))
    table /= table.sum(1, keepdims=True)
    stationary = np.linalg.matrix_power(table, 4096)[0]
    floor = -float(stationary @ (table * np.log(table)).sum(1))
    cumulative = np.cumsum(table, axis=1)

    def draw(numbers: np.random.Generator, size: int) -> Examples:
        tokens = np.zeros((size, length + 1), int)
        tokens[:, 0] = numbers.choice(symbols, size=size, p=stationary)
        chances = numbers.random((size, length))
        for place in range(length):
            reached = cumulative[tokens[:, place]] < chances[:, place, None]
            tokens[:, place + 1] = np.minimum(reached.sum(1), symbols - 1)
        return _examples(tokens, np.arange(length + 1) > 0)

    return Language(_letters(symbols), draw, floor)


def modular_addition(length: int, symbols: int) -> Language:
    """Returns a language of p * p sums a b = c with c = (a + b) mod p, where p is `symbols`.

    The language is that of Power et al. 2022, arXiv:2201.02177, section 3. The sums are divided
    among the splits, so those in the test split are not seen in training.
    """
    if length < 3:
        raise InvalidInput(f"data.length={length}: expected at least 3, for the tokens of a sum")
    first, second = (axis.ravel() for axis in np.indices((symbols, symbols)))
    equals = np.full(symbols**2, symbols)
    tokens = np.stack([first, second, equals, (first + second) % symbols], axis=1)
    finite = _examples(tokens, np.arange(4) == 3)
    return Language((*map(str, range(symbols)), "="), finite)


def _letters(count: int) -> tuple[str, ...]:
    """Returns `count` names: a to z, then a1, b1, ..."""
    names = "abcdefghijklmnopqrstuvwxyz"
    return tuple(names[i % 26] + (str(i // 26) if i >= 26 else "") for i in range(count))


def _examples(tokens: np.ndarray, scored: np.ndarray) -> Examples:
    """Returns examples that all have the same mask of scored positions, [T + 1] bool."""
    return Examples(tokens.astype(np.int32), np.broadcast_to(scored, tokens.shape))


LANGUAGES: dict[str, Callable[[int, int], Language]] = {
    make.__name__: make for make in (copy, reverse, recall, agreement, markov, modular_addition)
}


def load_language(source: str, length: int, symbols: int) -> Language:
    """Returns the language that `source` names, with inputs of at most `length` tokens.

    Raises:
      InvalidInput: There is no such language, or it does not allow this length or `symbols`.
    """
    if source not in LANGUAGES:
        raise InvalidInput(f"data.source={source}: expected one of {', '.join(LANGUAGES)}")
    return LANGUAGES[source](length, symbols)

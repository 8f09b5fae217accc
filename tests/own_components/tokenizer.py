"""A tokenizer of my own: from text to numbers and back."""

import collections

import numpy as np


class Mine:
    """One token for each of the commonest pairs of letters.

    Attributes:
      vocab_size: tokens, V.
      token_bytes: UTF-8 bytes of each token, [V]; None: bits per byte are not known.
    """

    def __init__(self, pairs):
        """Takes the known pairs; the last number stands for all others."""
        self.pairs = list(pairs)
        self.numbers = {pair: number for number, pair in enumerate(self.pairs)}
        self.vocab_size, self.token_bytes = len(self.pairs) + 1, None

    @classmethod
    def train(cls, texts, vocab_size):
        """Makes one from the text of the training split."""
        counts = collections.Counter(pair for text in texts for pair in cls._split(text))
        return cls(pair for pair, _ in counts.most_common(vocab_size - 1))

    @classmethod
    def from_json(cls, state):
        """The inverse of to_json."""
        return cls(state["pairs"])

    def to_json(self):
        """State that a run stores."""
        return {"pairs": self.pairs}

    def encode(self, text):
        """Text -> tokens, [N] int32."""
        other = self.vocab_size - 1
        return np.array([self.numbers.get(p, other) for p in self._split(text)], np.int32)

    def decode(self, tokens):
        """Tokens -> text."""
        return "".join([*self.pairs, "?"][token] for token in tokens)

    @staticmethod
    def _split(text):
        return [text[start : start + 2] for start in range(0, len(text), 2)]

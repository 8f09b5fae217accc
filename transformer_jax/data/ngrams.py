"""Counts instead of gradients: the baseline that every language model has to beat."""

import dataclasses

import numpy as np

from transformer_jax.data.tasks.batch import Batch
from transformer_jax.errors import InvalidInput


@dataclasses.dataclass(frozen=True)
class _Order:
    """What was counted of the n-grams of one length, as sorted codes.

    Attributes:
      grams: codes of the n-grams, ascending.
      counts: of each; of shorter n-grams than the longest, in how many ways they are continued to
        the left.
      contexts: codes of their first n - 1 tokens, ascending.
      totals: sum of the counts after each context.
      kinds: different tokens after each context.
      discount: what is taken off each count.
    """

    grams: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray
    totals: np.ndarray
    kinds: np.ndarray
    discount: float


@dataclasses.dataclass(frozen=True)
class NGrams:
    """Interpolated Kneser–Ney: Kneser and Ney 1995; Chen and Goodman 1999, section 2.7.

    p(w | h) = max(c(h w) - D, 0) / c(h) + D N(h) / c(h) * p(w | h'), h' being h without its first
    token, N(h) the number of different tokens after h; shorter n-grams are counted by the different
    tokens before them; below one token stands 1 / V. D = n1 / (n1 + 2 n2) of each order (Ney et al.
    1994), n1 and n2 being how many n-grams were counted once and twice; 1/2 where none was once.

    Attributes:
      vocab_size: tokens, V.
      orders: of one token, two tokens, ...
    """

    vocab_size: int
    orders: tuple[_Order, ...]

    @classmethod
    def fit(cls, tokens: np.ndarray, vocab_size: int, order: int) -> "NGrams":
        """Counts a text.

        Args:
          tokens: [N] int, the training text.
          vocab_size: V.
          order: longest n-gram, in tokens, at least 1.
        Raises:
          InvalidInput: n-grams of so many tokens of such a vocabulary have no code of 63 bits.
        """
        if vocab_size ** (order + 1) >= 2**63:
            raise InvalidInput(f"order={order}: too long for a vocabulary of {vocab_size} tokens")
        tokens = np.asarray(tokens, np.int64)
        longest = _codes(tokens, vocab_size, order)
        counted: list[_Order] = []
        for n in range(order, 0, -1):
            if n == order:
                grams, counts = np.unique(longest, return_counts=True)
            else:  # each different token before is counted once
                wider = np.unique(_codes(tokens, vocab_size, n + 1))
                grams, counts = np.unique(wider % vocab_size**n, return_counts=True)
            counted.append(_counted(grams, counts, vocab_size))
        return cls(vocab_size, tuple(reversed(counted)))

    def log_probabilities(self, contexts: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns log p(target | context) by all orders up to one more than the context is long.

        Args:
          contexts: [N, C] int, the tokens before, last one last; more than needed are not read.
          targets: [N] int.
        Returns:
          [N] nats, negative.
        """
        probability = np.full(len(targets), 1 / self.vocab_size)
        context = np.zeros(len(targets), np.int64)
        for n, order in enumerate(self.orders, 1):
            if n - 1 > contexts.shape[1]:
                break
            if n > 1:
                context += contexts[:, -(n - 1)].astype(np.int64) * self.vocab_size ** (n - 2)
            counts = _look_up(order.grams, order.counts, context * self.vocab_size + targets)
            totals = _look_up(order.contexts, order.totals, context)
            kinds = _look_up(order.contexts, order.kinds, context)
            known = totals > 0
            own = np.maximum(counts - order.discount, 0) + order.discount * kinds * probability
            probability = np.where(known, own / np.maximum(totals, 1), probability)
        return np.log(probability)

    def losses(self, batch: Batch) -> np.ndarray:
        """Returns -weight * log p of each target of a batch, [B, L]: only its window is read."""
        tokens, targets = np.asarray(batch["inputs"]["tokens"]), np.asarray(batch["targets"])
        losses = np.zeros(targets.shape)
        for place in range(targets.shape[1]):
            first = max(0, place + 2 - len(self.orders))
            before = tokens[:, first : place + 1]
            losses[:, place] = -self.log_probabilities(before, targets[:, place])
        return losses * batch["weights"]


def _codes(tokens: np.ndarray, vocab_size: int, n: int) -> np.ndarray:
    """The number that stands for each n-gram of a text: its tokens as digits."""
    count = max(len(tokens) - n + 1, 0)
    codes = np.zeros(count, np.int64)
    for place in range(n):
        codes = codes * vocab_size + tokens[place : place + count]
    return codes


def _counted(grams: np.ndarray, counts: np.ndarray, vocab_size: int) -> _Order:
    contexts, inverse = np.unique(grams // vocab_size, return_inverse=True)
    totals, kinds = np.bincount(inverse, counts), np.bincount(inverse)
    once, twice = (counts == 1).sum(), (counts == 2).sum()
    discount = once / (once + 2 * twice) if once else 0.5
    return _Order(grams, counts, contexts, totals, kinds, float(discount))


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The value of each wanted key, 0 where there is none."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)

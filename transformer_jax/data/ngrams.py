"""N-gram models, baselines that every language model has to beat."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from transformer_jax.data.tasks.batch import Batch

NOTHING = -1  # stands for tokens before the start of a text or a window
_OTHER = np.iinfo(np.int32).max  # stands for each token of another segment


@dataclasses.dataclass(frozen=True)
class _Order:
    """Counts of the n-grams of one length; contexts are numbered from 0 to C - 1."""

    contexts: np.ndarray  # ascending codes [C] of (first token, number of the remaining context)
    grams: np.ndarray  # ascending codes of (number of the context, last token)
    counts: np.ndarray  # of each n-gram; below the longest order, of distinct tokens before it
    totals: np.ndarray  # sum of the counts after each context, [C]
    kinds: np.ndarray  # number of distinct tokens after each context, [C]
    discount: float  # subtracted from each count


@dataclasses.dataclass(frozen=True)
class NGrams:
    """Interpolated Kneser–Ney model (Kneser and Ney 1995; Chen and Goodman 1999, section 2.7).

    p(w | h) = max(c(h w) - D, 0) / c(h) + D N(h) / c(h) * p(w | h'), where h' is h without its
    first token, and N(h) is the number of distinct tokens after h. Below the highest order, an
    n-gram is counted once for each distinct token before it; below unigrams, the recursion ends in
    the uniform distribution 1 / V. D = n1 / (n1 + 2 n2) for each order (Ney et al. 1994), where n1
    and n2 are the numbers of n-grams counted once and twice; D is 1/2 if n1 is 0.

    `orders` holds the counts of n-grams of one token, two tokens, ...
    """

    vocab_size: int
    orders: tuple[_Order, ...]

    @classmethod
    def of_rows(cls, rows: np.ndarray, vocab_size: int) -> "list[NGrams]":
        """Returns models of increasing order: unigram, bigram, ..., up to the longest available.

        Args:
          rows: [N, order] int: the context of each target, nearest token last, and then the
            target; NOTHING for missing tokens.
          vocab_size: Number of tokens, V.
        """
        count, order = rows.shape
        targets = rows[:, -1].astype(np.int64)
        context, contexts = np.zeros(count, np.int64), np.zeros(1, np.int64)
        models: list[NGrams] = []
        shorter: tuple[_Order, ...] = ()
        gram, has_context = targets, np.arange(count)  # the number of each row's n-gram
        for n in range(1, order + 1):
            grams, counts = np.unique(gram[has_context], return_counts=True)
            longest = _counted(contexts, grams, counts, vocab_size)
            models.append(cls(vocab_size, (*shorter, longest)))
            if n == order:
                break
            first = rows[:, -n - 1].astype(np.int64)
            has_context = np.flatnonzero((first != NOTHING) & (context != NOTHING))
            if not len(has_context):  # no text is that long
                break
            codes = first[has_context] * len(contexts) + context[has_context]
            wider_contexts, numbers = np.unique(codes, return_inverse=True)
            context = np.full(count, NOTHING)
            context[has_context] = numbers
            wider = context * vocab_size + targets
            # Shorter n-grams are counted once for each distinct token before them.
            _, one_of_each = np.unique(wider[has_context], return_index=True)
            grams, counts = np.unique(gram[has_context[one_of_each]], return_counts=True)
            shorter = (*shorter, _counted(contexts, grams, counts, vocab_size))
            contexts, gram = wider_contexts, wider
        return models

    def log_probabilities(self, contexts: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Returns log p(target | context) from all orders up to the context's length plus one.

        Args:
          contexts: Preceding tokens, [..., C] int, nearest last; those beyond the longest order,
            and those before NOTHING, are ignored.
          targets: Tokens to score, [...] int.
        Returns:
          Log-probabilities in nats, [...].
        """
        probability = np.full(targets.shape, 1 / self.vocab_size)
        context = np.zeros(targets.shape, np.int64)
        for n, order in enumerate(self.orders[: contexts.shape[-1] + 1], 1):
            if n > 1:
                first = contexts[..., -(n - 1)].astype(np.int64)
                codes = first * len(self.orders[n - 2].contexts) + context
                place, is_there = _find(order.contexts, codes)
                context = np.where(is_there & (first >= 0) & (context >= 0), place, NOTHING)
            place, is_there = _find(order.grams, context * self.vocab_size + targets)
            counts = np.where(is_there & (context >= 0), order.counts[place], 0)
            totals, kinds = order.totals[context], order.kinds[context]
            own = np.maximum(counts - order.discount, 0) + order.discount * kinds * probability
            known = (context >= 0) & (totals > 0)
            probability = np.where(known, own / np.maximum(totals, 1), probability)
        return np.log(probability)


def context_rows(batch: Batch, distances: Sequence[int]) -> np.ndarray:
    """Returns the tokens near each target, then the target, [B, L, len(distances) + 1].

    Args:
      batch: Batch whose input tokens and targets are [B, L] int, and its segments if it has any.
      distances: Offset of each token from the target's position in the inputs, nearest last.
    """
    tokens, targets = np.asarray(batch["inputs"]["tokens"], np.int32), np.asarray(batch["targets"])
    segments = np.asarray(batch["inputs"].get("segments", np.ones_like(tokens)))
    most, length = max(map(abs, distances), default=0), tokens.shape[1]
    sides = ((0, 0), (most, most))
    padded, around = (np.pad(a, sides, constant_values=NOTHING) for a in (tokens, segments))
    places = [slice(most + distance, most + distance + length) for distance in distances]
    seen = ((around[:, p] == segments) | (around[:, p] == NOTHING) for p in places)
    near = (np.where(s, padded[:, p], _OTHER) for s, p in zip(seen, places, strict=True))
    return np.stack([*near, targets], -1)


def _counted(contexts: np.ndarray, grams: np.ndarray, counts: np.ndarray, size: int) -> _Order:
    context = grams // size
    totals = np.bincount(context, counts, len(contexts))
    kinds = np.bincount(context, minlength=len(contexts))
    once, twice = (counts == 1).sum(), (counts == 2).sum()
    discount = once / (once + 2 * twice) if once else 0.5
    return _Order(contexts, grams, counts, totals, kinds, float(discount))


def _find(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the index of each wanted key in the ascending `keys`, and whether it is present."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return places, keys[places] == wanted

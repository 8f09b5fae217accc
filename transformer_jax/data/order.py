"""Order and splits as functions: which examples make a batch, and which are kept for the test."""

import functools
import hashlib
from collections.abc import Sequence

import numpy as np

SPLITS = ("train", "validation", "test")


def example_order(
    seed: int, step: int, batch_size: int, num_examples: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns which examples make the batch of a step: random access into shuffled epochs.

    Epoch e is a permutation of all examples drawn from (seed, e) alone, and epochs follow each
    other without a gap, so every example comes exactly once per epoch whatever the batch size; a
    batch may hold the end of one epoch and the start of the next.

    Args:
      seed: of the data order.
      step: optimizer updates so far.
      batch_size: examples in the batch, B.
      num_examples: examples in an epoch.
    Returns:
      examples [B] int64 and the epoch of each [B] int64.
    """
    epochs, places = np.divmod(np.arange(step * batch_size, (step + 1) * batch_size), num_examples)
    examples = np.empty(batch_size, np.int64)
    for epoch in np.unique(epochs):
        mine = epochs == epoch
        examples[mine] = _permutation(seed, int(epoch), num_examples)[places[mine]]
    return examples, epochs


def epoch_generator(seed: int, epoch: int) -> np.random.Generator:
    """Returns the random numbers that belong to one epoch of one run."""
    return np.random.default_rng(np.random.SeedSequence((seed, epoch)))


def step_generator(seed: int, step: int, purpose: str) -> np.random.Generator:
    """Returns the random numbers that belong to one step of one run, for one purpose.

    Args:
      seed: of the data order.
      step: optimizer updates so far.
      purpose: a word; two purposes draw independently.
    """
    return np.random.default_rng(np.random.SeedSequence((seed, step, *purpose.encode())))


def window_starts(
    seed: int, step: int, batch_size: int, num_places: int, length: int
) -> np.ndarray:
    """Returns where the windows of a training batch begin.

    An epoch cuts the text into windows on a grid and shuffles them. The grid leaves fewer than
    2 * length tokens over; its offset is drawn per epoch, so that other tokens are left out each
    time, and windows begin at other places.

    Args:
      seed: of the data order.
      step: optimizer updates so far.
      batch_size: windows in the batch, B.
      num_places: tokens that a window may cover.
      length: tokens in a window.
    Returns:
      [B] int64.
    """
    num_windows = num_places // length - 1  # that fit wherever the grid begins
    windows, epochs = example_order(seed, step, batch_size, num_windows)
    left_over = num_places - num_windows * length
    offsets = {
        int(epoch): int(epoch_generator(seed, int(epoch)).integers(left_over + 1))
        for epoch in np.unique(epochs)
    }
    return windows * length + np.array([offsets[int(epoch)] for epoch in epochs])


@functools.lru_cache(maxsize=4)
def _permutation(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    return epoch_generator(seed, epoch).permutation(num_examples)


def split_by_key(keys: Sequence[str], shares: Sequence[float], seed: int) -> dict[str, np.ndarray]:
    """Splits examples at random so that examples with the same key stay together.

    A sentence with several translations, or a text that stands twice in a file, is thus in one
    split alone. A key's place depends on itself and the seed, not on the order of the file, so
    examples that are added later move no other example to another split.

    Args:
      keys: of each example.
      shares: of the examples in train, validation and test; they sum to 1.
      seed: another seed, another split.
    Returns:
      split -> ascending indices; a share holds up to chance.
    """
    places = np.array([place_of(key, seed) for key in keys])
    edges = np.cumsum((0.0, *shares))
    edges[-1] = np.inf
    return {
        split: np.flatnonzero((low <= places) & (places < high))
        for split, low, high in zip(SPLITS, edges[:-1], edges[1:], strict=True)
    }


def place_of(key: str, seed: int) -> float:
    """Returns a uniform number in [0, 1) that belongs to a key."""
    digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def batches_of(indices: np.ndarray, batch_size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Cuts indices into batches of one shape; the last is filled with repeats that do not count.

    Args:
      indices: [N] int.
      batch_size: B.
    Returns:
      Pairs of indices [B] and counts [B] float32, 0 where an index only fills the batch.
    """
    batches = []
    for first in range(0, len(indices), batch_size):
        mine = indices[first : first + batch_size]
        missing = batch_size - len(mine)
        counts = np.repeat(np.array([1, 0], np.float32), [len(mine), missing])
        batches.append((np.concatenate([mine, np.repeat(mine[:1], missing)]), counts))
    return batches

"""Data order and splits, computed from seeds: the examples in each batch and in each split."""

import functools
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

SPLITS = ("train", "validation", "test")
_LARGEST_ARRAY = 1 << 26  # most examples whose order is kept in memory (half a GiB)
_ROUNDS = 8  # of a Feistel network


class Part(NamedTuple):
    """A source's part of the train split in a mixture, with the source's name.

    `share` is its fraction of the training windows, to three digits; `begin` is the index of its
    first token, and `count` the number of its tokens.
    """

    name: str
    share: float
    begin: int
    count: int


def example_order(seed: int, step: int, size: int, num_examples: int) -> tuple[np.ndarray, ...]:
    """Returns the examples in a step's batch and their epochs, without iterating up to the step.

    Epoch e is a permutation of all examples that depends on (seed, e) alone. Epochs follow each
    other without a gap: every example occurs exactly once per epoch at any batch size, and a batch
    can contain the end of one epoch and the start of the next.

    Returns:
      Indices of the examples [B] int64, and the epoch of each, [B] int64.
    """
    return _in_epochs(seed, numbers_of_step(step, size), num_examples)


def numbers_of_step(step: int, batch_size: int) -> np.ndarray:
    """Returns the numbers of a step's examples, counted over all epochs, [B] int64."""
    return np.arange(step * batch_size, (step + 1) * batch_size)


def window_starts(seed: int, numbers: np.ndarray, num_places: int, length: int) -> np.ndarray:
    """Returns the start positions of training windows in a text, [N] int64.

    An epoch divides the text into windows on a grid and shuffles them. Fewer than 2 * length
    tokens are left over. The offset of the grid is drawn for each epoch, so that different tokens
    are left over each time, and windows begin at different positions.

    `numbers` [N] int are indices of windows, counted over all epochs; see numbers_of_step. The
    text has `num_places` tokens, and a window has `length`.
    """
    num_windows = num_places // length - 1  # that fit at any offset of the grid
    windows, epochs = _in_epochs(seed, numbers, num_windows)
    left_over = num_places - num_windows * length
    drawn, places = np.unique(epochs, return_inverse=True)
    offsets = [_epoch_generator(seed, epoch).integers(left_over + 1) for epoch in drawn]
    return windows * length + np.array(offsets, np.int64)[places]


def _in_epochs(seed: int, numbers: np.ndarray, num_examples: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the example for each of `numbers` [N], and its epoch; see example_order."""
    epochs, places = np.divmod(numbers, num_examples)
    examples = np.empty(len(numbers), np.int64)
    for epoch in np.unique(epochs):
        mine = epochs == epoch
        examples[mine] = _permutation(seed, int(epoch), num_examples)[places[mine]]
    return examples, epochs


def _epoch_generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence((seed, int(epoch))))


def step_generator(seed: int, step: int, purpose: str) -> np.random.Generator:
    """Returns a random generator for one step of a run, independent for each purpose."""
    return np.random.default_rng(np.random.SeedSequence((seed, step, *purpose.encode())))


@functools.lru_cache(maxsize=16)  # one epoch for each part of a mixture
def _permutation(seed: int, epoch: int, num_examples: int) -> "np.ndarray | _Shuffled":
    random = _epoch_generator(seed, epoch)
    if num_examples > _LARGEST_ARRAY:
        return _Shuffled(random, num_examples)
    return random.permutation(num_examples)


class _Shuffled:
    """Permutation of 0 to count - 1, computed on the fly, if it does not fit in memory.

    It is a Feistel network over the next power of 4; results beyond the end pass through it again
    (Black and Rogaway 2002, CT-RSA, section 4).
    """

    def __init__(self, random: np.random.Generator, count: int) -> None:
        self._count = count
        self._half = np.uint64(-(-(count - 1).bit_length() // 2))
        self._keys = random.integers(0, 2**64, _ROUNDS, np.uint64)

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """Returns the permuted numbers at `places`, [N] int -> [N] int64."""
        numbers = self._once(np.asarray(places, np.uint64))
        while (beyond := numbers >= self._count).any():
            numbers[beyond] = self._once(numbers[beyond])
        return numbers.astype(np.int64)

    def _once(self, numbers: np.ndarray) -> np.ndarray:
        half, ones = self._half, (np.uint64(1) << self._half) - np.uint64(1)
        left, right = numbers >> half, numbers & ones
        for key in self._keys:
            left, right = right, left ^ (_scattered(right ^ key) & ones)
        return (left << half) | right


def _scattered(numbers: np.ndarray) -> np.ndarray:
    """Returns splitmix64's finalizer modulo 2^64 (Steele, Lea, Flood 2014, OOPSLA, figure 17)."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))


def batches_of(indices: np.ndarray, batch_size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns batches of the same shape: pairs of indices [B] and weights [B] float32.

    The last batch is padded with repeats of its first index, which have weight 0.
    """
    batches = []
    for first in range(0, len(indices), batch_size):
        mine = indices[first : first + batch_size]
        weights = (np.arange(batch_size) < len(mine)).astype(np.float32)
        padded = np.pad(mine, (0, batch_size - len(mine)), constant_values=mine[0])
        batches.append((padded, weights))
    return batches


def split_by_key(keys: Sequence[str], shares: Sequence[float], seed: int) -> dict[str, np.ndarray]:
    """Returns the indices of each split's examples, in ascending order, drawn at random by key.

    Examples with the same key stay together. For instance, a sentence with several translations,
    or a text that occurs twice in a file, is in one split only. A key's split depends on the key
    and the seed alone, not on the order of the examples, so adding examples moves no others.

    `shares` of train, validation and test sum to 1; actual shares deviate from them by chance.
    """
    places = np.array([place_of(key, seed) for key in keys])
    edges = np.cumsum((0.0, *shares))
    edges[-1] = np.inf
    return {
        split: np.flatnonzero((low <= places) & (places < high))
        for split, low, high in zip(SPLITS, edges[:-1], edges[1:], strict=True)
    }


def place_of(key: str, seed: int) -> float:
    """Returns a pseudo-random number, uniform in [0, 1), that depends on a key and a seed alone."""
    digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64

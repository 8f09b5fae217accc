"""Splits of examples into training, validation and test, by a hash of their content."""

import hashlib
from collections.abc import Sequence

import numpy as np

from transformer_jax.data.order import SPLITS


def split_by_key(keys: Sequence[str], shares: Sequence[float], seed: int) -> dict[str, np.ndarray]:
    """Splits examples at random so that examples with the same key stay together.

    So a sentence with several translations, or a text that occurs twice in a file, is in one
    split only. A key's split depends on itself and the seed, not on the order of the file, so
    added examples move no other example to another split.

    Args:
      keys: Key of each example.
      shares: Fractions of the examples in train, validation and test; they sum to 1.
      seed: Seed of the split.
    Returns:
      Split -> ascending indices; fractions hold up to chance.
    """
    places = np.array([place_of(key, seed) for key in keys])
    edges = np.cumsum((0.0, *shares))
    edges[-1] = np.inf
    return {
        split: np.flatnonzero((low <= places) & (places < high))
        for split, low, high in zip(SPLITS, edges[:-1], edges[1:], strict=True)
    }


def place_of(key: str, seed: int) -> float:
    """Returns a uniform number in [0, 1) that depends on a key."""
    digest = hashlib.sha256(f"{seed}:{key}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64

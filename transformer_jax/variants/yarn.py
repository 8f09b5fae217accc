"""YaRN: rotary positions for contexts longer than those in training."""

import math

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.options import AboveOne, Count, Positive, PositiveShare
from transformer_jax.positions import (
    PositionTerms,
    Rotation,
    Sizes,
    angles_at,
    frequencies,
    rotated_features,
)


class YarnPositions(nn.Module):
    """Rotary positions whose long wavelengths are stretched, and whose scores are scaled up.

    Wavelengths with at most `slow_turns` turns in original_length are stretched by the factor,
    those with `fast_turns` turns or more are kept, with a linear ramp over the features in between.
    Rotated features of queries and keys are multiplied by 0.1 ln(factor) + 1. Peng et al. 2023,
    arXiv:2309.00071, sections 3.2 to 3.4, with the ramp of the reference code.

    Attributes:
      max_wavelength: Longest wavelength divided by 2 pi, in positions, before it is stretched.
      fraction: Fraction of the features that are rotated, from the first on.
      factor: Ratio of the longer context's length to that in training.
      original_length: Number of positions of a context in training.
      fast_turns: Smallest number of turns in original_length at which a wavelength is kept.
      slow_turns: Largest number of turns in original_length at which a wavelength is stretched.
      gain: Factor of rotated queries and keys; 0.1 ln(factor) + 1 if None.
    """

    max_wavelength: AboveOne = 10_000.0
    fraction: PositiveShare = 1.0
    factor: Positive = 1.0
    original_length: Count = 8192
    fast_turns: Positive = 32.0
    slow_turns: Positive = 1.0
    gain: Positive | None = None

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> a rotation of [..., L, R/2], R = fraction * K.

        Raises:
          ValueError: R is odd or 0, or slow_turns is not below fast_turns.
        """
        if self.slow_turns >= self.fast_turns:
            raise ValueError(
                f"slow_turns: expected less than {self.fast_turns:g}, got {self.slow_turns:g}"
            )
        features = rotated_features(self.fraction, sizes.head_dim)
        low, high = (self._place(turns, features) for turns in (self.fast_turns, self.slow_turns))
        low, high = max(math.floor(low), 0), min(math.ceil(high), features - 1)
        places = jnp.arange(features // 2, dtype=jnp.float32)
        stretched = jnp.clip((places - low) / max(high - low, 1e-3), 0, 1)
        of_places = frequencies(features, self.max_wavelength)
        angles = angles_at(positions, of_places * (1 - stretched + stretched / self.factor))
        gain = self.gain
        if gain is None:
            gain = 0.1 * math.log(self.factor) + 1 if self.factor > 1 else 1.0
        return PositionTerms(rotation=Rotation(gain * jnp.cos(angles), gain * jnp.sin(angles)))

    def _place(self, turns: float, features: int) -> float:
        """Returns the index of the pair of features with this number of turns."""
        ratio = self.original_length / (turns * 2 * math.pi)
        return features * math.log(ratio) / (2 * math.log(self.max_wavelength))

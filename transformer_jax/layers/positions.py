"""What tells a transformer where a token stands.

Every encoding is a module from position numbers to `PositionTerms`: something added to the
embeddings, a rotation of queries and keys, or a bias on the scores. Nothing else in the model
knows which encoding it was. Encodings of absolute positions start at a stated root mean square, the
same for learned and sinusoidal: the sign of a comparison between the two flips with that amplitude.
"""

import math
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array


class Rotation(NamedTuple):
    """Cosine and sine of each position's angles, both [..., L, K/2] float32."""

    cos: Array
    sin: Array


class PositionTerms(NamedTuple):
    """What an encoding hands to the model.

    Attributes:
      embedding: [..., L, D], added to the token embeddings.
      rotation: applied to queries and keys in every attention.
      bias: [..., H, L, L], added to the scores of every attention.
    """

    embedding: Array | None = None
    rotation: Rotation | None = None
    bias: Array | None = None


def sinusoidal_positions(length: int, width: int, max_wavelength: float = 10_000.0) -> Array:
    """Returns the fixed sine and cosine table that marks each position.

    p[i, 2k] = sin(i / max_wavelength^(2k / width)) and p[i, 2k+1] = cos of the same angle.
    Vaswani et al. 2017, arXiv:1706.03762, section 3.5. (Notes in circulation print
    (i / max_wavelength)^(2k / width), a misprint that loses the shift property.)

    Args:
      length: number of positions, L.
      width: model width, D; even.
      max_wavelength: longest wavelength over 2 pi, in positions.
    Returns:
      [L, D] float32, values in [-1, 1].
    Raises:
      ValueError: width is odd.
    """
    if width % 2:
        raise ValueError(f"width: expected an even number of features, got {width}")
    return _sinusoids(jnp.arange(length), width, max_wavelength)


def _sinusoids(positions: Array, width: int, max_wavelength: float) -> Array:
    """[..., L] positions -> [..., L, width], sines and cosines taking turns."""
    angles = _angles(positions, width, max_wavelength)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, width)


def _angles(positions: Array, width: int, max_wavelength: float) -> Array:
    """[..., L] positions -> [..., L, width / 2] radians, float32 whatever the compute dtype."""
    frequencies = max_wavelength ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    return positions.astype(jnp.float32)[..., None] * frequencies


def rotate(inputs: Array, rotation: Rotation) -> Array:
    """Rotates each pair of features (k, k + K/2) by its position's angle.

    Su et al. 2021, arXiv:2104.09864, equation 34, with the halves paired as in Llama and
    GPT-NeoX; scores then depend on the distance between two positions alone.

    Args:
      inputs: [..., H, L, K], queries or keys.
      rotation: angles of [..., L, K/2].
    Returns:
      [..., H, L, K], dtype of the inputs.
    """
    cos, sin = (part[..., None, :, :] for part in rotation)
    first, second = jnp.split(inputs, 2, axis=-1)
    rotated = jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
    return rotated.astype(inputs.dtype)


NO_TERMS = PositionTerms()


class NoPositions(nn.Module):
    """Says nothing about positions; only a causal mask tells order (Haviv et al. 2022)."""

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> no terms."""
        return NO_TERMS


class LearnedPositions(nn.Module):
    """Adds a learned vector for each absolute position (Gehring et al. 2017, section 3.1).

    Attributes:
      max_length: number of positions in the table; a position beyond it gives NaN, not a clamp.
      width: model width, D.
      rms: root mean square of the initial table.
    """

    max_length: int
    width: int
    rms: float = 0.02

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> an embedding [..., L, D]."""
        init = nn.initializers.normal(self.rms)
        table = self.param("embedding", init, (self.max_length, self.width))
        return PositionTerms(embedding=lookup(table, positions))


class SinusoidalPositions(nn.Module):
    """Adds the sinusoidal table, scaled to a root mean square; no parameters.

    Attributes:
      width: model width, D; even.
      rms: root mean square of what is added; the unscaled table of the paper has sqrt(1/2).
      max_wavelength: longest wavelength over 2 pi, in positions.
    """

    width: int
    rms: float = 0.02
    max_wavelength: float = 10_000.0

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> an embedding [..., L, D]."""
        table = _sinusoids(positions, self.width, self.max_wavelength)
        return PositionTerms(embedding=table * (self.rms * math.sqrt(2)))


class Sinusoidal2DPositions(nn.Module):
    """Adds sinusoids of a patch's row to half of the features, of its column to the other half.

    As in MAE (He et al. 2022, arXiv:2111.06377) and big_vision. Tokens in front of the patches, a
    class token say, have no place in the image and get 0.

    Attributes:
      width: model width, D; a multiple of 4.
      grid: rows and columns of patches.
      max_length: patches and tokens in front of them.
      rms: root mean square of what is added.
      max_wavelength: longest wavelength over 2 pi, in patches.
    """

    width: int
    grid: tuple[int, int]
    max_length: int
    rms: float = 0.02
    max_wavelength: float = 10_000.0

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> an embedding [..., L, D]."""
        if self.width % 4:
            raise ValueError(f"width: 2-d positions need a multiple of 4, got {self.width}")
        rows, columns = self.grid
        patches = positions - (self.max_length - rows * columns)
        halves = [
            _sinusoids(places, self.width // 2, self.max_wavelength)
            for places in jnp.divmod(jnp.maximum(patches, 0), columns)
        ]
        table = jnp.concatenate(halves, axis=-1) * (self.rms * math.sqrt(2))
        return PositionTerms(embedding=jnp.where(patches[..., None] < 0, 0, table))


class RotaryPositions(nn.Module):
    """Rotates queries and keys by their position (Su et al. 2021, arXiv:2104.09864).

    Attributes:
      head_dim: features of one head, K; even.
      max_wavelength: longest wavelength over 2 pi, in positions; the "base" or "theta".
    """

    head_dim: int
    max_wavelength: float = 10_000.0

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> a rotation of [..., L, K/2]."""
        if self.head_dim % 2:
            raise ValueError(f"head_dim: rotary positions need an even size, got {self.head_dim}")
        angles = _angles(positions, self.head_dim, self.max_wavelength)
        return PositionTerms(rotation=Rotation(jnp.cos(angles), jnp.sin(angles)))


class ALiBiPositions(nn.Module):
    """Takes from each score the distance between query and key, times a slope of the head.

    bias[h, i, j] = -2^(-8 (h + 1) / H) |i - j| for heads h = 0 .. H-1. Press et al. 2022,
    arXiv:2108.12409, section 3, whose slopes for a number of heads that is no power of two are
    interleaved instead.

    Attributes:
      num_heads: heads, H.
    """

    num_heads: int

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> a bias [..., H, L, L]."""
        heads = jnp.arange(1, self.num_heads + 1, dtype=jnp.float32)
        slopes = 2.0 ** (-8.0 * heads / self.num_heads)
        distance = jnp.abs(positions[..., :, None] - positions[..., None, :])
        return PositionTerms(bias=-slopes[:, None, None] * distance[..., None, :, :])


def lookup(table: Array, indices: Array) -> Array:
    """Returns rows of a table; an index outside it gives NaN instead of the nearest row.

    Args:
      table: [V, D].
      indices: [...] int.
    Returns:
      [..., D].
    """
    indices = jnp.where(indices < 0, table.shape[0], indices)  # -1 would mean the last row
    return table.at[indices].get(mode="fill", fill_value=jnp.nan)


POSITIONS = {
    "none": NoPositions,
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "sinusoidal_2d": Sinusoidal2DPositions,
    "rotary": RotaryPositions,
    "alibi": ALiBiPositions,
}

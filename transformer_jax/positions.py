"""Position encodings.

Every encoding is a module that maps position numbers to `PositionTerms`: an addition to the
embeddings, a rotation of queries and keys, or a bias added to the scores, which may depend on the
queries and keys. Nothing else in the model depends on the encoding. Encodings of absolute positions
share the option `rms`, their root mean square, because their ranking depends on that amplitude.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.linear import Checked, lookup
from transformer_jax.options import AboveOne, Count, InitialSize, Positive, PositiveShare, Switch
from transformer_jax.shapes import as_float


class Rotation(NamedTuple):
    """Cosine and sine of each position's angles, both [..., L, R/2] float32, R <= K features."""

    cos: Array
    sin: Array


# Added to scores: an array [..., H, L, M], or a function that makes it from queries [..., H, L, K],
# keys [..., H, M, K] and the mask as an array. The function is a pytree (jax.tree_util.Partial), so
# that transformations can pass it on, and takes `first`, the index of the first query.
Bias = Array | Callable[..., Array]


class PositionTerms(NamedTuple):
    """Output of a position encoding.

    Attributes:
      embedding: [..., L, D], added to the token embeddings.
      rotation: Applied to queries and keys of self-attention.
      bias: Added to the scores of self-attention.
    """

    embedding: Array | None = None
    rotation: Rotation | None = None
    bias: Bias | None = None


NO_TERMS = PositionTerms()


class Sizes(NamedTuple):
    """Sizes of the model that a position encoding or a mixer may use.

    Attributes:
      width: Model width, D.
      num_heads: Number of attention heads, H.
      head_dim: Number of features per head, K.
      value_dim: Number of value features per head, V.
      scale: Factor applied to the attention scores.
      max_length: Largest number of positions in an input.
      vocab_size: Number of tokens in the vocabulary, or None if the input is not text.
      causal: Whether no position may look ahead.
      grid: Numbers of rows and columns of patches, if the input is an image.
    """

    width: int
    num_heads: int = 1
    head_dim: int = 1
    value_dim: int = 1
    scale: float = 1.0
    max_length: int = 1
    vocab_size: int | None = None
    causal: bool = True
    grid: tuple[int, int] | None = None


def rotate(inputs: Array, rotation: Rotation) -> Array:
    """Rotates each pair of features (k, k + R/2) of the first R by its position's angle.

    Su et al. 2021, arXiv:2104.09864, equation 34, with the halves paired as in Llama and
    GPT-NeoX; scores then depend on positions only through their distance.

    Args:
      inputs: [..., H, L, K], queries or keys.
      rotation: Cosines and sines, [..., L, R/2]; features from R onwards stay unchanged.

    Returns:
      [..., H, L, K], dtype of the inputs; float32 for integers.

    Raises:
      ValueError: There are more angles than pairs of features.
    """
    inputs, (cos, sin) = as_float(inputs), (part[..., None, :, :] for part in rotation)
    half = cos.shape[-1]
    if 2 * half > inputs.shape[-1]:
        raise ValueError(f"rotation: expected at most {inputs.shape[-1] // 2} angles, got {half}")
    first, second, rest = jnp.split(inputs, (half, 2 * half), axis=-1)
    rotated = [first * cos - second * sin, second * cos + first * sin, rest]
    return jnp.concatenate(rotated, axis=-1).astype(inputs.dtype)


def add_positions(hidden: Array, terms: PositionTerms) -> Array:
    """Adds the position embedding, if there is one: [..., L, D] -> [..., L, D]."""
    return hidden if terms.embedding is None else hidden + terms.embedding.astype(hidden.dtype)


def bias_for(bias: Bias | None, query: Array, key: Array, mask: Array | None) -> Array | None:
    """Returns the bias for these queries and keys as an array [..., H, L, M], or None."""
    made: Any = bias(query, key, mask) if callable(bias) else bias
    return made


def of_queries(terms: PositionTerms, first: Array | int, count: int) -> PositionTerms:
    """Returns the terms of `count` positions from `first` on."""

    def rows(table: Array) -> Array:
        return jax.lax.dynamic_slice_in_dim(table, first, count, axis=-2)

    bias = terms.bias
    if callable(bias):
        bias = jax.tree_util.Partial(bias, first=first)
    elif bias is not None:
        bias = rows(bias)
    return PositionTerms(
        None if terms.embedding is None else rows(terms.embedding),
        None if terms.rotation is None else Rotation(*map(rows, terms.rotation)),
        bias,
    )


def sinusoidal_positions(length: int, width: int, max_wavelength: float = 10_000.0) -> Array:
    """Returns the fixed sine and cosine position table.

    p[i, 2k] = sin(i / max_wavelength^(2k / width)) and p[i, 2k+1] = cos of the same angle.
    Vaswani et al. 2017, arXiv:1706.03762, section 3.5. (Some notes print
    (i / max_wavelength)^(2k / width), a misprint that loses the shift property.)

    Args:
      length: Number of positions, L.
      width: Number of features, D.
      max_wavelength: Longest wavelength divided by 2 pi, in positions.
    Returns:
      [L, D] float32, values in [-1, 1].
    Raises:
      ValueError: The width is odd.
    """
    return sinusoids(jnp.arange(length), width, max_wavelength)


def sinusoids(positions: Array, width: int, max_wavelength: float) -> Array:
    """[..., L] positions -> [..., L, width], sines and cosines alternating."""
    if width % 2:
        raise ValueError(f"width: sinusoids come in pairs; expected an even number, got {width}")
    angles = angles_at(positions, frequencies(width, max_wavelength))  # float32 whatever the dtype
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, width)


def frequencies(width: int, max_wavelength: float) -> Array:
    """Returns the frequencies in radians per position, [width / 2], the largest first."""
    return max_wavelength ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)


def angles_at(positions: Array, frequencies: Array) -> Array:
    """[..., L] positions and [R/2] radians per position -> angles [..., L, R/2] float32."""
    return positions.astype(jnp.float32)[..., None] * frequencies


def rotated_features(fraction: float, head_dim: int) -> int:
    """Returns the number of rotated features, R; raises ValueError if it is odd or 0."""
    features = int(fraction * head_dim)
    if features % 2 or not features:
        raise ValueError(
            f"head_dim: rotary positions rotate pairs; expected an even number of features, "
            f"got {features}, which is {fraction} of {head_dim}"
        )
    return features


class NoPositions(nn.Module):
    """No position encoding; only a causal mask reveals the order (Haviv et al. 2022)."""

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> no terms."""
        return NO_TERMS


class LearnedPositions(Checked):
    """Learned vectors, one added at each absolute position (Gehring et al. 2017, section 3.1).

    Attributes:
      rms: Root mean square, before training, of the vectors added to the embeddings.
    """

    rms: InitialSize = 0.02

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> an embedding [..., L, D]."""
        init = nn.initializers.normal(self.rms)
        table = self.param("embedding", init, (sizes.max_length, sizes.width))
        return PositionTerms(embedding=lookup(table, positions))


class SinusoidalPositions(Checked):
    """The sinusoidal table, scaled to a root mean square and added to embeddings; no parameters.

    The unscaled table of the paper has a root mean square of sqrt(1/2).

    Attributes:
      rms: Root mean square, before training, of the vectors added to the embeddings.
      max_wavelength: Longest wavelength divided by 2 pi, in positions.
      in_halves: Whether all sines come before all cosines, as in the authors' code and in Marian.
    """

    rms: Positive = 0.02
    max_wavelength: AboveOne = 10_000.0
    in_halves: Switch = False

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> an embedding [..., L, D]."""
        table = sinusoids(positions, sizes.width, self.max_wavelength)
        if self.in_halves:
            table = jnp.concatenate([table[..., ::2], table[..., 1::2]], axis=-1)
        return PositionTerms(embedding=table * (self.rms * math.sqrt(2)))


class RotaryPositions(Checked):
    """Rotation of queries and keys by their position (Su et al. 2021, arXiv:2104.09864).

    There are three methods for contexts longer than those in training. `linear` divides the
    positions by the factor (Chen et al. 2023, arXiv:2306.15595, equation 4). `ntk` keeps the
    shortest wavelength and stretches the longest by the factor (Peng et al. 2023, arXiv:2309.00071,
    section 3.1). `llama3` stretches wavelengths with at most `low_freq_factor` turns in
    `original_length` by the factor, keeps those with `high_freq_factor` turns or more, and
    interpolates in between (Llama Team 2024, arXiv:2407.21783, as in its reference code).

    Attributes:
      max_wavelength: Longest wavelength divided by 2 pi, in positions; the "base" or "theta".
      fraction: Fraction of the features that are rotated, from the first on; 0.25 in GPT-NeoX.
      scaling: Method for contexts longer than those in training.
      factor: Ratio of the longer context's length to that in training.
      original_length: Number of positions of a context in training, for llama3.
      low_freq_factor: For llama3: largest number of turns in original_length that is stretched.
      high_freq_factor: Smallest number of turns in original_length at which a wavelength is kept,
        for llama3; above low_freq_factor.
    """

    max_wavelength: AboveOne = 10_000.0
    fraction: PositiveShare = 1.0
    scaling: Literal["none", "linear", "ntk", "llama3"] = "none"
    factor: Positive = 1.0
    original_length: Count = 8192
    low_freq_factor: Positive = 1.0
    high_freq_factor: Positive = 4.0

    @nn.compact
    def __call__(self, positions: Array, sizes: Sizes) -> PositionTerms:
        """[..., L] int -> a rotation of [..., L, R/2], R = fraction * K.

        Raises:
          ValueError: R is odd or 0.
        """
        features = rotated_features(self.fraction, sizes.head_dim)
        base = self.max_wavelength
        if self.scaling == "linear":
            positions = positions / self.factor
        elif self.scaling == "ntk":
            base *= self.factor ** (features / max(features - 2, 1))
        of_pairs = frequencies(features, base)
        if self.scaling == "llama3":
            of_pairs *= self._gains(of_pairs)
        angles = angles_at(positions, of_pairs)
        return PositionTerms(rotation=Rotation(jnp.cos(angles), jnp.sin(angles)))

    def _gains(self, frequencies: Array) -> Array:
        """Returns llama3's factor for each frequency: 1 if it is high, 1 / factor if it is low."""
        turns = frequencies * (self.original_length / (2 * math.pi))
        low, high = self.low_freq_factor, self.high_freq_factor
        share = jnp.clip((turns - low) / (high - low), 0, 1)
        return share + (1 - share) / self.factor


_VARIANTS = "transformer_jax.variants"
POSITIONS = {
    "none": NoPositions,
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "sinusoidal_2d": f"{_VARIANTS}.sinusoidal_2d:Sinusoidal2DPositions",
    "rotary": RotaryPositions,
    "yarn": f"{_VARIANTS}.yarn:YarnPositions",
    "alibi": f"{_VARIANTS}.relative:ALiBiPositions",
    "t5": f"{_VARIANTS}.relative:T5Positions",
    "shaw": f"{_VARIANTS}.relative:ShawPositions",
    "contextual": f"{_VARIANTS}.relative:ContextualPositions",
}
"""Position encodings by name: classes, or "module:Class" strings that are imported when chosen."""

"""What tells a transformer where a token stands.

Every encoding is a module from position numbers to `PositionTerms`: something added to the
embeddings, a rotation of queries and keys, or a bias on the scores, which may depend on what the
queries and keys hold. Nothing else in the model knows which encoding it was. Encodings of absolute
positions start at a stated root mean square, the same for learned and sinusoidal: the sign of a
comparison between the two flips with that amplitude.
"""

import math
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.embeddings import lookup
from transformer_jax.layers.position_terms import NO_TERMS, PositionTerms, Rotation
from transformer_jax.options import AboveOne, Count, InitialSize, Positive, PositiveShare


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
    return _sinusoids(jnp.arange(length), width, max_wavelength)


def _sinusoids(positions: Array, width: int, max_wavelength: float) -> Array:
    """[..., L] positions -> [..., L, width], sines and cosines taking turns."""
    if width % 2:
        raise ValueError(f"width: sinusoids come in pairs; expected an even number, got {width}")
    angles = _angles(positions, width, max_wavelength)
    pairs = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1)
    return pairs.reshape(*positions.shape, width)


def _angles(positions: Array, width: int, max_wavelength: float) -> Array:
    """[..., L] positions -> [..., L, width / 2] radians, float32 whatever the compute dtype."""
    frequencies = max_wavelength ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    return positions.astype(jnp.float32)[..., None] * frequencies


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
    rms: InitialSize = 0.02

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
    rms: Positive = 0.02
    max_wavelength: AboveOne = 10_000.0

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
    rms: Positive = 0.02
    max_wavelength: AboveOne = 10_000.0

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

    For contexts longer than those of training, `linear` divides the positions by the factor (Chen
    et al. 2023, arXiv:2306.15595, equation 4); `ntk` leaves the shortest wavelength as it is and
    stretches the longest by the factor (Peng et al. 2023, arXiv:2309.00071, section 3.1).

    Attributes:
      head_dim: features of one head, K.
      max_wavelength: longest wavelength over 2 pi, in positions; the "base" or "theta".
      share: of the features that are rotated, the first ones; GPT-NeoX has 0.25.
      scaling: how a longer context is reached.
      factor: how much longer it is.
    """

    head_dim: int
    max_wavelength: AboveOne = 10_000.0
    share: PositiveShare = 1.0
    scaling: Literal["none", "linear", "ntk"] = "none"
    factor: Positive = 1.0

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> a rotation of [..., L, R/2], R = share * K.

        Raises:
          ValueError: R is odd or 0.
        """
        features = int(self.share * self.head_dim)
        if features % 2 or not features:
            raise ValueError(
                f"head_dim: rotary positions turn pairs; {self.share} of {self.head_dim} features "
                f"are {features}"
            )
        positions, base = _SCALINGS[self.scaling](
            positions, self.max_wavelength, self.factor, features
        )
        angles = _angles(positions, features, base)
        return PositionTerms(rotation=Rotation(jnp.cos(angles), jnp.sin(angles)))


# (positions, base, factor, rotated features) -> positions and base to use
_SCALINGS = {
    "none": lambda positions, base, factor, features: (positions, base),
    "linear": lambda positions, base, factor, features: (positions / factor, base),
    "ntk": lambda positions, base, factor, features: (
        positions,
        base * factor ** (features / max(features - 2, 1)),
    ),
}


def _distances(positions: Array) -> Array:
    """[..., L] -> [..., 1, L, L]: how far each key lies behind (negative: ahead of) each query."""
    return (positions[..., None, :] - positions[..., :, None])[..., None, :, :]


def alibi_slopes(num_heads: int) -> Array:
    """Returns the slope of each head: 2^(-8 h / H), h = 1 .. H, for a power of two.

    Press et al. 2022, arXiv:2108.12409, section 3. Other numbers of heads take those of the power
    of two below, and then every other one of the power above, as in the authors' code.

    Args:
      num_heads: heads, H.
    Returns:
      [H] float32.
    """
    power = 2 ** int(math.log2(num_heads))
    slopes = [2.0 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2.0 ** (-4 * head / power) for head in range(1, 2 * power, 2)]
    return jnp.asarray((slopes + between)[:num_heads], jnp.float32)


class ALiBiPositions(nn.Module):
    """Takes from each score the distance between query and key, times a slope of the head.

    bias[h, i, j] = -slope_h |i - j|. Press et al. 2022, arXiv:2108.12409, section 3.

    Attributes:
      num_heads: heads, H.
    """

    num_heads: int

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> a bias [..., H, L, L]."""
        slopes = alibi_slopes(self.num_heads)[:, None, None]
        return PositionTerms(bias=-slopes * jnp.abs(_distances(positions)))


def relative_buckets(
    distances: Array, bidirectional: bool, num_buckets: int, max_distance: int
) -> Array:
    """Returns the bucket of each distance: one each for short ones, logarithmic for long ones.

    Raffel et al. 2020, arXiv:1910.10683, section 2.1, as in the authors' code. Half of the buckets
    (of each direction) hold one distance, the rest reach max_distance; all beyond share the last.

    Args:
      distances: [...] int, key minus query position.
      bidirectional: whether keys ahead have buckets of their own; if not, they share that of 0.
      num_buckets: buckets in all.
      max_distance: where the last bucket begins.
    Returns:
      [...] int32 in [0, num_buckets).
    """
    first = 0
    if bidirectional:
        num_buckets //= 2
        first = num_buckets * (distances > 0)
    behind = jnp.abs(distances) if bidirectional else jnp.maximum(-distances, 0)
    exact = num_buckets // 2
    ratio = jnp.log(jnp.maximum(behind, 1) / exact) / math.log(max_distance / exact)
    far = exact + (ratio * (num_buckets - exact)).astype(jnp.int32)
    return first + jnp.where(behind < exact, behind, jnp.minimum(far, num_buckets - 1))


class T5Positions(nn.Module):
    """Adds a learned number of the head for each bucket of distances (Raffel et al. 2020, 2.1).

    All blocks share the table, as in T5. A distance beyond the longest of training falls into a
    bucket that training has seen.

    Attributes:
      num_heads: heads, H.
      bidirectional: whether keys ahead can be seen.
      num_buckets: rows of the table.
      max_distance: where the last bucket begins, in positions.
      rms: root mean square of the initial table.
    """

    num_heads: int
    bidirectional: bool
    num_buckets: Count = 32
    max_distance: Count = 128
    rms: InitialSize = 0.02

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> a bias [..., H, L, L].

        Raises:
          ValueError: too few buckets for the distances.
        """
        exact = self.num_buckets // (4 if self.bidirectional else 2)
        if not 1 <= exact < self.max_distance:
            raise ValueError(
                f"num_buckets: expected at least 4 and fewer than max_distance "
                f"{self.max_distance} needs, got {self.num_buckets}"
            )
        shape = (self.num_buckets, self.num_heads)
        table = self.param("embedding", nn.initializers.normal(self.rms), shape)
        buckets = relative_buckets(
            _distances(positions)[..., 0, :, :],
            self.bidirectional,
            self.num_buckets,
            self.max_distance,
        )
        return PositionTerms(bias=jnp.moveaxis(table[buckets], -1, -3))


class ShawPositions(nn.Module):
    """Adds to each key a learned vector of its distance from the query (Shaw et al. 2018).

    score_ij = q_i . (k_j + a_clip(j - i)) / sqrt(d). arXiv:1803.02155, equations 2 and 4, without
    the vectors that are added to values, which changed nothing there (table 3). Distances beyond
    the longest share its vector.

    Attributes:
      head_dim: features of one head, K.
      scale: of the scores, in place of 1 / sqrt(K).
      max_distance: longest distance with a vector of its own, in positions.
      rms: root mean square of the initial vectors.
    """

    head_dim: int
    scale: float | None = None
    max_distance: Count = 16
    rms: InitialSize = 0.02

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> a bias that depends on the queries."""
        shape = (2 * self.max_distance + 1, self.head_dim)
        table = self.param("embedding", nn.initializers.normal(self.rms), shape)
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        clipped = jnp.clip(_distances(positions), -self.max_distance, self.max_distance)
        places = clipped + self.max_distance
        return PositionTerms(content_bias=jax.tree_util.Partial(_shaw_bias, table * scale, places))


def _shaw_bias(
    table: Array,
    places: Array,
    query: Array,
    key: Array,
    mask: Array | None,
    first: int | Array = 0,
) -> Array:
    """Agreement of each query with each vector, [..., H, L, 2k+1], then read out by distance."""
    places = jax.lax.dynamic_slice_in_dim(places, first, query.shape[-2], axis=-2)
    agreement = jnp.einsum("...LK,RK->...LR", query, table.astype(query.dtype))
    shape = (*agreement.shape[:-1], places.shape[-1])
    return jnp.take_along_axis(agreement, jnp.broadcast_to(places, shape), axis=-1)


class ContextualPositions(nn.Module):
    """Counts only the keys that a query opens its gate to: CoPE (Golovneva et al. 2024).

    g_ij = sigmoid(score_ij), p_ij = sum of g_ik over k = j .. i, and q_i . e[p_ij] is added to the
    score, e interpolated between whole positions. arXiv:2405.18719, equations 3 to 6. Counts beyond
    the last position stay there, as the paper defines.

    Attributes:
      head_dim: features of one head, K.
      bidirectional: refused; counting from a key up to the query needs a causal model.
      scale: of the scores, in place of 1 / sqrt(K).
      max_count: largest position that is told apart; the paper has 64 and fewer.
      rms: root mean square of the initial vectors.
    """

    head_dim: int
    bidirectional: bool
    scale: float | None = None
    max_count: Count = 64
    rms: InitialSize = 0.02

    @nn.compact
    def __call__(self, positions: Array) -> PositionTerms:
        """[..., L] int -> a bias that depends on queries and keys.

        Raises:
          ValueError: the model is bidirectional.
        """
        if self.bidirectional:
            raise ValueError("position: contextual positions count up to the query, causally")
        shape = (self.max_count + 1, self.head_dim)
        table = self.param("embedding", nn.initializers.normal(self.rms), shape)
        scale = self.head_dim**-0.5 if self.scale is None else self.scale
        return PositionTerms(content_bias=jax.tree_util.Partial(_contextual_bias, table, scale))


def _contextual_bias(
    table: Array,
    scale: float,
    query: Array,
    key: Array,
    mask: Array | None,
    first: int | Array = 0,
) -> Array:
    """The mask tells where the queries stand, so `first` does not have to."""
    wide = jnp.promote_types(query.dtype, jnp.float32)
    gates = jax.nn.sigmoid(
        jnp.einsum("...LK,...MK->...LM", query * scale, key, preferred_element_type=wide)
    )
    if mask is not None:
        gates = jnp.where(mask, gates, 0)
    counted = jnp.flip(jnp.cumsum(jnp.flip(gates, -1), axis=-1), -1)
    places = jnp.minimum(counted, table.shape[0] - 1)
    below = jnp.floor(places)
    agreement = jnp.einsum("...LK,RK->...LR", query, table.astype(query.dtype)).astype(wide)

    def read_out(at: Array) -> Array:
        return jnp.take_along_axis(agreement, at.astype(jnp.int32), axis=-1)

    above = jnp.minimum(below + 1, table.shape[0] - 1)
    part = places - below
    return (1 - part) * read_out(below) + part * read_out(above)


POSITIONS = {
    "none": NoPositions,
    "learned": LearnedPositions,
    "sinusoidal": SinusoidalPositions,
    "sinusoidal_2d": Sinusoidal2DPositions,
    "rotary": RotaryPositions,
    "alibi": ALiBiPositions,
    "t5": T5Positions,
    "shaw": ShawPositions,
    "contextual": ContextualPositions,
}

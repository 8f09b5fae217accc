"""Skips: earlier streams that a block reads beside the one that reaches it."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Protocol

import flax.linen as nn
from jax import Array

from transformer_jax.options import InitialNumber


class Skips(Protocol):
    """Which earlier streams each block reads; a row of SKIPS.

    Attributes:
      initial: what each is multiplied with at the start, a learned number for each.
    """

    initial: float

    def reads(self, block: int) -> tuple[int, ...]:
        """Returns streams: 0 is what is embedded, n that behind block n - 1; n < block."""
        ...


@dataclasses.dataclass(frozen=True)
class NoSkips:
    """None: a block reads what the one before it gives, as in Vaswani et al. 2017."""

    initial: ClassVar[float] = 0.0

    def reads(self, block: int) -> tuple[int, ...]:
        """Returns nothing."""
        return ()


@dataclasses.dataclass(frozen=True)
class MirroredSkips:
    """The second half reads what the first half read, in reverse, as in a U-Net.

    Ronneberger et al. 2015, arXiv:1505.04597, figure 1; for language models in modded-nanogpt
    (Jordan et al. 2024). Block i of N reads what block N - 1 - i read.

    Attributes:
      depth: number of blocks, N.
      initial: what a stream is multiplied with at the start.
    """

    depth: int
    initial: InitialNumber = 1.0

    def reads(self, block: int) -> tuple[int, ...]:
        """Returns the mirror image's stream, in the second half."""
        mirrored = self.depth - 1 - block
        return (mirrored,) if mirrored < block else ()


@dataclasses.dataclass(frozen=True)
class EmbeddingSkips:
    """Every block reads what is embedded, as in modded-nanogpt (Jordan et al. 2024).

    Attributes:
      initial: what it is multiplied with at the start.
    """

    initial: InitialNumber = 0.0

    def reads(self, block: int) -> tuple[int, ...]:
        """Returns the first stream, where it is not the block's own."""
        return (0,) if block else ()


@dataclasses.dataclass(frozen=True)
class DenseSkips:
    """Every block reads all earlier streams (Pagliardini et al. 2024, arXiv:2402.02622, eq. 2).

    In the paper the block's own stream has a weight too, and the last block is followed by a sum.

    Attributes:
      initial: what each is multiplied with at the start.
    """

    initial: InitialNumber = 0.0

    def reads(self, block: int) -> tuple[int, ...]:
        """Returns all streams before the block's own."""
        return tuple(range(block))


class Skip(nn.Module):
    """Adds earlier streams to a block's input, each times a learned number."""

    initial: float

    @nn.compact
    def __call__(self, hidden: Array, earlier: Sequence[Array]) -> Array:
        """[..., L, D] and as many again -> [..., L, D]."""
        gains = self.param("gain", nn.initializers.constant(self.initial), (len(earlier),))
        for gain, stream in zip(gains.astype(hidden.dtype), earlier, strict=True):
            hidden = hidden + gain * stream
        return hidden


SKIPS = {
    "none": NoSkips,
    "mirrored": MirroredSkips,
    "embedding": EmbeddingSkips,
    "dense": DenseSkips,
}

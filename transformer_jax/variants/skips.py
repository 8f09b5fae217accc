"""Skips: earlier streams that a block reads in addition to its own input.

An entry of SKIPS has `initial`, the initial value of each stream's learned factor, and
`reads(block, depth)`, which returns the streams that a block reads. Stream 0 is the embedding,
stream n the output of block n - 1; a block reads only streams n < block.
"""

import dataclasses
from collections.abc import Sequence

import flax.linen as nn
from jax import Array

from transformer_jax.options import InitialNumber


@dataclasses.dataclass(frozen=True)
class MirroredSkips:
    """Skips to the second half of the blocks from the first, in reverse order, as in a U-Net.

    Ronneberger et al. 2015, arXiv:1505.04597, figure 1; for language models in modded-nanogpt
    (Jordan et al. 2024). Block i of N, if in the second half, reads the input of block N - 1 - i.

    Attributes:
      initial: Initial factor of a stream.
    """

    initial: InitialNumber = 1.0

    def reads(self, block: int, depth: int) -> tuple[int, ...]:
        """Returns the mirrored block's input stream for blocks in the second half, else ()."""
        mirrored = depth - 1 - block
        return (mirrored,) if mirrored < block else ()


@dataclasses.dataclass(frozen=True)
class EmbeddingSkips:
    """Skips from the embedding to every block, as in modded-nanogpt (Jordan et al. 2024).

    Attributes:
      initial: Initial factor of a stream.
    """

    initial: InitialNumber = 0.0

    def reads(self, block: int, depth: int) -> tuple[int, ...]:
        """Returns (0,), the embedding, or () for the first block, whose own input it is."""
        return (0,) if block else ()


@dataclasses.dataclass(frozen=True)
class DenseSkips(EmbeddingSkips):
    """Skips from all earlier streams to every block (Pagliardini et al. 2024, arXiv:2402.02622).

    See equation 2. There the block's own stream has a factor, and a sum follows the last block.
    """

    def reads(self, block: int, depth: int) -> tuple[int, ...]:
        """Returns the numbers of all streams before the block's own input."""
        return tuple(range(block))


class Skip(nn.Module):
    """Sum of a block's input and earlier streams, each of these times a learned number."""

    initial: float

    @nn.compact
    def __call__(self, hidden: Array, earlier: Sequence[Array]) -> Array:
        """[..., L, D] and a sequence of streams -> [..., L, D]."""
        gains = self.param("gain", nn.initializers.constant(self.initial), (len(earlier),))
        for gain, stream in zip(gains.astype(hidden.dtype), earlier, strict=True):
            hidden = hidden + gain * stream
        return hidden

"""DeepNorm: post-norm for very deep stacks."""

from typing import ClassVar

import flax.linen as nn
from jax import Array

from transformer_jax.blocks import Block, Carry, Context
from transformer_jax.sites import site


class DeepNorm(Block):
    """norm(alpha x + f(x)): post-norm for very deep stacks; beta makes branches start smaller.

    Beta scales values, the feed-forward layer and output kernels. Wang et al. 2022,
    arXiv:2203.00555, figure 2: an encoder or a decoder of N blocks alone has alpha = (2N)^(1/4) and
    beta = (8N)^(-1/4); with both, N blocks each, the encoder has 0.81 N^(5/16) and 0.87 N^(-5/16),
    the decoder (3N)^(1/4) and (12N)^(-1/4).
    """

    final_norm: ClassVar[bool] = False

    @classmethod
    def branch_gain(cls, depth: int, side: str) -> float:
        """Returns beta."""
        return _gains(depth, side)[1]

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D]."""
        drop = self.branch_dropout(context)
        alpha, _ = _gains(self.depth, self.side)
        hidden = self.normed(self.kind, alpha * hidden + drop(self.mix(hidden, context)))
        if context.memory is not None:
            attended = drop(self.attend_memory(hidden, context))
            hidden = self.normed("cross_attention", alpha * hidden + attended)
        if self.feed_forward is not None:
            hidden = self.normed("feed_forward", alpha * hidden + drop(self.feed(hidden)))
        return site(self, "residual", hidden), carry


def _gains(depth: int, side: str) -> tuple[float, float]:
    """Returns alpha and beta."""
    blocks = max(depth, 1)
    if side == "encoder":
        return 0.81 * blocks ** (5 / 16), 0.87 * blocks ** (-5 / 16)
    stretch = 3 if side == "decoder" else 2
    return (stretch * blocks) ** 0.25, (4 * stretch * blocks) ** -0.25

"""A block without residual connections."""

import flax.linen as nn
from jax import Array

from transformer_jax.blocks import Block, Carry, Context
from transformer_jax.sites import site


class NoResidual(Block):
    """f(norm(x)), to show what residual connections are for (He et al. 2016, arXiv:1512.03385)."""

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D]."""
        drop = self.branch_dropout(context)
        hidden = drop(self.mix(self.normed(self.kind, hidden), context))
        if context.memory is not None:
            hidden = drop(self.attend_memory(self.normed("cross_attention", hidden), context))
        if self.feed_forward is not None:
            hidden = drop(self.feed(self.normed("feed_forward", hidden)))
        return site(self, "residual", hidden), carry

"""A norm before and after each branch."""

import flax.linen as nn
from jax import Array

from transformer_jax.blocks import Block, Carry, Context
from transformer_jax.sites import site


class SandwichNorm(Block):
    """x + norm(f(norm(x))): CogView's wiring (Ding et al. 2021, arXiv:2105.13290, section 2.4)."""

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D]."""
        drop = self.branch_dropout(context)
        mixed = drop(self.mix(self.normed(self.kind, hidden), context))
        hidden = hidden + self.normed(f"{self.kind}_out", mixed)
        if context.memory is not None:
            attended = self.attend_memory(self.normed("cross_attention", hidden), context)
            hidden = hidden + self.normed("cross_attention_out", drop(attended))
        if self.feed_forward is not None:
            fed = drop(self.feed(self.normed("feed_forward", hidden)))
            hidden = hidden + self.normed("feed_forward_out", fed)
        return site(self, "residual", hidden), carry

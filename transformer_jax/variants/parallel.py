"""Parallel branches."""

import flax.linen as nn
from jax import Array

from transformer_jax.blocks import Block, Carry, Context
from transformer_jax.options import Switch
from transformer_jax.sites import site


class Parallel(Block):
    """x + f(norm(x)) + g(norm(x)): GPT-J's and GPT-NeoX's wiring (Black et al. 2022, section 2.1).

    arXiv:2204.06745.

    Attributes:
      share_norm: Whether all branches share a norm, as in GPT-J, or each has one, as in GPT-NeoX.
    """

    share_norm: Switch = False

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D]."""
        drop = self.branch_dropout(context)
        first = self.normed(self.kind, hidden)

        def normed(branch: str) -> Array:
            return first if self.share_norm else self.normed(branch, hidden)

        added = drop(self.mix(first, context))
        total = hidden + added
        if context.memory is not None:
            total = total + drop(self.attend_memory(normed("cross_attention"), context))
        if self.feed_forward is not None:
            total = total + drop(self.feed(normed("feed_forward")))
        return site(self, "residual", total), carry

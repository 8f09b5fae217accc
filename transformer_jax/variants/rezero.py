"""ReZero: branches that start at zero, without norms."""

from typing import ClassVar

import flax.linen as nn
from jax import Array

from transformer_jax.blocks import Block, Carry, Context, Gain
from transformer_jax.sites import site


class ReZero(Block):
    """x + alpha f(x), alpha a learned number that starts at 0, without norms.

    Bachlechner et al. 2020, arXiv:2003.04887, equation 2.
    """

    final_norm: ClassVar[bool] = False

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D]."""
        drop = self.branch_dropout(context)
        hidden = hidden + self._gain(self.kind)(drop(self.mix(hidden, context)))
        if context.memory is not None:
            attended = drop(self.attend_memory(hidden, context))
            hidden = hidden + self._gain("cross_attention")(attended)
        if self.feed_forward is not None:
            hidden = hidden + self._gain("feed_forward")(drop(self.feed(hidden)))
        return site(self, "residual", hidden), carry

    def _gain(self, branch: str) -> Gain:
        return Gain(1, nn.initializers.zeros, name=f"{branch}_gain")

"""LayerScale: a learned gain for each feature of a branch."""

import flax.linen as nn
from jax import Array

from transformer_jax.blocks import Block, Carry, Context, Gain
from transformer_jax.options import InitialSize
from transformer_jax.sites import site


class LayerScale(Block):
    """x + diag(gains) f(norm(x)), the gains learned (Touvron et al. 2021, arXiv:2103.17239, eq. 4).

    Attributes:
      initial: The gains at the start; the paper's 0.1 up to 18 blocks, 1e-5 up to 24, then 1e-6.
    """

    initial: InitialSize = 0.1

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D]."""
        drop = self.branch_dropout(context)
        mixed = drop(self.mix(self.normed(self.kind, hidden), context))
        hidden = hidden + self._gain(self.kind, hidden)(mixed)
        if context.memory is not None:
            normed = self.normed("cross_attention", hidden)
            attended = drop(self.attend_memory(normed, context))
            hidden = hidden + self._gain("cross_attention", hidden)(attended)
        if self.feed_forward is not None:
            fed = drop(self.feed(self.normed("feed_forward", hidden)))
            hidden = hidden + self._gain("feed_forward", hidden)(fed)
        return site(self, "residual", hidden), carry

    def _gain(self, branch: str, hidden: Array) -> Gain:
        start = nn.initializers.constant(self.initial)
        return Gain(hidden.shape[-1], start, name=f"{branch}_gain")

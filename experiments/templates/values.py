"""A component of my own: values that also come from the previous block."""

import flax.linen as nn

from transformer_jax.attention import AttentionCall
from transformer_jax.options import InitialNumber


class Mine(nn.Module):
    """V_n + a V_(n-1): the values of a block, and a learned share of those of the previous one.

    Attributes:
      initial: Initial share; an option of the config.
    """

    initial: InitialNumber = 0.5

    @nn.compact
    def __call__(self, value, call: AttentionCall):
        """[..., G, L, V] -> [..., G, L, V]; with a cache, L counts the new tokens."""
        gain = self.param("gain", nn.initializers.constant(self.initial), (1,))
        carry = call.context.carry
        earlier = carry.latest("my values", value)  # the first block has only its own
        carry.hand_on("my values", value)
        return value + gain.astype(value.dtype) * earlier

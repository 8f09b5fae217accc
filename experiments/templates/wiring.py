"""A component of my own: a wiring of attention, feed-forward layer and norms in a block."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from transformer_jax.blocks import Block
from transformer_jax.options import InitialNumber
from transformer_jax.sites import site


class Mine(Block):
    """Two residual streams: one for attention, one for the feed-forward layer; each reads both.

    Attributes:
      initial: Initial logit of a branch's share of its own stream; an option of the config.
    """

    initial: InitialNumber = 0.0

    @classmethod
    def enter(cls, embedded, **options):
        """[..., L, D] -> [..., 2, L, D], before the first block."""
        return jnp.stack([embedded, embedded], axis=-3)

    @classmethod
    def leave(cls, hidden, carry, **options):
        """[..., 2, L, D] -> [..., L, D], after the last block."""
        return hidden.mean(-3)

    @nn.compact
    def __call__(self, hidden, carry, context):
        """[..., 2, L, D] -> [..., 2, L, D]; parts may add to the carry."""
        drop = self.branch_dropout(context)  # of a branch's output, in training
        gains = self.param("gain", nn.initializers.constant(self.initial), (2,))
        own = jax.nn.sigmoid(gains).astype(hidden.dtype)
        first, second = hidden[..., 0, :, :], hidden[..., 1, :, :]
        read = own[0] * first + (1 - own[0]) * second
        # The kind is "attention" or "mixer", whichever the model has; it names the norm.
        first = first + drop(self.mix(self.normed(self.kind, read), carry, context))
        if context.memory is not None:  # in the decoder of an encoder–decoder
            read = self.normed("cross_attention", first)
            first = first + drop(self.attend_memory(read, context))
        if self.feed_forward is not None:
            read = own[1] * second + (1 - own[1]) * first
            second = second + drop(self.feed(self.normed("feed_forward", read), context))
        # Inspection and hooks find the stream by this name.
        return site(self, "residual", jnp.stack([first, second], axis=-3)), carry

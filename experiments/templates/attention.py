"""A component of my own: weights from queries and keys."""

import flax.linen as nn

from transformer_jax import AttentionVariant, attention_weights
from transformer_jax.options import Positive


class Mine(AttentionVariant):
    """The softmax of scores whose scale is learned for each head; say here what yours computes.

    Attributes:
      initial: The scale at the start, times the usual one; an option of the config.
    """

    initial: Positive = 1.0

    @nn.compact
    def weights(self, query, key, call):
        """[..., H, L, K] and [..., H, M, K] -> weights [..., H, L, M]."""
        heads, (mask, bias) = query.shape[-3], call.dense(query, key)
        start = nn.initializers.constant(self.initial)
        scale = self.param("scale", start, (heads,))[:, None, None]
        scaled = query * scale.astype(query.dtype)
        return attention_weights(scaled, key, mask, bias, scale=call.scale)

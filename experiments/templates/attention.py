"""A component of my own: weights from queries and keys."""

import flax.linen as nn

from transformer_jax import AttentionVariant, attention_weights
from transformer_jax.options import Positive


class Mine(AttentionVariant):
    """Softmax of scores with a learned scale for each head; describe your own variant here.

    Attributes:
      initial: Initial scale, as a multiple of the usual one; an option of the config.
    """

    initial: Positive = 1.0

    @nn.compact
    def weights(self, query, key, call):
        """Returns attention weights: [..., H, L, K] and [..., H, M, K] -> [..., H, L, M]."""
        heads, (mask, bias) = query.shape[-3], call.dense(query, key)
        start = nn.initializers.constant(self.initial)
        scale = self.param("scale", start, (heads,))[:, None, None]
        scaled = query * scale.astype(query.dtype)
        return attention_weights(scaled, key, mask, bias, scale=call.scale)

"""A component of my own: weights from queries and keys."""

import flax.linen as nn

from transformer_jax.layers.weights import attention_weights
from transformer_jax.options import Positive


class Mine(nn.Module):
    """The softmax of scores whose scale is learned for each head; say here what yours computes.

    Attributes:
      num_heads: heads, supplied by the model.
      initial: the scale at the start, beside the usual one; an option of the config.
    """

    num_heads: int
    initial: Positive = 1.0

    @nn.compact
    def __call__(self, query, key, *, mask, bias):
        """[..., H, L, K] and [..., H, M, K] -> weights [..., H, L, M]."""
        start = nn.initializers.constant(self.initial)
        scale = self.param("scale", start, (self.num_heads,))[:, None, None]
        return attention_weights(query * scale.astype(query.dtype), key, mask, bias)

"""Pooling by attention, from a learned query."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import MultiHeadAttention
from transformer_jax.feedforward import FeedForward
from transformer_jax.norms import LayerNorm

_HEAD_DIM = 64


class AttentionPooling(nn.Module):
    """A learned vector attends to all positions that are not padding; a residual layer follows.

    z + FFN(LayerNorm(z)) with z = MultiHead(vector, hidden). Zhai et al. 2022, arXiv:2106.04560,
    section 3.1, after Lee et al. 2019, arXiv:1810.00825, with heads of 64 features (or one head).
    """

    adds_token: ClassVar[bool] = False

    @nn.compact
    def __call__(self, hidden: Array, is_token: Array | None = None) -> Array:
        """[..., L, D] and [..., L] bool, False at padding -> [..., D]."""
        width = hidden.shape[-1]
        heads = width // _HEAD_DIM if width % _HEAD_DIM == 0 else 1
        vector = self.param("embedding", nn.initializers.normal(0.02), (1, width))
        shape = (*hidden.shape[:-2], 1, width)
        query = jnp.broadcast_to(vector.astype(hidden.dtype), shape)
        mask = None if is_token is None else is_token[..., None, :]
        dtype = hidden.dtype
        attention = MultiHeadAttention(heads, dtype=dtype, name="attention")
        pooled = attention(query, hidden, mask=mask)
        feed = FeedForward(dtype=dtype, name="feed_forward")
        return (pooled + feed(LayerNorm(name="norm")(pooled)))[..., 0, :]

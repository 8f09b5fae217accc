"""Attention sinks: a query may attend to nothing at all."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import (
    AttentionCall,
    AttentionVariant,
    attention_scores,
    masked_softmax,
)


class SinkAttention(AttentionVariant):
    """Softmax with a learned score per head for attending to nothing, so rows sum to less than 1.

    weights[j] = exp(s_j) / (exp(sink) + sum over k of exp(s_k)). Miller 2023, "Attention is off by
    one" (sink = 0); learned as in gpt-oss, arXiv:2508.10925, section 2. The sinks start at 0.
    """

    @nn.compact
    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> [..., H, L, M]."""
        heads, (mask, bias) = query.shape[-3], call.dense(query, key)
        sinks_H = self.param("sink", nn.initializers.zeros, (heads,))
        scores_HLM = attention_scores(query, key, mask, bias, scale=call.scale)
        sink_HL1 = jnp.broadcast_to(sinks_H[:, None, None], (*scores_HLM.shape[:-1], 1))
        with_sink_HLM = jnp.concatenate([scores_HLM, sink_HL1.astype(scores_HLM.dtype)], axis=-1)
        return masked_softmax(with_sink_HLM)[..., :-1]

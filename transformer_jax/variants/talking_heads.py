"""Talking heads: heads exchange scores before the softmax, and weights after it."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import (
    AttentionCall,
    AttentionVariant,
    attention_scores,
    masked_softmax,
)
from transformer_jax.options import InitialSize


class TalkingHeadsAttention(AttentionVariant):
    """Heads exchange scores before the softmax, and weights after it.

    Shazeer et al. 2020, arXiv:2003.02436, section 3: S' = P_l S and W' = P_w softmax(S'), P of
    [H, H] over the heads. Both start near the identity, which is softmax attention.

    Attributes:
      std: Standard deviation of the initial values, which are added to the identity.
    """

    std: InitialSize = 0.02

    @nn.compact
    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> [..., H, L, M]."""
        mask, bias = call.dense(query, key)
        scores_HLM = attention_scores(query, key, None, bias, scale=call.scale)
        scores_HLM = HeadMixture(self.std, name="scores")(scores_HLM)
        weights_HLM = masked_softmax(
            scores_HLM if mask is None else jnp.where(mask, scores_HLM, -jnp.inf)
        )
        return HeadMixture(self.std, name="weights")(weights_HLM)


class HeadMixture(nn.Module):
    """Multiplies the axis of heads with a matrix that starts near the identity."""

    std: float

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., H, L, M] -> [..., H, L, M]."""
        heads = inputs.shape[-3]
        drawn_HG = self.param("kernel", nn.initializers.normal(self.std), (heads, heads))
        matrix_HG = (drawn_HG + jnp.eye(heads)).astype(inputs.dtype)
        return jnp.einsum("HG,...GLM->...HLM", matrix_HG, inputs)

"""Sigmoid attention: weights are independent of each other."""

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import AttentionCall, AttentionVariant, attention_scores
from transformer_jax.options import Positive


class SigmoidAttention(AttentionVariant):
    """Independent weights sigmoid(score - log M), M the number of keys that may be attended to.

    Ramapuram et al. 2024, arXiv:2409.04431, equation 3 and section 3.2, where M is the length of
    the sequence; here it counts what the mask allows, so that padding changes nothing.

    Attributes:
      soft_cap: Bends scores to soft_cap * tanh(score / soft_cap); None disables it.
    """

    soft_cap: Positive | None = None

    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> [..., H, L, M]."""
        mask, bias = call.dense(query, key)
        options = {"scale": call.scale, "soft_cap": self.soft_cap}
        scores_HLM = attention_scores(query, key, mask, bias, **options)
        seen_HL1 = jnp.maximum((scores_HLM > -jnp.inf).sum(-1, keepdims=True), 1)
        return jax.nn.sigmoid(scores_HLM - jnp.log(seen_HL1.astype(scores_HLM.dtype)))

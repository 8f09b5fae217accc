"""Differential attention in a short form, with one learned number per head."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import AttentionCall, AttentionVariant, attention_weights
from transformer_jax.options import InitialNumber


class DifferentialAttention(AttentionVariant):
    """The difference of two softmaxes, which cancels noise common to both.

    softmax(Q_1 K_1^T / sqrt(d)) - lambda softmax(Q_2 K_2^T / sqrt(d)), each half of a head's
    features its own attention with d = d_k / 2. Ye et al. 2024, arXiv:2410.05258, equation 1.
    Lambda is one learned number per head here, and a rotation covers both halves, while the
    paper learns exp(q . k) differences and norms each head's output: that is diff_transformer.

    Attributes:
      initial_lambda: Initial lambda; the paper's is between 0.2 and 0.8, by depth.
    """

    initial_lambda: InitialNumber = 0.5

    @nn.compact
    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> [..., H, L, M]."""
        heads, head_dim = query.shape[-3], query.shape[-1]
        if call.scale is not None:
            raise ValueError("attention_scale: differential attention has no scale")
        if head_dim % 2:
            raise ValueError(
                "head_dim: differential attention halves it; expected an even number, "
                f"got {head_dim}"
            )
        mask, bias = call.dense(query, key)
        start = nn.initializers.constant(self.initial_lambda)
        lambda_H11 = self.param("lambda", start, (heads,))[:, None, None]
        halves = zip(jnp.split(query, 2, axis=-1), jnp.split(key, 2, axis=-1), strict=True)
        first_HLM, second_HLM = (attention_weights(q, k, mask, bias) for q, k in halves)
        return first_HLM - lambda_H11 * second_HLM

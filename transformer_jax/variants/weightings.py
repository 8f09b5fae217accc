"""Attention with weights other than those of a softmax."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import (
    AttentionCall,
    AttentionVariant,
    attention_scores,
    attention_weights,
    masked_softmax,
)
from transformer_jax.options import InitialNumber, InitialSize, Positive


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

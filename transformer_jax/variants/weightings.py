"""Attention with weights other than those of a softmax."""

from typing import ClassVar

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
    weighted_sum,
)
from transformer_jax.norms import RMSNorm
from transformer_jax.options import InitialNumber, InitialSize, OpenShare, Positive


class SigmoidAttention(AttentionVariant):
    """Independent weights sigmoid(score - log M); M is the number of keys that a query may see.

    Ramapuram et al. 2024, arXiv:2409.04431, equation 3 and section 3.2, where M is the length of
    the sequence; here it counts the keys that the mask allows, so that padding changes nothing.

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
    """Softmax attention whose heads exchange scores before the softmax, and weights after it.

    Shazeer et al. 2020, arXiv:2003.02436, section 3: S' = P_l S and W' = P_w softmax(S'), where
    both P are [H, H], over the heads. They start near the identity, which gives softmax attention.

    Attributes:
      std: Standard deviation of the initial values that are added to the identity.
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
    """Learned map over the axis of heads, with a matrix that starts near the identity."""

    std: float

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., H, L, M] -> [..., H, L, M]."""
        heads = inputs.shape[-3]
        drawn_HG = self.param("kernel", nn.initializers.normal(self.std), (heads, heads))
        matrix_HG = (drawn_HG + jnp.eye(heads)).astype(inputs.dtype)
        return jnp.einsum("HG,...GLM->...HLM", matrix_HG, inputs)


class DifferentialAttention(AttentionVariant):
    """The difference between two softmaxes, which cancels noise common to both.

    softmax(Q_1 K_1^T / sqrt(d)) - lambda softmax(Q_2 K_2^T / sqrt(d)), where each half of
    a head's features has its own attention, with d = d_k / 2. Ye et al. 2024, arXiv:2410.05258,
    equation 1. Here, lambda is one learned number per head, and a rotation covers both halves. In
    diff_transformer, as in the paper, it is a learned difference of exp(q . k); outputs are normed.

    Attributes:
      initial_lambda: Initial lambda; in the paper between 0.2 and 0.8, depending on depth.
    """

    initial_lambda: InitialNumber = 0.5

    @nn.compact
    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> [..., H, L, M]."""
        heads, head_dim = query.shape[-3], query.shape[-1]
        if call.scale is not None:
            raise ValueError(f"attention_scale: differential attention has none, got {call.scale}")
        if head_dim % 2:
            raise ValueError(f"head_dim: expected an even number, for two halves, got {head_dim}")
        mask, bias = call.dense(query, key)
        start = nn.initializers.constant(self.initial_lambda)
        lambda_H11 = self.param("lambda", start, (heads,))[:, None, None]
        halves = zip(jnp.split(query, 2, axis=-1), jnp.split(key, 2, axis=-1), strict=True)
        first_HLM, second_HLM = (attention_weights(q, k, mask, bias) for q, k in halves)
        return first_HLM - lambda_H11 * second_HLM


class DiffTransformer(AttentionVariant):
    """Pairs of heads with shared values: the weights of the second are subtracted from the first's.

    norm((A_h - lambda A_(h + H/2)) [v_h, v_(h + H/2)]) (1 - lambda_0), where lambda is one number
    per layer, exp(q_1 . k_1) - exp(q_2 . k_2) + lambda_0 with learned vectors, and norm is the RMS
    norm of each pair. Ye et al. 2024, arXiv:2410.05258, equations 1 to 3; in layer l = 0, 1, ...
    lambda_0 = 0.8 - 0.6 exp(-0.3 l). H heads here are H / 2 of the paper's, of twice the size.

    Attributes:
      epsilon: Added to the mean square of the norm.
      lambda_start: Value of lambda_0 in all layers; the paper's if None.
      rms: Root mean square of the initial vectors.
    """

    epsilon: Positive = 1e-5
    lambda_start: OpenShare | None = None
    rms: InitialSize = 0.1
    hides_weights: ClassVar[bool] = True

    def setup(self) -> None:
        """Creates the norm that is applied to pairs."""
        self.norm = RMSNorm(self.epsilon)

    def __call__(self, query: Array, key: Array, value: Array, call: AttentionCall) -> Array:
        """[..., H, L, K], [..., H, M, K] and [..., H, M, V] -> [..., H, L, V]."""
        heads = query.shape[-3]
        weights_HLM = call.adjust(self._softmax(query, key, call))
        differences_HLM = self._differences(weights_HLM, query.shape[-1], call.layer)
        of_pairs = jnp.concatenate(jnp.split(value, 2, axis=-3), axis=-1)
        mixed = self.norm(weighted_sum(differences_HLM, of_pairs)) * (1 - self._start(call.layer))
        # [..., H/2, L, 2V] -> [..., H, L, V]: a pair's features in two successive heads.
        halves = jnp.stack(jnp.split(mixed, 2, axis=-1), axis=-3)
        return halves.reshape(*mixed.shape[:-3], heads, *halves.shape[-2:]).astype(value.dtype)

    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """Returns the differences of weights, [..., H, L, M], for inspection."""
        weights_HLM = self._softmax(query, key, call)
        return jnp.repeat(self._differences(weights_HLM, query.shape[-1], call.layer), 2, axis=-3)

    def _softmax(self, query: Array, key: Array, call: AttentionCall) -> Array:
        heads, (mask, bias) = query.shape[-3], call.dense(query, key)
        if heads % 2:
            raise ValueError(f"num_heads: expected an even number, for pairs, got {heads}")
        return attention_weights(query, key, mask, bias, scale=call.scale)

    @nn.compact
    def _differences(self, weights: Array, head_dim: int, layer: int | Array) -> Array:
        """Subtracts lambda times each pair's second head: [..., H, L, M] -> [..., H/2, L, M]."""
        vectors = self.param("lambda", nn.initializers.normal(self.rms), (4, head_dim))
        q_1, k_1, q_2, k_2 = vectors.astype(jnp.promote_types(weights.dtype, jnp.float32))
        taken = jnp.exp((q_1 * k_1).sum()) - jnp.exp((q_2 * k_2).sum()) + self._start(layer)
        first, second = jnp.split(weights, 2, axis=-3)  # heads, and their partners
        return first - taken.astype(weights.dtype) * second

    def _start(self, layer: int | Array) -> float | Array:
        if self.lambda_start is not None:
            return self.lambda_start
        return 0.8 - 0.6 * jnp.exp(-0.3 * layer)

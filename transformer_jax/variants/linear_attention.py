"""Linear attention: running sums take the place of all weights."""

from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import AttentionCall, AttentionVariant, weighted_sum
from transformer_jax.cache import keep_state, kept_state
from transformer_jax.masks import Mask
from transformer_jax.options import Count
from transformer_jax.variants.running_sums import running_sums


class LinearAttention(AttentionVariant):
    """Attention with weights proportional to phi(q) . phi(k), phi(x) = elu(x) + 1, in linear time.

    Katharopoulos et al. 2020, arXiv:2006.16236, equations 5, 7 and 9 to 12: sums of phi(k) v and of
    phi(k) stand for all keys and values read, so time is linear in the length and a cache does not
    grow. In a causal model the sums advance chunk by chunk, with all weights inside a chunk. If
    sums cannot stand for the visible keys (windows, prefixes, packed documents, dropped weights),
    all weights are computed, which gives the same numbers in quadratic time.

    Attributes:
      chunk: Number of tokens processed in one pass.
    """

    chunk: Count = 64
    hides_weights: ClassVar[bool] = True

    def keeps_state(self, call: AttentionCall) -> bool:
        """Returns whether the call continues a cache under a causal mask alone, without dropout.

        The state is [..., H, K, V + 1].
        """
        return call.slot is not None and not call.dropout_rate and _is_causal(call.mask)

    def __call__(self, query: Array, key: Array, value: Array, call: AttentionCall) -> Array:
        """[..., H, L, K], [..., H, M, K] and [..., H, M, V] -> [..., H, L, V].

        Raises:
          ValueError: There is a bias or a scale; without a softmax there are no scores.
        """
        _refuse_terms_of_scores(call)
        reads_on = self.keeps_state(call)
        runs_on = _is_causal(call.mask) and key.shape[-2] == query.shape[-2]
        if call.dropout_rate or not (call.mask is None or runs_on):
            return weighted_sum(call.adjust(self.weights(query, key, call)), value)
        query, key = _elu_plus_one(query), _elu_plus_one(key)
        # An additional value of 1 yields the sum of the weights.
        counted_MV = jnp.concatenate([value, jnp.ones_like(value[..., :1])], -1).astype(key.dtype)
        if call.mask is None:
            state = jnp.einsum("...MK,...MV->...KV", key, counted_MV)
            mixed_LV = jnp.einsum("...LK,...KV->...LV", query, state)
        else:
            empty = jnp.zeros((*key.shape[:-2], key.shape[-1], counted_MV.shape[-1]), key.dtype)
            state = kept_state(self, 0, reads_on, empty)
            mixed_LV, state = running_sums(query, key, counted_MV, state, chunk=self.chunk)
            keep_state(self, 0, reads_on, state)
        total_L1 = mixed_LV[..., -1:]
        mean_LV = mixed_LV[..., :-1] / jnp.where(total_L1 == 0, 1, total_L1)
        return mean_LV.astype(value.dtype)

    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> [..., H, L, M]."""
        _refuse_terms_of_scores(call)
        mask, _ = call.dense(query, key)
        agreement_LM = jnp.einsum("...LK,...MK->...LM", _elu_plus_one(query), _elu_plus_one(key))
        kept_LM = agreement_LM if mask is None else jnp.where(mask, agreement_LM, 0)
        total_L1 = kept_LM.sum(-1, keepdims=True)
        return kept_LM / jnp.where(total_L1 == 0, 1, total_L1)


def _is_causal(mask: Array | Mask | None) -> bool:
    return isinstance(mask, Mask) and mask.names == {"causal"}


def _refuse_terms_of_scores(call: AttentionCall) -> None:
    if call.bias is not None:
        raise ValueError("bias: linear attention has no scores to add a bias to")
    if call.scale is not None:
        raise ValueError(f"attention_scale: linear attention has none, got {call.scale}")


def _elu_plus_one(inputs: Array) -> Array:
    """Returns elu(x) + 1 > 0, float32 or wider, without rounding to 0 for x far below 0."""
    wide = inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))
    return jnp.where(wide > 0, wide + 1, jnp.exp(jnp.minimum(wide, 0)))

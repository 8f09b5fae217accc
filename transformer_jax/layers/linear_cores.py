"""Cores whose state has one size, so that time grows with the length and a cache does not."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.core import Bias, Core, serve_groups, weighted_sum, weights_by
from transformer_jax.layers.running_sums import (
    document_starts,
    logs_of_counts,
    running_sums,
    segments_of_a_causal_mask,
    time_steps,
)
from transformer_jax.masks import Mask
from transformer_jax.options import Count


class LinearAttention(Core):
    """Weights phi(q) . phi(k) over their sum, phi(x) = elu(x) + 1, without making them.

    Katharopoulos et al. 2020, arXiv:2006.16236, equations 5, 7 and 9 to 12: sums of phi(k) v and of
    phi(k) stand for all that was read, so time grows with the length and a cache does not. In a
    causal model the sums run on chunk by chunk, with all weights inside a chunk. Where no sum can
    stand for what is seen (windows, prefixes, packed documents, dropped weights), all weights are
    made, which gives the same numbers in quadratic time.

    Attributes:
      chunk: tokens that are read at once.
    """

    chunk: Count = 64

    def keeps_state(self, mask: Array | Mask | None) -> bool:
        """Under a causal mask and no other."""
        return isinstance(mask, Mask) and mask.names == {"causal"}

    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        mask: Array | Mask | None,
        bias: Bias | None,
        gates: Mapping[str, Array],
        dropout: Callable[[Array], Array] | None,
        state: Any,
    ) -> tuple[Array, Any]:
        """See Core; the state is [..., H, K, V + 1], float32 or wider.

        Raises:
          ValueError: there is a bias; without a softmax nothing could be added to a score.
        """
        value = serve_groups(value, query.shape[-3])
        runs_on = self.keeps_state(mask) and key.shape[-2] == query.shape[-2]
        if dropout is not None or not (mask is None or runs_on):
            weights = weights_by(self.weights, query, key, mask, bias)
            return weighted_sum(weights if dropout is None else dropout(weights), value), None
        _refuse_bias(bias, "linear attention")
        query, key = _elu_plus_one(query), _elu_plus_one(serve_groups(key, query.shape[-3]))
        # A further value of 1 sums up the weights.
        counted_MV = jnp.concatenate([value, jnp.ones_like(value[..., :1])], -1).astype(key.dtype)
        if mask is None:
            state = jnp.einsum("...MK,...MV->...KV", key, counted_MV)
            mixed_LV, state = jnp.einsum("...LK,...KV->...LV", query, state), None
        else:
            shape = (*key.shape[:-2], key.shape[-1], counted_MV.shape[-1])
            state = jnp.zeros(shape, key.dtype) if state is None else state
            mixed_LV, state = running_sums(query, key, counted_MV, state, chunk=self.chunk)
        total_L1 = mixed_LV[..., -1:]
        mean_LV = mixed_LV[..., :-1] / jnp.where(total_L1 == 0, 1, total_L1)
        return mean_LV.astype(value.dtype), state

    def weights(self, query: Array, key: Array, *, mask: Array | None, bias: Array | None) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> weights [..., H, L, M], to be looked at."""
        _refuse_bias(bias, "linear attention")
        agreement_LM = jnp.einsum("...LK,...MK->...LM", _elu_plus_one(query), _elu_plus_one(key))
        kept_LM = agreement_LM if mask is None else jnp.where(mask, agreement_LM, 0)
        total_L1 = kept_LM.sum(-1, keepdims=True)
        return kept_LM / jnp.where(total_L1 == 0, 1, total_L1)


def _refuse_bias(bias: Bias | None, who: str) -> None:
    if bias is not None:
        raise ValueError(f"bias: {who} has no scores that a bias could be added to")


def _elu_plus_one(inputs: Array) -> Array:
    """elu(x) + 1 > 0, float32 or wider; as a sum, what is far below 0 would be lost."""
    wide = inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))
    return jnp.where(wide > 0, wide + 1, jnp.exp(jnp.minimum(wide, 0)))


class GatedDeltaRule(Core):
    """A memory that forgets, and is corrected where it answers wrongly; there are no weights.

    S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T, and S_t^T q_t / sqrt(d) is what a query
    gets, with queries and keys of length 1. Yang et al. 2025, arXiv:2412.06464, equation 10, with
    Mamba-2's decay a_t = exp(-exp(A) softplus(x W_decay + c)), section 3.4, which starts as there:
    at e^A = 1, 2, ... over the heads, and c for steps of 0.001 to 0.1. b_t = sigmoid(x W_write).
    Read token by token. A document (a run of equal segments) begins with an empty memory.

    Attributes:
      num_heads: heads, H.
    """

    num_heads: int
    gates: ClassVar[Mapping[str, int]] = MappingProxyType({"decay": 1, "write": 1})

    def keeps_state(self, mask: Array | Mask | None) -> bool:
        """Always."""
        return True

    @nn.compact
    def __call__(
        self,
        query: Array,
        key: Array,
        value: Array,
        *,
        mask: Array | Mask | None,
        bias: Bias | None,
        gates: Mapping[str, Array],
        dropout: Callable[[Array], Array] | None,
        state: Any,
    ) -> tuple[Array, Any]:
        """See Core; the state is [..., H, K, V], float32 or wider.

        Raises:
          ValueError: the mask is not causal, or is more than that, or there is a bias or dropout.
        """
        segment = segments_of_a_causal_mask(mask, "the gated delta rule")
        _refuse_bias(bias, "the gated delta rule")
        if dropout is not None:
            raise ValueError(
                "attention_dropout_rate: the gated delta rule has no weights to be dropped; "
                "expected 0"
            )
        dtype, wide = value.dtype, jnp.promote_types(query.dtype, jnp.float32)
        query, key = (_of_length_one(array.astype(wide)) for array in (query, key))
        key, value = (serve_groups(array, self.num_heads) for array in (key, value.astype(wide)))
        rate_H = self.param("rate", logs_of_counts, (self.num_heads,))
        offset_H = self.param("offset", time_steps, (self.num_heads,))
        step_HL = jax.nn.softplus(gates["decay"][..., 0].astype(wide) + offset_H[:, None])
        decay_HL = jnp.exp(-jnp.exp(rate_H)[:, None] * step_HL)
        write_HL = jax.nn.sigmoid(gates["write"][..., 0].astype(wide))
        if segment is not None:
            decay_HL = jnp.where(document_starts(segment)[..., None, :], 0, decay_HL)
            write_HL = write_HL * (segment != 0)[..., None, :]
        shape = (*key.shape[:-2], key.shape[-1], value.shape[-1])
        state = jnp.zeros(shape, wide) if state is None else state

        def read(state: Array, token: tuple[Array, ...]) -> tuple[Array, Array]:
            query_K, key_K, value_V, decay_H, write_H = token
            state = state * decay_H[..., None, None]
            wrong_V = value_V - jnp.einsum("...K,...KV->...V", key_K, state)
            state = state + write_H[..., None, None] * key_K[..., :, None] * wrong_V[..., None, :]
            return state, jnp.einsum("...K,...KV->...V", query_K, state)

        tokens = [jnp.moveaxis(array, -2, 0) for array in (query, key, value)]
        tokens += [jnp.moveaxis(array, -1, 0) for array in (decay_HL, write_HL)]
        state, mixed_HLV = jax.lax.scan(read, state, tuple(tokens))
        mixed_HLV = jnp.moveaxis(mixed_HLV, 0, -2) / query.shape[-1] ** 0.5
        return mixed_HLV.astype(dtype), state


def _of_length_one(array: Array) -> Array:
    """[..., K] -> [..., K], 0 stays 0."""
    return array * jax.lax.rsqrt((array**2).sum(-1, keepdims=True) + 1e-6)

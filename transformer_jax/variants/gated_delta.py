"""The gated delta rule: a memory that forgets, and is corrected where it answers wrongly."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import AttentionCall, AttentionVariant, split_heads
from transformer_jax.cache import keep_state, kept_state
from transformer_jax.linear import Linear
from transformer_jax.options import Count, InitialSize
from transformer_jax.variants.delta_rule import delta_rule, of_length_one
from transformer_jax.variants.running_sums import (
    document_starts,
    logs_of_counts,
    segments_of_a_causal_mask,
    time_steps,
)


class GatedDeltaRule(AttentionVariant):
    """A memory that forgets, and is corrected where it answers wrongly; there are no weights.

    S_t = a_t (I - b_t k_t k_t^T) S_(t-1) + b_t k_t v_t^T; the output is S_t^T q_t / sqrt(d), with
    queries and keys of length 1. Yang et al. 2025, arXiv:2412.06464, equation 10, with Mamba-2's
    decay a_t = exp(-exp(A) softplus(x W_decay + c)), section 3.4, and its initial values: e^A = 1,
    2, ... over the heads, and c for steps of 0.001 to 0.1. b_t = sigmoid(x W_write). A document (a
    run of equal segments) begins with an empty memory.

    Attributes:
      gate_bias: Whether the maps W_decay and W_write have a bias.
      std: Standard deviation of the initial kernels of these maps.
      chunk: Number of tokens processed in one pass; affects only time and memory.
    """

    gate_bias: bool = False
    std: InitialSize = 0.02
    chunk: Count = 32

    def keeps_state(self, call: AttentionCall) -> bool:
        """Returns whether the call continues a cache.

        The state is [..., H, K, V], float32 or wider.
        """
        return call.slot is not None

    @nn.compact
    def __call__(self, query: Array, key: Array, value: Array, call: AttentionCall) -> Array:
        """[..., H, L, K], [..., H, M, K] and [..., H, M, V] -> [..., H, L, V].

        Raises:
          ValueError: The mask is not causal, or hides more than the future and other documents; or
            there is a bias, a scale or dropout.
        """
        segment = segments_of_a_causal_mask(call.mask, "the gated delta rule")
        if call.bias is not None:
            raise ValueError("bias: the gated delta rule has no scores to add a bias to")
        if call.scale is not None:
            raise ValueError(f"attention_scale: the gated delta rule has none, got {call.scale}")
        if call.dropout_rate:
            raise ValueError(
                "attention_dropout_rate: the gated delta rule has no weights to drop; expected 0, "
                f"got {call.dropout_rate}"
            )
        heads, wide = query.shape[-3], jnp.promote_types(query.dtype, jnp.float32)
        dtype, root = value.dtype, query.shape[-1] ** 0.5
        query, key = (of_length_one(array.astype(wide)) for array in (query, key))
        value = value.astype(wide)
        rate_H = self.param("rate", logs_of_counts, (heads,))
        offset_H = self.param("offset", time_steps, (heads,))
        decay, write = (self._gate(name, heads, call.inputs, wide) for name in ("decay", "write"))
        step_HL = jax.nn.softplus(decay + offset_H[:, None])
        log_decay_HL, write_HL = -jnp.exp(rate_H)[:, None] * step_HL, jax.nn.sigmoid(write)
        if segment is not None:
            write_HL = write_HL * (segment != 0)[..., None, :]

        empty = jnp.zeros((*key.shape[:-2], key.shape[-1], value.shape[-1]), wide)
        reads_on = self.keeps_state(call)
        mixed_HLV, state = delta_rule(
            query,
            key,
            value,
            log_decay_HL[..., None],
            write_HL,
            kept_state(self, 0, reads_on, empty),
            chunk=self.chunk,
            starts=None if segment is None else document_starts(segment)[..., None, :],
        )
        keep_state(self, 0, reads_on, state)
        return (mixed_HLV / root).astype(dtype)

    def _gate(self, name: str, heads: int, inputs: Array, dtype: jnp.dtype) -> Array:
        """Returns the values of a gate before its activation: [..., L, D] -> [..., H, L]."""
        init = nn.initializers.normal(self.std)
        flat = Linear(heads, self.gate_bias, init, inputs.dtype, name=f"{name}_gate")(inputs)
        return split_heads(flat, heads)[..., 0].astype(dtype)

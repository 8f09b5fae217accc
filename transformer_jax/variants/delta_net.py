"""Gated DeltaNet and Kimi Delta Attention: mixers with a memory that the delta rule corrects."""

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.attention import repeat_kv, split_heads
from transformer_jax.blocks import Context, refuse_terms_of_scores
from transformer_jax.cache import keep_state, kept_state
from transformer_jax.linear import Initializer, Linear
from transformer_jax.norms import RMSNorm
from transformer_jax.options import Count, Positive
from transformer_jax.variants.convolutions import convolved, uniform
from transformer_jax.variants.delta_rule import delta_rule, of_length_one
from transformer_jax.variants.running_sums import (
    document_starts,
    logs_of_counts,
    segments_of_a_causal_mask,
    time_steps,
)


class DeltaNet(nn.Module):
    """Queries, keys and values after short convolutions, the delta rule with decay, a gated norm.

    S_t = (I - b_t k_t k_t^T) diag(a_t) S_(t-1) + b_t k_t v_t^T, y_t = norm(S_t^T q_t / sqrt(K)) *
    gate(x W). With one decay for each head and a silu it is Gated DeltaNet (Yang et al. 2025,
    arXiv:2412.06464, section 3.4 and figure 1) as in Qwen3-Next; with a decay for each feature and
    a sigmoid it is Kimi Delta Attention (Kimi Team 2025, arXiv:2510.26692, equations 1 and 7 to
    10). Heads have the sizes of attention's. A document begins with an empty memory.

    Attributes:
      use_bias: Ignored; every mixer takes this argument, and these maps have no biases.
      kernel_init: Initial values of the input kernels.
      out_init: Initial values of the output kernel.
      dtype: Dtype of the maps; the recurrence is float32 or wider.
      decay: Decay of the memory: one number for each head, or one for each feature of its keys.
      gate: Function of the output's gate.
      key_heads: Number of heads of queries and keys, a divisor of num_heads; num_heads if None.
      gate_rank: Rank of the maps to the decays of features and to their gate; None: head_dim.
      conv_size: Length of the convolutions in tokens.
      epsilon: Added to the mean square in the norm.
      chunk: Number of tokens processed in one pass; affects only time and memory.
    """

    use_bias: bool = False
    kernel_init: Initializer = nn.initializers.normal(0.02)
    out_init: Initializer = nn.initializers.normal(0.02)
    dtype: DTypeLike | None = None
    decay: Literal["head", "feature"] = "head"
    gate: Literal["silu", "sigmoid"] = "silu"
    key_heads: Count | None = None
    gate_rank: Count | None = None
    conv_size: Count = 4
    epsilon: Positive = 1e-6
    chunk: Count = 16

    @nn.compact
    def __call__(self, inputs: Array, context: Context) -> Array:
        """[..., L, D] -> [..., L, D].

        Raises:
          ValueError: The mask is not causal or hides more than the future and other documents,
            there is a position term for attention, or key_heads does not divide the heads.
        """
        who, sizes = "a delta network", context.sizes
        segment = segments_of_a_causal_mask(context.mask, who)
        refuse_terms_of_scores(who, context)
        heads, head_dim, value_dim = sizes.num_heads, sizes.head_dim, sizes.value_dim
        groups = self.key_heads or heads
        if heads % groups:
            raise ValueError(f"key_heads: expected a divisor of num_heads {heads}, got {groups}")
        wide = jnp.promote_types(inputs.dtype, jnp.float32)
        counts = {"query": groups * head_dim, "key": groups * head_dim, "value": heads * value_dim}
        read = {}
        for state, (name, features) in enumerate(counts.items(), 1):
            flat = self._map(name, features, inputs)
            kernel = self.param(f"{name}_convolution", uniform, (self.conv_size, features))
            flat = convolved(self, state, flat, kernel, segment, context.slot)
            count = heads if name == "value" else groups
            read[name] = split_heads(jax.nn.silu(flat).astype(wide), count)
        query_HLK, key_HLK = (repeat_kv(of_length_one(read[n]), heads) for n in ("query", "key"))
        log_decay_HLK = self._log_decay(inputs, heads, head_dim).astype(wide)
        write = self._map("write", heads, inputs).astype(wide)
        write_HL = jnp.swapaxes(jax.nn.sigmoid(write), -1, -2)
        if segment is not None:
            write_HL = write_HL * (segment != 0)[..., None, :]
        empty = jnp.zeros((*key_HLK.shape[:-2], head_dim, value_dim), wide)
        reads_on = context.slot is not None
        mixed_HLV, state = delta_rule(
            query_HLK * head_dim**-0.5,
            key_HLK,
            read["value"],
            log_decay_HLK,
            write_HL,
            kept_state(self, 0, reads_on, empty),
            chunk=self.chunk,
            starts=None if segment is None else document_starts(segment)[..., None, :],
        )
        keep_state(self, 0, reads_on, state)
        normed_HLV = RMSNorm(self.epsilon, name="norm")(mixed_HLV)
        gate = self._low_rank("gate", heads * value_dim, inputs, head_dim)
        act = jax.nn.silu if self.gate == "silu" else jax.nn.sigmoid
        gated_HLV = normed_HLV * act(split_heads(gate.astype(wide), heads))
        flat = jnp.swapaxes(gated_HLV, -3, -2).reshape(*inputs.shape[:-1], heads * value_dim)
        out = Linear(inputs.shape[-1], False, self.out_init, self.dtype, name="out")
        return out(flat.astype(inputs.dtype))

    @nn.nowrap
    def _log_decay(self, inputs: Array, heads: int, head_dim: int) -> Array:
        """Returns log a, [..., H, L, 1], or [..., H, L, K] with a decay for each feature."""
        size = 1 if self.decay == "head" else head_dim
        step = split_heads(self._low_rank("decay", heads * size, inputs, head_dim), heads)
        rate_H = self.param("rate", logs_of_counts, (heads,))
        offset = self.param("offset", time_steps, (heads * size,)).reshape(heads, 1, size)
        return -jnp.exp(rate_H)[:, None, None] * jax.nn.softplus(step.astype(offset.dtype) + offset)

    @nn.nowrap
    def _low_rank(self, name: str, features: int, inputs: Array, head_dim: int) -> Array:
        """Applies one map, or two of a low rank if features have decays of their own."""
        if self.decay == "feature":
            inputs = self._map(f"{name}_down", self.gate_rank or head_dim, inputs)
        return self._map(name, features, inputs)

    @nn.nowrap
    def _map(self, name: str, features: int, inputs: Array) -> Array:
        return Linear(features, False, self.kernel_init, self.dtype, name=name)(inputs)

"""Forgetting attention: a softmax whose scores fall with the forget gates between two tokens."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import AttentionCall, AttentionVariant, attention_weights
from transformer_jax.cache import append_to_cache, keep_state, kept_state
from transformer_jax.linear import Linear
from transformer_jax.masks import Mask
from transformer_jax.options import InitialSize


class ForgettingAttention(AttentionVariant):
    """softmax(Q K^T / sqrt(d) + D), D_ij = sum of log f_l over j < l <= i, f = sigmoid(x W + b).

    Lin et al. 2025, arXiv:2503.02130, equations 4 and 5. Every head has its own gate. The paper
    uses it without position encoding. The cache also holds the sums of log f.

    Attributes:
      std: Standard deviation of the initial W.
    """

    std: InitialSize = 0.02

    @nn.compact
    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> [..., H, L, M].

        Raises:
          ValueError: The mask does not hide later positions, or it is an array.
        """
        if not (isinstance(call.mask, Mask) and "causal" in call.mask.names):
            raise ValueError(
                "mask: forgetting attention reads from left to right; expected a causal mask as a "
                "rule (transformer_jax.Mask)"
            )
        heads, wide = query.shape[-3], jnp.promote_types(query.dtype, jnp.float32)
        init = nn.initializers.normal(self.std)
        gate_LH = Linear(heads, True, init, call.inputs.dtype, name="gate")(call.inputs)
        reads_on = call.slot is not None
        before_1H = jnp.zeros((*gate_LH.shape[:-2], 1, heads), wide)
        before_1H = kept_state(self, 0, reads_on, before_1H)
        log_gate_LH = jax.nn.log_sigmoid(gate_LH.astype(wide))
        sum_LH = before_1H + jnp.cumsum(log_gate_LH, axis=-2)
        last_1H = jnp.concatenate([before_1H, sum_LH], axis=-2)[..., -1:, :]
        keep_state(self, 0, reads_on, last_1H)
        sum_MH = append_to_cache(self, "keys", sum_LH, call.slot)
        sum_HL, sum_HM = (jnp.swapaxes(sums, -1, -2) for sums in (sum_LH, sum_MH))
        decay_HLM = sum_HL[..., :, None] - sum_HM[..., None, :]
        mask, bias = call.dense(query, key)
        # The mask hides later positions, for which the difference is positive.
        bias = decay_HLM if bias is None else bias + decay_HLM
        return attention_weights(query, key, mask, bias, scale=call.scale)

"""Mamba-2: a state-space mixer that replaces attention."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.blocks import Context, refuse_terms_of_scores
from transformer_jax.cache import CacheSlot, keep_state, kept_state
from transformer_jax.linear import Initializer, Linear
from transformer_jax.norms import RMSNorm
from transformer_jax.options import Count, Positive
from transformer_jax.variants.convolutions import convolved, uniform
from transformer_jax.variants.running_sums import (
    document_starts,
    logs_of_counts,
    running_sums,
    segments_of_a_causal_mask,
    time_steps,
)


class StateSpace(nn.Module):
    """A linear recurrence whose step, input and output depend on the token, as in Mamba-2.

    h_t = exp(-exp(A) d_t) h_(t-1) + d_t B_t x_t^T and y_t = C_t h_t + skip x_t, with d_t =
    softplus(dt_t + offset). A short causal convolution of x, B and C comes before, and a gated norm
    after. Dao and Gu 2024, arXiv:2405.21060, sections 5.1, 6 and 7.1. The mixer reads from left to
    right, in time linear in the length; a document begins with an empty state.

    Attributes:
      use_bias: Whether the input and output maps have a bias.
      kernel_init: Initial values of the input kernel.
      out_init: Initial values of the output kernel.
      dtype: Dtype of the maps; the recurrence is float32 or wider.
      epsilon: Added to the mean square in the norm.
      expand: Inner features as a multiple of the width; a head has as many as in attention.
      state_size: Number of state features per inner feature, N.
      conv_size: Length of the convolution in tokens.
      chunk: Number of tokens processed in one pass; affects only time and memory.
    """

    use_bias: bool = True
    kernel_init: Initializer = nn.initializers.normal(0.02)
    out_init: Initializer = nn.initializers.normal(0.02)
    dtype: DTypeLike | None = None
    epsilon: Positive = 1e-5
    expand: Count = 2
    state_size: Count = 64
    conv_size: Count = 4
    chunk: Count = 64

    @nn.compact
    def __call__(self, inputs: Array, context: Context) -> Array:
        """[..., L, D] -> [..., L, D].

        Raises:
          ValueError: The mask is not causal or hides more than the future and other documents,
            there is a position term for attention, or head_dim does not divide the inner features.
        """
        segment = segments_of_a_causal_mask(context.mask, "a state-space mixer")
        refuse_terms_of_scores("a state-space mixer", context)
        slot, head_dim = context.slot, context.sizes.head_dim
        inner, width = self.expand * inputs.shape[-1], inputs.shape[-1]
        if inner % head_dim:
            raise ValueError(f"head_dim: expected a divisor of {inner}, got {head_dim}")
        heads, channels = inner // head_dim, inner + 2 * self.state_size
        features = inner + channels + heads
        reads = Linear(features, self.use_bias, self.kernel_init, self.dtype, name="in")
        gate, read, step = jnp.split(reads(inputs), (inner, inner + channels), axis=-1)
        read = jax.nn.silu(self._convolve(read, segment, slot))
        wide = jnp.promote_types(read.dtype, jnp.float32)
        ends = inner, inner + self.state_size
        x_LF, key_LK, query_LK = jnp.split(read.astype(wide), ends, axis=-1)
        x_HLV = jnp.swapaxes(x_LF.reshape(*x_LF.shape[:-1], heads, head_dim), -3, -2)
        rate_H = self.param("rate", logs_of_counts, (heads,))
        offset_H = self.param("offset", time_steps, (heads,))
        skip_H = self.param("skip", nn.initializers.ones, (heads,))
        step_HL = jnp.swapaxes(jax.nn.softplus(step.astype(wide) + offset_H), -1, -2)
        empty = jnp.zeros((*x_HLV.shape[:-2], self.state_size, head_dim), wide)
        y_HLV, state = running_sums(
            query_LK[..., None, :, :],
            key_LK[..., None, :, :],
            x_HLV * step_HL[..., None],
            kept_state(self, 0, slot is not None, empty),
            chunk=self.chunk,
            log_decay=-jnp.exp(rate_H)[:, None] * step_HL,
            starts=None if segment is None else document_starts(segment)[..., None, :],
        )
        keep_state(self, 0, slot is not None, state)
        y_HLV = y_HLV + skip_H[:, None, None] * x_HLV
        y_LF = jnp.swapaxes(y_HLV, -3, -2).reshape(x_LF.shape)
        y_LF = RMSNorm(self.epsilon, name="norm")(y_LF * jax.nn.silu(gate.astype(wide)))
        out = Linear(width, self.use_bias, self.out_init, self.dtype, name="out")
        return out(y_LF.astype(inputs.dtype))

    def _convolve(self, inputs: Array, segment: Array | None, slot: CacheSlot | None) -> Array:
        """Convolves each channel over the latest tokens of the same document."""
        channels = inputs.shape[-1]
        kernel = self.param("conv_kernel", uniform, (self.conv_size, channels))
        bias = self.param("conv_bias", nn.initializers.zeros, (channels,))
        mixed_LC = convolved(self, 1, inputs, kernel, segment, slot)
        return mixed_LC + bias.astype(inputs.dtype)

"""A component of my own: a mixer, through which positions exchange information."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from transformer_jax.blocks import Context, refuse_terms_of_scores
from transformer_jax.cache import keep_state, kept_state
from transformer_jax.linear import Initializer, Linear
from transformer_jax.options import OpenShare
from transformer_jax.variants.running_sums import document_starts, segments_of_a_causal_mask


class Mine(nn.Module):
    """Exponential moving average of the inputs, with a learned rate for each feature.

    Attributes:
      use_bias: Whether the maps have a bias; every mixer receives this field and the next three.
      kernel_init: Initial values of the input map's kernel.
      out_init: Initial values of the output map's kernel.
      dtype: Dtype of the maps.
      initial: Initial share of the average that is kept at each token; an option of the config.
    """

    use_bias: bool = True
    kernel_init: Initializer = nn.initializers.normal(0.02)
    out_init: Initializer = nn.initializers.normal(0.02)
    dtype: DTypeLike | None = None
    initial: OpenShare = 0.5

    @nn.compact
    def __call__(self, inputs, context: Context):
        """[..., L, D] -> [..., L, D]."""
        segment = segments_of_a_causal_mask(context.mask, "a running mean")
        refuse_terms_of_scores("a running mean", context)
        reads_on = context.slot is not None
        width = inputs.shape[-1]
        logit = jnp.log(self.initial / (1 - self.initial))
        decay = jax.nn.sigmoid(self.param("gain", nn.initializers.constant(logit), (width,)))
        read = Linear(width, self.use_bias, self.kernel_init, self.dtype, name="in")(inputs)
        fresh = jnp.zeros(inputs.shape[:-1], bool) if segment is None else document_starts(segment)
        fresh = jnp.broadcast_to(fresh, inputs.shape[:-1])

        def step(mean, token):
            read, is_fresh = token
            mean = jnp.where(is_fresh[..., None], 0, mean) * decay + read * (1 - decay)
            return mean, mean

        empty = jnp.zeros((*read.shape[:-2], width), jnp.result_type(read, decay))
        start = kept_state(self, 0, reads_on, empty)
        by_time = (jnp.moveaxis(read, -2, 0), jnp.moveaxis(fresh, -1, 0))
        mean, means = jax.lax.scan(step, start, by_time)
        keep_state(self, 0, reads_on, mean)
        out = Linear(width, self.use_bias, self.out_init, self.dtype, name="out")
        return out(jnp.moveaxis(means, 0, -2).astype(inputs.dtype))

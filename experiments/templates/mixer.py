"""A component of my own: what lets places exchange what they know."""

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from transformer_jax.layers.cache import keep_state, kept_state
from transformer_jax.layers.linear import Linear
from transformer_jax.layers.mixers import refuse_what_is_for_scores
from transformer_jax.layers.position_terms import NO_TERMS
from transformer_jax.layers.running_sums import document_starts, segments_of_a_causal_mask
from transformer_jax.options import OpenShare


class Mine(nn.Module):
    """A mean of what came before that forgets at a learned rate, each feature at its own.

    Attributes:
      dtype: dtype of the maps, supplied by the model.
      initial: share that is kept from token to token, at the start; an option of the config.
    """

    dtype: DTypeLike | None = None
    initial: OpenShare = 0.5

    @nn.compact
    def __call__(self, inputs, memory=None, *, mask=None, terms=NO_TERMS, slot=None, train=False):
        """[..., L, D] -> [..., L, D]; mask, terms and slot are those of attention."""
        segment = segments_of_a_causal_mask(mask, "a running mean")
        refuse_what_is_for_scores("a running mean", memory, terms)
        width = inputs.shape[-1]
        logit = jnp.log(self.initial / (1 - self.initial))
        kept = jax.nn.sigmoid(self.param("gain", nn.initializers.constant(logit), (width,)))
        read = Linear(width, dtype=self.dtype, name="in")(inputs)
        fresh = jnp.zeros(inputs.shape[:-1], bool) if segment is None else document_starts(segment)
        fresh = jnp.broadcast_to(fresh, inputs.shape[:-1])

        def step(mean, token):
            read, is_fresh = token
            mean = jnp.where(is_fresh[..., None], 0, mean) * kept + read * (1 - kept)
            return mean, mean

        empty = jnp.zeros((*read.shape[:-2], width), jnp.result_type(read, kept))
        start = kept_state(self, 0, slot is not None, empty)
        by_time = (jnp.moveaxis(read, -2, 0), jnp.moveaxis(fresh, -1, 0))
        mean, means = jax.lax.scan(step, start, by_time)
        keep_state(self, 0, slot is not None, mean)
        out = Linear(width, dtype=self.dtype, name="out")
        return out(jnp.moveaxis(means, 0, -2).astype(inputs.dtype))

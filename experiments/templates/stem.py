"""A component of my own: a change of the embedded input that depends on the tokens."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.blocks import Context
from transformer_jax.cache import keep_state, kept_state
from transformer_jax.linear import TokenEmbedding
from transformer_jax.options import Count
from transformer_jax.variants.convolutions import segments_of
from transformer_jax.variants.running_sums import document_starts


class Mine(nn.Module):
    """Adds an embedding of each pair of successive tokens, looked up by a hash of both.

    Attributes:
      rows: Number of rows in the table; an option of the config.
    """

    rows: Count = 4096

    @nn.compact
    def __call__(self, inputs, context: Context):
        """[..., L, D] -> [..., L, D]."""
        tokens = context.tokens
        if tokens is None:
            raise ValueError("stem: pairs of tokens need tokens; the input is not text")
        reads_on = context.slot is not None
        # An empty cache is 0, so tokens count from 1 here.
        none = jnp.zeros((*tokens.shape[:-1], 1), tokens.dtype)
        read = jnp.concatenate([kept_state(self, 0, reads_on, none), tokens + 1], axis=-1)
        keep_state(self, 0, reads_on, read[..., -1:])
        before, segment = read[..., :-1], segments_of(context, "stem")
        if segment is not None:  # a document does not see the one before it
            before = jnp.where(document_starts(segment), 0, before)
        pair = (tokens.astype(jnp.uint32) * 36_313 + before.astype(jnp.uint32) * 27_191) % self.rows
        table = TokenEmbedding(self.rows, inputs.shape[-1], dtype=inputs.dtype, name="table")
        return inputs + table(pair.astype(jnp.int32))

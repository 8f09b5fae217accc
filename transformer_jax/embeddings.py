"""Token embeddings, and the projection to logits."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.linear import Initializer, linear
from transformer_jax.placement import cut_at_site


class TokenEmbedding(nn.Module):
    """A vector for each token of the vocabulary.

    Looking up a row equals multiplying a one-hot vector with the table. A token outside the
    vocabulary gives NaN instead of another row; data sources reject it earlier.

    Attributes:
      vocab_size: Tokens, V.
      width: Model width, D.
      embedding_init: Initial values of the table.
      dtype: Dtype of the result; the table's if None.
    """

    vocab_size: int
    width: int
    embedding_init: Initializer = nn.initializers.normal(0.02)
    dtype: DTypeLike | None = None

    def setup(self) -> None:
        """Draws the table [V, D]."""
        shape = (self.vocab_size, self.width)
        table_VD = self.param("embedding", self.embedding_init, shape)
        self.embedding = cut_at_site("token_embedding.table", table_VD)

    def __call__(self, tokens: Array) -> Array:
        """[...] int -> [..., D].

        Raises:
          ValueError: Tokens are not integers.
        """
        if not jnp.issubdtype(tokens.dtype, jnp.integer):
            raise ValueError(f"tokens: expected integers, got {tokens.dtype}")
        embedded = lookup(self.embedding, tokens)
        return embedded if self.dtype is None else embedded.astype(self.dtype)

    def attend(self, hidden: Array) -> Array:
        """Returns the logits [..., V] of the tied output layer (Press and Wolf 2017).

        Products are in the dtype of `hidden`, sums in float32 or wider.
        """
        wide = jnp.promote_types(hidden.dtype, jnp.float32)
        return linear(hidden, self.embedding.T.astype(hidden.dtype), out_dtype=wide)


def lookup(table: Array, indices: Array) -> Array:
    """Returns rows of a table; an index outside it gives NaN.

    Args:
      table: [V, D].
      indices: [...] int.
    Returns:
      [..., D].
    """
    indices = jnp.where(indices < 0, table.shape[0], indices)  # -1 would mean the last row
    return table.at[indices].get(mode="fill", fill_value=jnp.nan)

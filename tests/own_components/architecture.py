"""An architecture of my own: from what a task gives to logits."""

import flax.linen as nn
import jax.numpy as jnp

from transformer_jax.options import Count


class Mine(nn.Module):
    """A language model of causal convolutions, each reading twice as far as the one before.

    Attributes:
      vocab_size: tokens, V; told by the data.
      max_length: longest input; this and what follows are the options of the model of that name.
      width: features, D.
      depth: number of convolutions.
      dropout_rate: share dropped in training after each of them.
      window: tokens that one convolution reads; an option of my own, `model.window`.
    """

    vocab_size: int
    max_length: int
    width: int = 128
    depth: int = 4
    dropout_rate: float = 0.0
    window: Count = 3

    @nn.compact
    def __call__(self, tokens, *, train=False):
        """[B, L] int -> logits [B, L, V]; the arguments are the inputs of the task's batches."""
        hidden = nn.Embed(self.vocab_size, self.width)(tokens)
        for layer in range(self.depth):
            back = 2**layer  # tokens between two that are read
            hidden = hidden + nn.Dropout(self.dropout_rate, deterministic=not train)(
                nn.gelu(
                    nn.Conv(self.width, (self.window,), kernel_dilation=back, padding="CAUSAL")(
                        nn.LayerNorm()(hidden)
                    )
                )
            )
        return nn.Dense(self.vocab_size)(nn.LayerNorm()(hidden))

    def example_inputs(self):
        """Inputs that parameters can be drawn for."""
        return {"tokens": jnp.zeros((1, self.max_length), jnp.int32)}

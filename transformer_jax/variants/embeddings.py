"""Token embeddings inside blocks."""

import flax.linen as nn
import jax
from jax import Array

from transformer_jax.blocks import Carry, Context, PreNorm
from transformer_jax.linear import Linear, TokenEmbedding
from transformer_jax.norms import RMSNorm
from transformer_jax.options import Count, InitialSize
from transformer_jax.sites import site


class PerLayerEmbeddings(PreNorm):
    """Pre-norm blocks that end with x + norm((gelu(x W_gate) * p) W_out), p from the tokens.

    p = (sqrt(P) E[token] + norm(x_0 W / sqrt(D))) / sqrt(2), where E [V, P] is a table of the
    block's own, and x_0 the input of the first block. Gemma 3n (Google 2025; its reference code).

    Attributes:
      features: Number of features of the block's embeddings, P.
      std: Standard deviation of the initial kernels; that of the table is std / sqrt(P).
    """

    features: Count = 32
    std: InitialSize = 0.02

    @nn.compact
    def __call__(self, hidden: Array, carry: Carry, context: Context) -> tuple[Array, Carry]:
        """[..., L, D] -> [..., L, D]; parts may add to the carry.

        Raises:
          ValueError: The input of the model is not text.
        """
        hidden, carry = super().__call__(hidden, carry, context)
        vocab_size = context.sizes.vocab_size
        if context.tokens is None or context.embedded is None or vocab_size is None:
            raise ValueError("wiring: per-layer embeddings need tokens; the input is not text")
        root, dtype, width = self.features**0.5, hidden.dtype, hidden.shape[-1]
        init, of_table = (nn.initializers.normal(std) for std in (self.std, self.std / root))
        table = TokenEmbedding(vocab_size, self.features, of_table, dtype, name="table")
        read = Linear(self.features, False, init, dtype, name="of_embedded")
        of_embedded = RMSNorm(name="of_embedded_norm")(read(context.embedded) * width**-0.5)
        added = (table(context.tokens) * root + of_embedded) * 2**-0.5
        gate = Linear(self.features, False, init, dtype, name="per_layer_gate")(hidden)
        out = Linear(width, False, init, dtype, name="per_layer_out")
        branch = self.normed("per_layer", out(jax.nn.gelu(gate, approximate=True) * added))
        return site(self, "residual", hidden + self.branch_dropout(context)(branch)), carry

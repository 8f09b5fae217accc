"""Values of self-attention that also come from the first block, or from the tokens themselves."""

import flax.linen as nn
import jax
from jax import Array

from transformer_jax.attention import AttentionCall, split_heads
from transformer_jax.linear import Linear, TokenEmbedding
from transformer_jax.options import Count, InitialNumber, InitialSize


class ValueResidual(nn.Module):
    """a V_1 + b V_n, where V_1 are the values of the first block, and a and b are learned numbers.

    Zhou et al. 2024, arXiv:2410.17897, section 3.2 ("learnable ResFormer"). In the first block
    itself, V_1 and V_n are the same.

    Attributes:
      initial: Initial value of a and of b; 0.5 in the paper.
    """

    initial: InitialNumber = 0.5

    @nn.compact
    def __call__(self, value: Array, call: AttentionCall) -> Array:
        """[..., G, L, V] -> [..., G, L, V]."""
        gains = self.param("gain", nn.initializers.constant(self.initial), (2,))
        of_first, of_own = gains.astype(value.dtype)
        first = call.context.carry.first("value", value)
        call.context.carry.hand_on("value", value)
        return of_first * first + of_own * value


class ValueEmbeddings(nn.Module):
    """V + g E[token], where E is a table of the block's own, and g a gate of each head.

    Zhou et al. 2024, arXiv:2410.17897, section 3.4, describe values that depend on the tokens
    alone; the sum, and the gate 2 sigmoid(x W), which starts at 1 and reads the first features of
    the input, are those of modded-nanogpt (Jordan et al. 2024) and nanochat (Karpathy 2025).

    Attributes:
      gate_features: Number of features that the gate reads; all if the input has fewer.
      std: Standard deviation of the initial table.
    """

    gate_features: Count = 32
    std: InitialSize = 0.02

    @nn.compact
    def __call__(self, value: Array, call: AttentionCall) -> Array:
        """[..., G, L, V] -> [..., G, L, V].

        Raises:
          ValueError: The input of the model is not text.
        """
        groups, features = value.shape[-3], value.shape[-1]
        tokens, vocab_size = call.context.tokens, call.context.sizes.vocab_size
        if tokens is None:
            raise ValueError("values: value embeddings need tokens; the input is not text")
        init = nn.initializers.normal(self.std)
        table = TokenEmbedding(vocab_size, groups * features, init, value.dtype, name="table")
        zeros = nn.initializers.zeros
        gate = Linear(groups, False, zeros, value.dtype, name="gate")
        gate_G1 = split_heads(gate(call.inputs[..., : self.gate_features]), groups)
        return value + 2 * jax.nn.sigmoid(gate_G1) * split_heads(table(tokens), groups)

"""Changes of what the heads of self-attention return, before the output map."""

from typing import Literal

import flax.linen as nn
import jax
from jax import Array

from transformer_jax.attention import AttentionCall, repeat_kv, split_heads
from transformer_jax.linear import Linear
from transformer_jax.options import InitialSize, Positive
from transformer_jax.shapes import widen


class GatedHeads(nn.Module):
    """Y * sigmoid(X W): the outputs of each head, gated by the layer's input.

    Qiu et al. 2025, arXiv:2505.06708, equation 5, at position G1.

    Attributes:
      gates: One gate for each feature of a head, or one for the whole head.
      std: Standard deviation of the initial W.
    """

    gates: Literal["feature", "head"] = "feature"
    std: InitialSize = 0.02

    @nn.compact
    def __call__(self, mixed: Array, value: Array, call: AttentionCall) -> Array:
        """[..., H, L, V] -> [..., H, L, V]."""
        heads = mixed.shape[-3]
        features = heads * (mixed.shape[-1] if self.gates == "feature" else 1)
        init = nn.initializers.normal(self.std)
        gate = Linear(features, False, init, mixed.dtype, name="gate")
        return mixed * jax.nn.sigmoid(split_heads(gate(call.inputs), heads))


class ExclusiveHeads(nn.Module):
    """y - (y . v) v / |v|^2: outputs without the part along the position's own value.

    Zhai 2026, arXiv:2603.09078, "Exclusive self attention".

    Attributes:
      epsilon: Added to |v|^2.
    """

    epsilon: Positive = 1e-6

    @nn.compact
    def __call__(self, mixed: Array, value: Array, call: AttentionCall) -> Array:
        """[..., H, L, V] and [..., G, L, V] -> [..., H, L, V]."""
        own, wide = widen(repeat_kv(value, mixed.shape[-3])), widen(mixed)
        along = (wide * own).sum(-1, keepdims=True)
        square = (own * own).sum(-1, keepdims=True) + self.epsilon
        return (wide - along / square * own).astype(mixed.dtype)

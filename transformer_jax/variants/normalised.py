"""The parts of nGPT, in which all vectors of the width lie on the unit sphere.

Loshchilov et al. 2024, arXiv:2410.01131. With these parts, its model has norm=none, logits_gain
and optimizer.unit_vectors. A learned factor is stored times the size that its Adam step has beside
it ("scale" in section 2.5): 1 / sqrt(D), unless stated otherwise.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import AttentionCall, AttentionVariant, attention_weights
from transformer_jax.blocks import Context
from transformer_jax.feedforward import GatedFeedForward
from transformer_jax.linear import Linear
from transformer_jax.options import InitialSize
from transformer_jax.shapes import recomputed, widen
from transformer_jax.sites import site
from transformer_jax.variants.wirings import Sequential

_EPSILON = 1e-12


def unit(vectors: Array) -> Array:
    """Returns vectors [..., D] divided by their lengths."""
    wide = widen(vectors)
    square = jnp.square(wide).sum(-1, keepdims=True)
    return (wide * jax.lax.rsqrt(square + _EPSILON)).astype(vectors.dtype)


class NormalisedResidual(Sequential):
    """unit(x + |a| (unit(f(x)) - x)): steps on the sphere towards what a branch returns.

    Loshchilov et al. 2024, arXiv:2410.01131, equations 10 and 11; a is learned for each feature.

    Attributes:
      initial: Initial a.
    """

    initial: InitialSize = 0.05
    final_norm: ClassVar[bool] = False

    @classmethod
    def enter(cls, embedded: Array, **options: Any) -> Array:
        """[..., L, D] -> [..., L, D]."""
        return unit(embedded)

    @nn.nowrap
    def connect(
        self, name: str, branch: Callable[[Array], Array], hidden: Array, context: Context
    ) -> Array:
        """[..., L, D] -> [..., L, D]."""
        width = hidden.shape[-1]
        stored = self.param(f"{name}_alpha", nn.initializers.constant(width**-0.5), (width,))
        alpha = jnp.abs(stored * (self.initial * math.sqrt(width))).astype(hidden.dtype)
        return unit(hidden + alpha * (unit(branch(hidden)) - hidden))


class NormalisedAttention(AttentionVariant):
    """softmax(sqrt(K) (s * unit(q)) . (s * unit(k))) with learned s for each head and feature.

    Loshchilov et al. 2024, arXiv:2410.01131, equations 15 and 16; s starts at 1.
    """

    @nn.compact
    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> [..., H, L, M]."""
        width, (heads, features) = call.inputs.shape[-1], (query.shape[-3], query.shape[-1])
        stored = self.param("gain", nn.initializers.constant(width**-0.5), (heads, features))
        square_H1K = (jnp.square(stored) * width)[:, None].astype(query.dtype)
        scale = math.sqrt(features) if call.scale is None else call.scale
        terms = call.dense(query, key)
        return attention_weights(unit(query) * square_H1K, unit(key), *terms, scale=scale)


class NormalisedFeedForward(GatedFeedForward):
    """(activation(x W_gate * s_v sqrt(D)) * x W_up * s_u) W_down, for vectors of length 1.

    Loshchilov et al. 2024, arXiv:2410.01131, equations 20 and 21; s_u and s_v are learned for each
    hidden feature, stored as they are, and start at 1. For the rest see GatedFeedForward.
    """

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., D] -> [..., D]."""
        width = inputs.shape[-1]
        mlp_dim = self.mlp_dim or round(8 * width / 3)
        read = []
        for name, scale in (("gate", math.sqrt(width)), ("up", 1.0)):
            linear = Linear(mlp_dim, self.use_bias, self.kernel_init, self.dtype, name=name)
            gain = self.param(f"{name}_gain", nn.initializers.ones, (mlp_dim,))
            read.append(linear(inputs) * (gain * scale).astype(inputs.dtype))
        out_init = self.out_init or self.kernel_init
        down = Linear(width, self.use_bias, out_init, self.dtype, name="down")
        hidden = recomputed(lambda gate, up: self.activation(gate) * up, *read)
        return down(site(self, "hidden", hidden))

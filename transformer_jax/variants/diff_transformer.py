"""Differential attention as published by its authors."""

from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.attention import (
    AttentionCall,
    AttentionVariant,
    attention_weights,
    weighted_sum,
)
from transformer_jax.norms import RMSNorm
from transformer_jax.options import InitialSize, OpenShare, Positive


class DiffTransformer(AttentionVariant):
    """Pairs of heads with shared values: the weights of the second are subtracted from the first's.

    norm((A_h - lambda A_(h + H/2)) [v_h, v_(h + H/2)]) (1 - lambda_0), lambda one number of the
    layer, exp(q_1 . k_1) - exp(q_2 . k_2) + lambda_0 of learned vectors, and norm the RMS norm of
    each pair. Ye et al. 2024, arXiv:2410.05258, equations 1 to 3; lambda_0 = 0.8 - 0.6 exp(-0.3 l)
    in layer l = 0, 1, ... H heads here are H / 2 of the paper's, each of twice the size.

    Attributes:
      epsilon: Added to the mean square of the norm.
      lambda_start: Lambda_0 of all layers, instead of the paper's.
      rms: Root mean square of the initial vectors.
    """

    epsilon: Positive = 1e-5
    lambda_start: OpenShare | None = None
    rms: InitialSize = 0.1
    hides_weights: ClassVar[bool] = True

    def setup(self) -> None:
        """Creates the norm of the pairs."""
        self.norm = RMSNorm(self.epsilon)

    def __call__(self, query: Array, key: Array, value: Array, call: AttentionCall) -> Array:
        """[..., H, L, K], [..., H, M, K] and [..., H, M, V] -> [..., H, L, V]."""
        heads = query.shape[-3]
        weights_HLM = call.adjust(self._softmax(query, key, call))
        differences_HLM = self._differences(weights_HLM, query.shape[-1], call.layer)
        of_pairs = jnp.concatenate(_pairs(value), axis=-1)
        mixed = self.norm(weighted_sum(differences_HLM, of_pairs)) * (1 - self._start(call.layer))
        # [..., H/2, L, 2V] -> [..., H, L, V]: a pair's features in two heads behind each other.
        halves = jnp.stack(jnp.split(mixed, 2, axis=-1), axis=-3)
        return halves.reshape(*mixed.shape[:-3], heads, *halves.shape[-2:]).astype(value.dtype)

    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """Returns the differences [..., H, L, M], for inspection."""
        weights_HLM = self._softmax(query, key, call)
        return jnp.repeat(self._differences(weights_HLM, query.shape[-1], call.layer), 2, axis=-3)

    def _softmax(self, query: Array, key: Array, call: AttentionCall) -> Array:
        heads, (mask, bias) = query.shape[-3], call.dense(query, key)
        if heads % 2:
            raise ValueError(
                "num_heads: two heads make a pair in diff_transformer; expected an even number, "
                f"got {heads}"
            )
        return attention_weights(query, key, mask, bias, scale=call.scale)

    @nn.compact
    def _differences(self, weights: Array, head_dim: int, layer: int | Array) -> Array:
        """[..., H, L, M] -> [..., H/2, L, M]."""
        vectors = self.param("lambda", nn.initializers.normal(self.rms), (4, head_dim))
        q_1, k_1, q_2, k_2 = vectors.astype(jnp.promote_types(weights.dtype, jnp.float32))
        taken = jnp.exp((q_1 * k_1).sum()) - jnp.exp((q_2 * k_2).sum()) + self._start(layer)
        first, second = _pairs(weights)
        return first - taken.astype(weights.dtype) * second

    def _start(self, layer: int | Array) -> float | Array:
        if self.lambda_start is not None:
            return self.lambda_start
        return 0.8 - 0.6 * jnp.exp(-0.3 * layer)


def _pairs(heads: Array) -> tuple[Array, Array]:
    """[..., H, L, X] -> the first H / 2 heads, and their partners."""
    first, second = jnp.split(heads, 2, axis=-3)
    return first, second

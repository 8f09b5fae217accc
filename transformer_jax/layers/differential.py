"""Differential attention as its authors publish it."""

import math
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.core import Core, serve_groups, weighted_sum, weights_by
from transformer_jax.layers.norms import RMSNorm
from transformer_jax.layers.weights import attention_weights
from transformer_jax.options import InitialSize, OpenShare


class DiffTransformer(Core):
    """Two heads share their values, and the second one's weights are taken from the first one's.

    norm((A_h - lambda A_(h + H/2)) [v_h, v_(h + H/2)]) (1 - lambda_0), lambda one number of the
    layer, exp(q_1 . k_1) - exp(q_2 . k_2) + lambda_0 of learned vectors, and norm the RMS norm of
    each pair. Ye et al. 2024, arXiv:2410.05258, equations 1 to 3; lambda_0 = 0.8 - 0.6 exp(-0.3 l)
    in layer l = 0, 1, ... H heads here are H / 2 of the paper's, each of twice the size.

    Attributes:
      num_heads: heads, H; even.
      head_dim: features of one head, K.
      layer: number of the block.
      epsilon: of the norm.
      scale: of the scores, in place of 1 / sqrt(K).
      lambda_start: lambda_0 of all layers in place of the paper's.
      rms: root mean square of the initial vectors.
    """

    num_heads: int
    head_dim: int
    layer: int = 0
    epsilon: float = 1e-5
    scale: float | None = None
    lambda_start: OpenShare | None = None
    rms: InitialSize = 0.1

    def setup(self) -> None:
        """Draws the vectors behind lambda.

        Raises:
          ValueError: the number of heads is odd.
        """
        if self.num_heads % 2:
            raise ValueError(
                f"num_heads: two heads make a pair in diff_transformer; expected an even number, "
                f"got {self.num_heads}"
            )
        draw = nn.initializers.normal(self.rms)
        self.vectors = self.param("lambda", draw, (4, self.head_dim))
        self.norm = RMSNorm(self.epsilon)

    def __call__(
        self, query: Array, key: Array, value: Array, *, mask: Any, bias: Any, dropout: Any, **_
    ) -> tuple[Array, Any]:
        """See Core; there are no gates, and no state is kept."""
        weights = weights_by(self._of_heads, query, key, mask, bias)
        weights = self._differences(weights if dropout is None else dropout(weights))
        of_pairs = jnp.concatenate(_pairs(serve_groups(value, self.num_heads)), axis=-1)
        mixed = self.norm(weighted_sum(weights, of_pairs)) * (1 - self._start())
        # [..., H/2, L, 2V] -> [..., H, L, V]: a pair's features in two heads behind each other.
        halves = jnp.stack(jnp.split(mixed, 2, axis=-1), axis=-3)
        return halves.reshape(*value.shape[:-3], self.num_heads, *halves.shape[-2:]), None

    def weights(self, query: Array, key: Array, *, mask: Array | None, bias: Array | None) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> differences [..., H, L, M], to be looked at."""
        found = self._differences(self._of_heads(query, key, mask=mask, bias=bias))
        return jnp.repeat(found, 2, axis=-3)

    def _of_heads(self, query: Array, key: Array, *, mask: Any, bias: Any) -> Array:
        return attention_weights(query, key, mask, bias, scale=self.scale)

    def _differences(self, weights: Array) -> Array:
        """[..., H, L, M] -> [..., H/2, L, M]."""
        q_1, k_1, q_2, k_2 = self.vectors.astype(jnp.promote_types(weights.dtype, jnp.float32))
        taken = jnp.exp((q_1 * k_1).sum()) - jnp.exp((q_2 * k_2).sum()) + self._start()
        first, second = _pairs(weights)
        return first - taken.astype(weights.dtype) * second

    def _start(self) -> float:
        if self.lambda_start is not None:
            return self.lambda_start
        return 0.8 - 0.6 * math.exp(-0.3 * self.layer)


def _pairs(heads: Array) -> tuple[Array, Array]:
    """[..., H, L, X] -> the first H / 2 heads, and those that they are paired with."""
    first, second = jnp.split(heads, 2, axis=-3)
    return first, second

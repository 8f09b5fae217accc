"""From queries and keys to weights: who is listened to, and how much.

The pure functions first, then one module for each kind of attention. What mixes values itself is a
Core (core.py), as in linear_cores.py, fused.py, local.py and differential.py; heads, projections
and positions are the same for all of them and stand in attention.py.
"""

import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.layers.linear import Initializer
from transformer_jax.options import InitialNumber, Positive
from transformer_jax.shapes import check_shapes


def attention_weights(
    query: Array,
    key: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Array:
    """Returns softmax(Q K^T / sqrt(d_k) + bias) over the keys that the mask allows.

    Args:
      query: [..., L, K].
      key: [..., M, K].
      mask: [..., L, M] bool, True = may attend; broadcasts to the weights.
      bias: [..., L, M], added to the scores; broadcasts to the weights.
      scale: in place of 1 / sqrt(d_k).
      soft_cap: see attention_scores.
    Returns:
      [..., L, M], float32 or wider; every row sums to 1, or is exactly 0 if fully masked.
    Raises:
      ValueError: the shapes disagree, or the mask is not bool.
    """
    return masked_softmax(attention_scores(query, key, mask, bias, scale=scale, soft_cap=soft_cap))


def attention_scores(
    query: Array,
    key: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
) -> Array:
    """Returns Q K^T / sqrt(d_k) + bias, and -inf where the mask forbids.

    Args:
      query: [..., L, K].
      key: [..., M, K].
      mask: [..., L, M] bool, True = may attend; broadcasts to the weights.
      bias: [..., L, M], added to the scores; broadcasts to the weights.
      scale: in place of 1 / sqrt(d_k).
      soft_cap: c bends the products to c tanh(score / c), before the bias, so that none is beyond
        c (Gemma 2, arXiv:2408.00118, section 2).
    Returns:
      [..., L, M], float32 or wider.
    Raises:
      ValueError: the shapes disagree, or the mask is not bool.
    """
    check_shapes(query=(query, "... L K"), key=(key, "... M K"))
    check_broadcasts(weights_shape(query, key), mask=mask, bias=bias)
    if mask is not None and mask.dtype != jnp.bool_:
        raise ValueError(
            f"mask: expected bool, True = may attend, got {mask.dtype}; "
            "numbers that are added to the scores go into bias"
        )
    wide = jnp.promote_types(query.dtype, jnp.float32)
    # Scaling the query costs L*K products, scaling the scores would cost L*M.
    scaled_LK = query / math.sqrt(query.shape[-1]) if scale is None else query * scale
    scores_LM = product("...LK,...MK->...LM", scaled_LK, key, preferred_element_type=wide)
    if soft_cap is not None:
        scores_LM = soft_cap * jnp.tanh(scores_LM / soft_cap)
    if bias is not None:
        scores_LM = scores_LM + bias.astype(wide)
    return scores_LM if mask is None else jnp.where(mask, scores_LM, -jnp.inf)


def product(axes: str, left: Array, right: Array, **options: Any) -> Array:
    """Returns jnp.einsum of matrices.

    For one query, leading axes that both share are made one. With more of them XLA on CPU copies,
    for each token, all keys and values that a cache keeps: products over 24 arrays of 96 heads and
    1,024 places took 282 ms in place of 59.

    Args:
      axes: as einsum takes them, with leading axes as "...".
      left: [..., L, ...].
      right: of as many axes, or what broadcasts.
      **options: of einsum.
    """
    leading = left.shape[:-2]
    if left.shape[-2] != 1 or right.shape[:-2] != leading:
        return jnp.einsum(axes, left, right, **options)
    flat = [array.reshape(math.prod(leading), *array.shape[-2:]) for array in (left, right)]
    made = jnp.einsum(axes, *flat, **options)
    return made.reshape(*leading, *made.shape[-2:])


def masked_softmax(scores: Array) -> Array:
    """Softmax over the last axis in which a row of -inf gives zeros, with zero gradient."""
    largest = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    exponentials = jnp.exp(scores - jnp.where(jnp.isneginf(largest), 0, largest))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


def weights_shape(query: Array, key: Array) -> tuple[int, ...]:
    """Returns the shape of the weights of [..., L, K] and [..., M, K]: (..., L, M)."""
    leading = jnp.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    return (*leading, query.shape[-2], key.shape[-2])


def check_broadcasts(shape: tuple[int, ...], **arrays: Array | None) -> None:
    """Refuses what would not broadcast to the weights, or would make more of them.

    A mask [B, 1, L, L] beside queries [B, L, K] would give every example the masks of all.

    Args:
      shape: of the weights, (..., L, M).
      **arrays: name -> array, or None.
    Raises:
      ValueError: naming the array, its shape and the weights' shape.
    """
    for name, array in arrays.items():
        if array is None:
            continue
        axes = zip(reversed(array.shape), reversed(shape), strict=False)
        if not 2 <= array.ndim <= len(shape) or any(size not in (1, of) for size, of in axes):
            raise ValueError(
                f"{name}: expected [..., L={shape[-2]}, M={shape[-1]}] that broadcasts to the "
                f"weights {shape}, got {array.shape}"
            )


# ---------------------------------------------------------------- rows: queries, keys -> weights


class SoftmaxAttention(nn.Module):
    """Weights that sum to 1: softmax(Q K^T / sqrt(d_k) + bias).

    Vaswani et al. 2017, arXiv:1706.03762, equation 1.

    Attributes:
      scale: in place of 1 / sqrt(d_k).
      soft_cap: bends scores to soft_cap * tanh(score / soft_cap), as in Gemma 2.
    """

    scale: float | None = None
    soft_cap: Positive | None = None

    @nn.compact
    def __call__(
        self, query: Array, key: Array, *, mask: Array | None, bias: Array | None
    ) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> weights [..., H, L, M]."""
        return attention_weights(query, key, mask, bias, scale=self.scale, soft_cap=self.soft_cap)


class SinkAttention(nn.Module):
    """Softmax with a learned score per head for attending nowhere, so rows sum to less than 1.

    weights[j] = exp(s_j) / (exp(sink) + sum over k of exp(s_k)). Miller 2023, "Attention is off by
    one" (sink = 0); learned as in gpt-oss, arXiv:2508.10925, section 2. The sinks start at 0.

    Attributes:
      num_heads: heads, H.
      scale: in place of 1 / sqrt(d_k).
    """

    num_heads: int
    scale: float | None = None

    @nn.compact
    def __call__(
        self, query: Array, key: Array, *, mask: Array | None, bias: Array | None
    ) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> weights [..., H, L, M]."""
        sinks_H = self.param("sink", nn.initializers.zeros, (self.num_heads,))
        scores_HLM = attention_scores(query, key, mask, bias, scale=self.scale)
        sink_HL1 = jnp.broadcast_to(sinks_H[:, None, None], (*scores_HLM.shape[:-1], 1))
        with_sink_HLM = jnp.concatenate([scores_HLM, sink_HL1.astype(scores_HLM.dtype)], axis=-1)
        return masked_softmax(with_sink_HLM)[..., :-1]


class SigmoidAttention(nn.Module):
    """Each weight for itself: sigmoid(score - log M), M the number of keys that may be seen.

    Ramapuram et al. 2024, arXiv:2409.04431, equation 3 and section 3.2, whose M is the length of
    the sequence; ours counts what the mask allows, so that padding changes nothing.

    Attributes:
      scale: in place of 1 / sqrt(d_k).
      soft_cap: bends scores to soft_cap * tanh(score / soft_cap).
    """

    scale: float | None = None
    soft_cap: Positive | None = None

    @nn.compact
    def __call__(
        self, query: Array, key: Array, *, mask: Array | None, bias: Array | None
    ) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> weights [..., H, L, M]."""
        scores_HLM = attention_scores(
            query, key, mask, bias, scale=self.scale, soft_cap=self.soft_cap
        )
        seen_HL1 = jnp.maximum((scores_HLM > -jnp.inf).sum(-1, keepdims=True), 1)
        return jax.nn.sigmoid(scores_HLM - jnp.log(seen_HL1.astype(scores_HLM.dtype)))


class TalkingHeadsAttention(nn.Module):
    """Heads exchange scores before the softmax, and weights after it.

    Shazeer et al. 2020, arXiv:2003.02436, section 3: S' = P_l S and W' = P_w softmax(S'), P of
    [H, H] over the heads. Both start near the identity, where this is softmax attention.

    Attributes:
      num_heads: heads, H.
      kernel_init: initial values, added to the identity.
      scale: in place of 1 / sqrt(d_k).
    """

    num_heads: int
    kernel_init: Initializer = nn.initializers.normal(0.02)
    scale: float | None = None

    @nn.compact
    def __call__(
        self, query: Array, key: Array, *, mask: Array | None, bias: Array | None
    ) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> weights [..., H, L, M]."""
        scores_HLM = attention_scores(query, key, None, bias, scale=self.scale)
        scores_HLM = HeadMixture(self.num_heads, self.kernel_init, name="scores")(scores_HLM)
        weights_HLM = masked_softmax(
            scores_HLM if mask is None else jnp.where(mask, scores_HLM, -jnp.inf)
        )
        return HeadMixture(self.num_heads, self.kernel_init, name="weights")(weights_HLM)


class HeadMixture(nn.Module):
    """Multiplies the axis of heads with a matrix that starts near the identity."""

    num_heads: int
    kernel_init: Initializer

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., H, L, M] -> [..., H, L, M]."""
        drawn_HG = self.param("kernel", self.kernel_init, (self.num_heads, self.num_heads))
        matrix_HG = (drawn_HG + jnp.eye(self.num_heads)).astype(inputs.dtype)
        return jnp.einsum("HG,...GLM->...HLM", matrix_HG, inputs)


class DifferentialAttention(nn.Module):
    """The difference of two softmaxes, which cancels what both attend to without need.

    softmax(Q_1 K_1^T / sqrt(d)) - lambda softmax(Q_2 K_2^T / sqrt(d)), each half of a head's
    features its own attention with d = d_k / 2. Ye et al. 2024, arXiv:2410.05258, equation 1.
    Lambda is one learned number per head here, and a rotation reaches over both halves, where the
    paper learns exp(q . k) differences and norms each head's output: that is diff_transformer.

    Attributes:
      num_heads: heads, H.
      initial_lambda: lambda at the start; the paper's lies between 0.2 and 0.8 by depth.
    """

    num_heads: int
    initial_lambda: InitialNumber = 0.5

    @nn.compact
    def __call__(
        self, query: Array, key: Array, *, mask: Array | None, bias: Array | None
    ) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> weights [..., H, L, M]."""
        if query.shape[-1] % 2:
            raise ValueError(
                "head_dim: differential attention halves it; expected an even number, "
                f"got {query.shape[-1]}"
            )
        start = nn.initializers.constant(self.initial_lambda)
        lambda_H11 = self.param("lambda", start, (self.num_heads,))[:, None, None]
        halves = zip(jnp.split(query, 2, axis=-1), jnp.split(key, 2, axis=-1), strict=True)
        first_HLM, second_HLM = (attention_weights(q, k, mask, bias) for q, k in halves)
        return first_HLM - lambda_H11 * second_HLM

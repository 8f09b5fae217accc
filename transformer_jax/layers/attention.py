"""Attention: the pure function first, then the module that owns the projections."""

import math

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.layers.linear import Initializer, Linear
from transformer_jax.layers.positions import Rotation, rotate
from transformer_jax.shapes import check_shapes


def scaled_dot_product_attention(
    query: Array, key: Array, value: Array, mask: Array | None = None, bias: Array | None = None
) -> Array:
    """Returns for each query the mean of the values, weighted by how well query and key agree.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k) + bias) V.
    Vaswani et al. 2017, arXiv:1706.03762, equation 1. The softmax runs over the keys that the mask
    allows. A query that may attend nothing gives exactly 0, whatever finite values are there (flax
    and jax.nn give the mean of the forbidden ones).

    Args:
      query: [..., L, K].
      key: [..., M, K].
      value: [..., M, V]; V may differ from K.
      mask: [..., L, M] bool, True = may attend; broadcasts.
      bias: [..., L, M], added to the scores; -inf is allowed; broadcasts.
    Returns:
      [..., L, V]; the leading axes of all arguments broadcast.
    Raises:
      ValueError: the shapes disagree, or the mask is not bool; the text names the argument.
    """
    check_shapes(query=(query, "... L K"), key=(key, "... M K"), value=(value, "... M V"))
    weights = attention_weights(query, key, mask, bias)
    return _weighted_mean(weights, value)


def attention_weights(
    query: Array, key: Array, mask: Array | None = None, bias: Array | None = None
) -> Array:
    """Returns softmax(Q K^T / sqrt(d_k) + bias) over the keys that the mask allows.

    Args:
      query: [..., L, K].
      key: [..., M, K].
      mask: [..., L, M] bool, True = may attend.
      bias: [..., L, M], added to the scores.
    Returns:
      [..., L, M], float32 or wider; every row sums to 1, or is exactly 0 if fully masked.
    Raises:
      ValueError: the shapes disagree, or the mask is not bool.
    """
    sizes = check_shapes(query=(query, "... L K"), key=(key, "... M K"))
    for name, array in (("mask", mask), ("bias", bias)):
        _check_broadcasts(name, array, sizes["L"], sizes["M"])
    if mask is not None and mask.dtype != jnp.bool_:
        raise ValueError(
            f"mask: expected bool, True = may attend, got {mask.dtype}; "
            "numbers that are added to the scores go into bias"
        )
    wide = jnp.promote_types(query.dtype, jnp.float32)
    # Scaling the query costs L*K products, scaling the scores would cost L*M.
    scores = jnp.einsum(
        "...LK,...MK->...LM", query / math.sqrt(sizes["K"]), key, preferred_element_type=wide
    )
    if bias is not None:
        scores = scores + bias.astype(wide)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return _softmax(scores)


def _softmax(scores: Array) -> Array:
    """Softmax over the last axis in which a row of -inf gives zeros, with zero gradient."""
    largest = jax.lax.stop_gradient(scores.max(-1, keepdims=True))
    exponentials = jnp.exp(scores - jnp.where(jnp.isneginf(largest), 0, largest))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


def _weighted_mean(weights: Array, value: Array) -> Array:
    """[..., L, M] and [..., M, V] -> [..., L, V], in the dtype of the values."""
    return jnp.einsum("...LM,...MV->...LV", weights.astype(value.dtype), value)


def _check_broadcasts(name: str, array: Array | None, length: int, memory: int) -> None:
    if array is None:
        return
    tail = array.shape[-2:]
    if len(tail) < 2 or tail[0] not in (1, length) or tail[1] not in (1, memory):
        raise ValueError(
            f"{name}: expected [..., L={length}, M={memory}] (1 broadcasts), got {array.shape}"
        )


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each over its own projections, and one output matrix.

    MultiHead(X) = Concat(Z^1 ... Z^H) W_O with W_O in [H * d_v, D], which equals the sum over heads
    of Z^h W_O^h. Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2.

    Each projection is one matrix [D, H * K] whatever the number of heads, so the same seed draws
    the same values when only `num_heads` changes. Asked for `intermediates`, the module gives its
    weights [..., H, L, M] under the name `weights`.

    Attributes:
      num_heads: heads, H.
      head_dim: query and key features of one head, K; width / num_heads if not given.
      value_dim: value features of one head, V; head_dim if not given.
      use_bias: whether the four projections have a bias.
      dropout_rate: share of the attention weights that is dropped in training.
      kernel_init: initial values of the query, key and value kernels.
      out_init: initial values of the output kernel; kernel_init if not given.
      dtype: dtype of the computation; None takes that of inputs and parameters together.
    """

    num_heads: int
    head_dim: int | None = None
    value_dim: int | None = None
    use_bias: bool = True
    dropout_rate: float = 0.0
    kernel_init: Initializer = nn.initializers.normal(0.02)
    out_init: Initializer | None = None
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        memory: Array | None = None,
        *,
        mask: Array | None = None,
        bias: Array | None = None,
        rotation: Rotation | None = None,
        train: bool = False,
    ) -> Array:
        """Attends from the inputs to the memory, or to the inputs themselves.

        Args:
          inputs: [..., L, D], where the queries come from.
          memory: [..., M, D], where keys and values come from; the inputs if not given.
          mask: [..., L, M] bool, True = may attend; the same for all heads.
          bias: [..., H, L, M] or [..., 1, L, M], added to the scores.
          rotation: rotates queries and keys by position; needs L = M.
          train: whether dropout is on; then apply needs rngs={'dropout': key}.
        Returns:
          [..., L, D].
        Raises:
          ValueError: width is not a multiple of num_heads and no head_dim is given, or an
            argument's shape is wrong.
        """
        memory = inputs if memory is None else memory
        width = inputs.shape[-1]
        if self.head_dim is None and width % self.num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of width {width}, got {self.num_heads}; "
                "give head_dim to choose the size of a head freely"
            )
        head_dim = self.head_dim or width // self.num_heads
        value_dim = self.value_dim or head_dim

        def project(name: str, source: Array, features: int) -> Array:
            """[..., L, D] -> [..., H, L, features]."""
            flat = Linear(
                self.num_heads * features, self.use_bias, self.kernel_init, self.dtype, name=name
            )(source)
            split = flat.reshape(*flat.shape[:-1], self.num_heads, features)
            return jnp.swapaxes(split, -3, -2)

        query = project("query", inputs, head_dim)
        key = project("key", memory, head_dim)
        value = project("value", memory, value_dim)
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        if mask is not None:
            mask = mask[..., None, :, :]
        weights = attention_weights(query, key, mask, bias)
        self.sow("intermediates", "weights", weights)
        weights = nn.Dropout(self.dropout_rate, deterministic=not train)(weights)
        mixed = jnp.swapaxes(_weighted_mean(weights, value), -3, -2)
        concatenated = mixed.reshape(*mixed.shape[:-2], self.num_heads * value_dim)
        out_init = self.out_init or self.kernel_init
        return Linear(width, self.use_bias, out_init, self.dtype, name="out")(concatenated)

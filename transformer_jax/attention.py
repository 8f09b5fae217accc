"""Attention: the pure function, and the module that owns the projections and calls it.

Less common kinds of attention are in `variants/` and are imported when chosen; each is an
`AttentionVariant`, which replaces the pure function inside `MultiHeadAttention`.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.cache import CacheSlot, append_to_cache
from transformer_jax.linear import Checked, Initializer, Linear, ModuleFactory
from transformer_jax.masks import Mask, as_array
from transformer_jax.options import GivenCount, GivenShare, Positive, nearest_divisor
from transformer_jax.positions import NO_TERMS, Bias, PositionTerms, bias_for, rotate
from transformer_jax.shapes import as_float, check_shapes
from transformer_jax.sites import show, site


def scaled_dot_product_attention(
    query: Array,
    key: Array,
    value: Array,
    mask: Array | None = None,
    bias: Array | None = None,
    *,
    scale: float | None = None,
    soft_cap: float | None = None,
    adjust: Callable[[Array], Array] = lambda weights: weights,
) -> Array:
    """Returns, for each query, the mean of the values, weighted by how well each key matches it.

    Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k) + bias) V.
    Vaswani et al. 2017, arXiv:1706.03762, equation 1. The softmax runs over the keys that the mask
    allows. A query without allowed keys gives exactly 0, with zero gradient.

    Args:
      query: [..., L, K].
      key: [..., M, K].
      value: [..., M, V]; V may differ from K.
      mask: [..., L, M] bool, True = may attend; broadcasts to the weights.
      bias: [..., L, M], added to the scores; -inf is allowed; broadcasts to the weights.
      scale: Factor applied to the products of queries and keys; 1 / sqrt(d_k) if None.
      soft_cap: Bound on the absolute values of the scaled products, as in attention_scores.
      adjust: Function applied to the weights before the mean is taken, e.g. dropout.

    Returns:
      [..., L, V] in the values' dtype, or float32 if they are integers; leading axes of query,
      key and value broadcast. If the last of them, the axis of heads, is H for the query and a
      divisor G of H for key and value, each key head serves H / G query heads.

    Raises:
      ValueError: The shapes disagree, or the mask is not bool; the message names the argument.
    """
    check_shapes(query=(query, "... L K"), key=(key, "... M K"), value=(value, "... M V"))
    weights_LM = attention_weights(query, key, mask, bias, scale=scale, soft_cap=soft_cap)
    return weighted_sum(adjust(weights_LM), value)


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

    The arguments and errors are those of scaled_dot_product_attention. The result is [..., L, M],
    float32 or wider; every row sums to 1, or is exactly 0 if fully masked.
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
    """Returns Q K^T / sqrt(d_k) + bias, with -inf where the mask is False.

    The arguments and errors are those of attention_weights. With `soft_cap` c, the scaled products
    become c tanh(product / c) before the bias is added, so that none exceeds c in absolute value
    (Gemma 2, arXiv:2408.00118, section 2).
    """
    check_shapes(query=(query, "... L K"), key=(key, "... M K"))
    shape = (*_leading_axes(query, key, "key"), query.shape[-2], key.shape[-2])
    _check_broadcasts(shape, mask=mask, bias=bias)
    if mask is not None and mask.dtype != jnp.bool_:
        raise ValueError(
            f"mask: expected bool, True = may attend, got {mask.dtype}; "
            "pass numbers that are to be added to the scores as `bias`"
        )
    wide = jnp.promote_types(query.dtype, jnp.float32)
    # Scaling the query costs L*K multiplications; scaling the scores would cost L*M.
    scaled_LK = query / math.sqrt(query.shape[-1]) if scale is None else query * scale
    scores_LM = _product("...LK,...MK->...LM", scaled_LK, key, preferred_element_type=wide)
    if soft_cap is not None:
        scores_LM = soft_cap * jnp.tanh(scores_LM / soft_cap)
    if bias is not None:
        scores_LM = scores_LM + bias.astype(wide)
    return scores_LM if mask is None else jnp.where(mask, scores_LM, -jnp.inf)


def masked_softmax(scores: Array) -> Array:
    """Returns the softmax over the last axis; rows of -inf give zeros, with zero gradient."""
    largest = jax.lax.stop_gradient(scores.max(-1, keepdims=True, initial=-jnp.inf))
    exponentials = jnp.exp(scores - jnp.where(jnp.isneginf(largest), 0, largest))
    total = exponentials.sum(-1, keepdims=True)
    return exponentials / jnp.where(total == 0, 1, total)


def weighted_sum(weights: Array, value: Array) -> Array:
    """[..., L, M] and [..., M, V] -> [..., L, V], in the dtype of the values; groups as above."""
    value = as_float(value)
    return _product("...LM,...MV->...LV", weights.astype(value.dtype), value)


def repeat_kv(array: Array, num_heads: int) -> Array:
    """[..., G, M, K] -> [..., H, M, K]: each key or value head serves H / G query heads."""
    served = num_heads // array.shape[-3]
    return array if served == 1 else jnp.repeat(array, served, axis=-3)


def _serves_groups(query: Array, key: Array) -> bool:
    """Returns whether each head of keys, [..., G, M, K], serves several of [..., H, L, K]."""
    if min(query.ndim, key.ndim) < 3:
        return False
    heads, groups = query.shape[-3], key.shape[-3]
    return 0 < groups < heads and heads % groups == 0


def _leading_axes(query: Array, key: Array, name: str) -> tuple[int, ...]:
    """Returns the axes [..., H] of a product; raises ValueError if there are none."""
    heads, has = query.shape[-3:-2], key.shape[:-2]
    groups = heads if _serves_groups(query, key) else has[-1:]
    try:
        return jnp.broadcast_shapes(query.shape[:-2], (*has[:-1], *groups))
    except ValueError:
        expected = f"axes that broadcast to {query.shape[:-2]}, or a divisor of its last"
        raise ValueError(f"{name}: expected leading {expected}, got {has}") from None


def _product(axes: str, left: Array, right: Array, **options: Any) -> Array:
    """Returns the jnp.einsum of two batches of matrices.

    The heads of a group become rows of one matrix, so that keys and values are not repeated. For a
    single query, the leading axes that both arrays share are merged into one. Without this, XLA on
    CPU copies all cached keys and values for each token: products over 24 arrays of 96 heads and
    1,024 positions took 282 ms instead of 59.
    """
    rows, shape = left.shape[-2], (*_leading_axes(left, right, "value"), left.shape[-2])
    if _serves_groups(left, right):
        served = rows * (left.shape[-3] // right.shape[-3])
        left = left.reshape(*left.shape[:-3], right.shape[-3], served, left.shape[-1])
    if rows == 1 and left.shape[:-2] == right.shape[:-2]:
        left, right = (a.reshape(math.prod(a.shape[:-2]), *a.shape[-2:]) for a in (left, right))
    made = jnp.einsum(axes, left, right, **options)
    return made.reshape(*shape, made.shape[-1])


def _check_broadcasts(shape: tuple[int, ...], **arrays: Array | None) -> None:
    """Raises ValueError if an array does not broadcast to the weights' `shape`, or enlarges it.

    With queries [B, L, K], a mask [B, 1, L, L] would apply the masks of all examples to each one.
    """
    for name, array in arrays.items():
        if array is None:
            continue
        axes = zip(reversed(array.shape), reversed(shape), strict=False)
        if not 2 <= array.ndim <= len(shape) or any(size not in (1, of) for size, of in axes):
            raise ValueError(
                f"{name}: expected [..., L={shape[-2]}, M={shape[-1]}], which broadcasts to the "
                f"shape of the weights {shape}, got {array.shape}"
            )


class MultiHeadAttention(Checked):
    """Multi-head attention: several attention heads in parallel, each with its own projections.

    MultiHead(X) = Concat(Z^1 ... Z^H) W_O with W_O in [H * V, D], which equals the sum over heads
    of Z^h W_O^h. Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. If there are fewer key-value
    heads than query heads, each serves a group of query heads: one gives multi-query attention
    (Shazeer 2019, arXiv:1911.02150), several give grouped-query attention (arXiv:2305.13245).

    Each projection is one matrix [D, H * K], whose initial values do not depend on `num_heads`.

    Attributes:
      num_heads: Number of query heads, H.
      num_kv_heads: Number of key-value heads, G, a divisor of H; H if None.
      head_dim: Number of query and key features per head, K; width / num_heads if None.
      value_dim: Number of value features per head, V; head_dim if None.
      use_bias: Whether the four projections have a bias.
      dropout_rate: Dropout rate of the attention weights in training.
      scale: Factor applied to the scores; 1 / sqrt(K) if None.
      variant: Factory of an AttentionVariant; scaled_dot_product_attention if None.
      query_key_norm: Factory of the norm applied to each head's queries and keys before the
        rotation (Henry et al. 2020, arXiv:2010.04245); no norm if None.
      values: Factory of an entry of VALUES, for self-attention; unchanged values if None.
      head_output: Factory of an entry of HEAD_OUTPUTS, for self-attention; unchanged if None.
      kernel_init: Initial values of the query and key kernels.
      value_init: Initial values of the value kernel; kernel_init if None.
      out_init: Initial values of the output kernel; kernel_init if None.
      dtype: Computation dtype; promoted from inputs and parameters if None.
    """

    num_heads: GivenCount
    num_kv_heads: GivenCount | None = None
    head_dim: GivenCount | None = None
    value_dim: GivenCount | None = None
    use_bias: bool = True
    dropout_rate: GivenShare = 0.0
    scale: float | None = None
    variant: ModuleFactory | None = None
    query_key_norm: ModuleFactory | None = None
    values: ModuleFactory | None = None
    head_output: ModuleFactory | None = None
    kernel_init: Initializer = nn.initializers.normal(0.02)
    value_init: Initializer | None = None
    out_init: Initializer | None = None
    dtype: DTypeLike | None = None

    @nn.compact
    def __call__(
        self,
        inputs: Array,
        memory: Array | None = None,
        *,
        mask: Array | Mask | None = None,
        terms: PositionTerms = NO_TERMS,
        slot: CacheSlot | None = None,
        layer: int | Array = 0,
        train: bool = False,
        context: Any = None,
    ) -> Array:
        """Attends from the inputs to the memory, or to the inputs themselves.

        Args:
          inputs: Input of the queries, [..., L, D].
          memory: Input of the keys and values, [..., M, D]; the inputs if None.
          mask: [..., L, M] bool, True = may attend, the same for all heads; or, with one axis more
            than the inputs, [..., H or 1, L, M]; or a Mask, made an array only if needed.
          terms: Position terms for attention.
          slot: Slot for the inputs' keys and values in the KV cache, whose capacity is then M.
          layer: Index of the block, for variants that differ by depth.
          train: Whether dropout is on; `apply` then needs rngs={'dropout': key}.
          context: Context of the block, for variants that read its tokens or its carry.

        Returns:
          [..., L, D].

        Raises:
          ValueError: Heads do not fit, a shape is wrong, or keys of a memory would be rotated.
        """
        if memory is not None and terms.rotation is not None:
            raise ValueError(
                "terms: expected no rotation with a memory; only self-attention can be rotated"
            )
        heads, (_, head_dim, value_dim) = self.num_heads, self._sizes(inputs.shape[-1])
        query_HLK = self._project("query", inputs, heads, head_dim, self.kernel_init)
        query_HLK = site(self, "query", self._placed("query", query_HLK, terms))
        dropout = nn.Dropout(self.dropout_rate, deterministic=not train)

        def adjust(weights_HLM: Array) -> Array:
            return dropout(site(self, "weights", weights_HLM))

        variant = (self.variant or SoftmaxAttention)(name="variant")
        # A variant that hides its weights need not form them; `show` below makes them if read.
        change = dropout if variant.hides_weights else adjust
        rate = self.dropout_rate if train else 0.0
        about = (inputs, mask, terms.bias, self.scale, change, rate, slot, layer, context)
        call = AttentionCall(*about)
        reads_cache = not variant.keeps_state(call)
        memory = inputs if memory is None else memory
        slot = slot if reads_cache else None
        key_GMK, value_GMV, new_GLV = self.keys_values(memory, terms, slot, call)
        if not variant.takes_groups:
            key_GMK, value_GMV = repeat_kv(key_GMK, heads), repeat_kv(value_GMV, heads)
        if reads_cache and variant.hides_weights:
            show(self, "weights", lambda: variant.weights(query_HLK, key_GMK, call))
        mixed_HLV = variant(query_HLK, key_GMK, value_GMV, call)
        if self.head_output is not None and context is not None:
            mixed_HLV = self.head_output(name="head_output")(mixed_HLV, new_GLV, call)
        mixed_LHV = jnp.swapaxes(site(self, "mixed", mixed_HLV), -3, -2)
        concatenated = mixed_LHV.reshape(*mixed_LHV.shape[:-2], heads * value_dim)
        out_init = self.out_init or self.kernel_init
        out = Linear(inputs.shape[-1], self.use_bias, out_init, self.dtype, name="out")
        return out(concatenated)

    @nn.nowrap
    def keys_values(
        self, memory: Array, terms: PositionTerms, slot: CacheSlot | None, call: "AttentionCall"
    ) -> tuple[Array, Array, Array]:
        """Returns all keys and values, [..., G, M, K and V], and the values of the new positions.

        `slot` is None if this call caches no keys and values.
        """
        groups, head_dim, value_dim = self._sizes(memory.shape[-1])
        value_init = self.value_init or self.kernel_init
        key_GMK = self._project("key", memory, groups, head_dim, self.kernel_init)
        new_GMV = self._project("value", memory, groups, value_dim, value_init)
        key_GMK = site(self, "key", self._placed("key", key_GMK, terms))
        if self.values is not None and call.context is not None:
            new_GMV = self.values(name="value_mix")(new_GMV, call)
        new_GMV = site(self, "value", new_GMV)
        key_GMK = append_to_cache(self, "keys", key_GMK, slot)
        return key_GMK, append_to_cache(self, "values", new_GMV, slot), new_GMV

    @nn.nowrap
    def _placed(self, name: str, heads: Array, terms: PositionTerms) -> Array:
        """Normalises and rotates the queries or keys of each head."""
        if self.query_key_norm is not None:
            heads = self.query_key_norm(name=f"{name}_norm")(heads)
        return heads if terms.rotation is None else rotate(heads, terms.rotation)

    @nn.nowrap
    def _project(self, name: str, inputs: Array, heads: int, size: int, init: Initializer) -> Array:
        """[..., L, D] -> [..., heads, L, size]."""
        linear = Linear(heads * size, self.use_bias, init, self.dtype, name=name)
        return split_heads(linear(inputs), heads)

    @nn.nowrap
    def _sizes(self, width: int) -> tuple[int, int, int]:
        """Returns the number of key-value heads, G, and the features per head, K and V."""
        heads, groups = self.num_heads, self.num_kv_heads or self.num_heads
        if self.head_dim is None and width % heads:
            raise ValueError(
                f"num_heads: expected a divisor of width {width}, got {heads}, nearest "
                f"{nearest_divisor(width, heads)}; or give head_dim"
            )
        if heads % groups:
            raise ValueError(
                f"num_kv_heads: expected a divisor of num_heads {heads}, got {groups}, nearest "
                f"{nearest_divisor(heads, groups)}"
            )
        head_dim = self.head_dim or width // heads
        return groups, head_dim, self.value_dim or head_dim


def split_heads(flat: Array, heads: int) -> Array:
    """[..., L, heads * features] -> [..., heads, L, features]."""
    features = flat.shape[-1] // heads  # reshape cannot infer it for an empty array
    return jnp.swapaxes(flat.reshape(*flat.shape[:-1], heads, features), -3, -2)


class AttentionCall(NamedTuple):
    """Inputs of an attention call besides queries, keys and values.

    Attributes:
      inputs: Input of the layer, [..., L, D].
      mask: Positions that may be attended to, or None for all.
      bias: Array added to the scores, or a function that returns it; see PositionTerms.
      scale: Factor applied to the scores; 1 / sqrt(K) if None.
      adjust: Function applied to the weights before the values are mixed: the site `weights`, then
        dropout; only dropout if the variant hides its weights.
      dropout_rate: Dropout rate of the weights; 0 outside training.
      slot: Slot of the inputs in the KV cache, or None without a cache.
      layer: Index of the block.
      context: Context of the block; None outside a block.
    """

    inputs: Array
    mask: Array | Mask | None = None
    bias: Bias | None = None
    scale: float | None = None
    adjust: Callable[[Array], Array] = lambda weights: weights
    dropout_rate: float = 0.0
    slot: CacheSlot | None = None
    layer: int | Array = 0
    context: Any = None

    def dense(self, query: Array, key: Array) -> tuple[Array | None, Array | None]:
        """Returns mask and bias, each None or an array that broadcasts to [..., H, L, M].

        Raises:
          ValueError: The shape of the mask is wrong.
        """
        shape, mask = (*query.shape[:-1], key.shape[-2]), as_array(self.mask)
        if mask is not None:
            with_heads = mask.ndim == len(shape)
            _check_broadcasts(shape if with_heads else (*shape[:-3], *shape[-2:]), mask=mask)
            mask = mask if with_heads else mask[..., None, :, :]
        return mask, bias_for(self.bias, query, repeat_kv(key, query.shape[-3]), mask)


class AttentionVariant(Checked):
    """Base class of the entries of ATTENTIONS, which replace scaled_dot_product_attention.

    The typed fields of a subclass are its options. A subclass either defines `weights`, which are
    then applied to the values, or mixes the values itself in `__call__`.

    Attributes:
      hides_weights: Whether `__call__` computes no weights [..., H, L, M]; `weights` still does.
      takes_groups: Whether keys and values arrive as [..., G, M, K], not repeated for H heads.
    """

    hides_weights: ClassVar[bool] = False
    takes_groups: ClassVar[bool] = False

    def keeps_state(self, call: AttentionCall) -> bool:
        """Returns whether the call keeps a recurrent state instead of earlier keys and values."""
        return False

    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """[..., H, L, K] and [..., H, M, K] -> [..., H, L, M]."""
        raise NotImplementedError

    def __call__(self, query: Array, key: Array, value: Array, call: AttentionCall) -> Array:
        """[..., H, L, K], [..., H, M, K] and [..., H, M, V] -> [..., H, L, V]."""
        weights_HLM = self.weights(query, key, call)
        expected = (*query.shape[:-1], key.shape[-2])
        if weights_HLM.shape != expected:  # user-defined code; a shape that broadcasts would pass
            raise ValueError(f"expected weights of shape {expected}, got {weights_HLM.shape}")
        return weighted_sum(call.adjust(weights_HLM), value)


class SoftmaxAttention(AttentionVariant):
    """Scaled dot-product attention: weights that sum to 1, softmax(Q K^T / sqrt(d_k) + bias).

    Vaswani et al. 2017, arXiv:1706.03762, equation 1.

    Attributes:
      soft_cap: Bends scores to soft_cap * tanh(score / soft_cap), as in Gemma 2; None disables it.
    """

    soft_cap: Positive | None = None
    takes_groups: ClassVar[bool] = True

    def weights(self, query: Array, key: Array, call: AttentionCall) -> Array:
        """[..., H, L, K] and [..., G, M, K] -> [..., H, L, M]."""
        options = {"scale": call.scale, "soft_cap": self.soft_cap}
        return attention_weights(query, key, *call.dense(query, key), **options)

    def __call__(self, query: Array, key: Array, value: Array, call: AttentionCall) -> Array:
        """[..., H, L, K], [..., G, M, K] and [..., G, M, V] -> [..., H, L, V]."""
        terms = call.dense(query, key)
        options: Any = {"scale": call.scale, "soft_cap": self.soft_cap, "adjust": call.adjust}
        return scaled_dot_product_attention(query, key, value, *terms, **options)


_VARIANTS = "transformer_jax.variants"
ATTENTIONS = {
    "softmax": SoftmaxAttention,
    "chunked": f"{_VARIANTS}.chunked:ChunkedAttention",
    "fused": f"{_VARIANTS}.fused:FusedAttention",
    "local": f"{_VARIANTS}.local:LocalAttention",
    "normalised": f"{_VARIANTS}.normalised:NormalisedAttention",
    "sink": f"{_VARIANTS}.weightings:SinkAttention",
    "sigmoid": f"{_VARIANTS}.weightings:SigmoidAttention",
    "linear": f"{_VARIANTS}.linear_attention:LinearAttention",
    "gated_delta": f"{_VARIANTS}.gated_delta:GatedDeltaRule",
    "forgetting": f"{_VARIANTS}.forgetting:ForgettingAttention",
    "talking_heads": f"{_VARIANTS}.weightings:TalkingHeadsAttention",
    "differential": f"{_VARIANTS}.weightings:DifferentialAttention",
    "diff_transformer": f"{_VARIANTS}.weightings:DiffTransformer",
}
"""Kinds of attention by name: classes, or "module:Class" strings that are imported when chosen."""

VALUES = {
    "none": None,
    "residual": f"{_VARIANTS}.values:ValueResidual",
    "embeddings": f"{_VARIANTS}.values:ValueEmbeddings",
}
"""Changes of the values of self-attention, by name; None for no change.

Each is called with the new values [..., G, L, V], before they are cached, and an AttentionCall.
"""

HEAD_OUTPUTS = {
    "none": None,
    "gated": f"{_VARIANTS}.head_outputs:GatedHeads",
    "exclusive": f"{_VARIANTS}.head_outputs:ExclusiveHeads",
}
"""Changes of the outputs of the heads of self-attention, by name; None for no change.

Each is called with outputs [..., H, L, V], the positions' values [..., G, L, V], an AttentionCall.
"""

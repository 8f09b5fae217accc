"""Attention: the pure function first, then the module that owns the projections."""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.layers.cache import CacheSlot, append_to_cache, keep_state, kept_state
from transformer_jax.layers.chunks import mix_in_chunks
from transformer_jax.layers.core import Core, serve_groups, weighted_sum, weights_by
from transformer_jax.layers.differential import DiffTransformer
from transformer_jax.layers.fused import FusedAttention
from transformer_jax.layers.linear import Initializer, Linear
from transformer_jax.layers.linear_cores import GatedDeltaRule, LinearAttention
from transformer_jax.layers.local import LocalAttention
from transformer_jax.layers.norms import NoNorm
from transformer_jax.layers.position_terms import NO_TERMS, PositionTerms, rotate
from transformer_jax.layers.weights import (
    DifferentialAttention,
    SigmoidAttention,
    SinkAttention,
    SoftmaxAttention,
    TalkingHeadsAttention,
    attention_weights,
)
from transformer_jax.masks import Mask
from transformer_jax.options import nearest_divisor
from transformer_jax.shapes import check_shapes
from transformer_jax.sites import is_looked_into, show, site


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
      mask: [..., L, M] bool, True = may attend; its leading axes broadcast to those of query and
        key, which have to have an axis of heads if the mask has one.
      bias: [..., L, M], added to the scores; -inf is allowed; broadcasts as the mask does.
    Returns:
      [..., L, V]; the leading axes of query, key and value broadcast.
    Raises:
      ValueError: the shapes disagree, or the mask is not bool; the text names the argument.
    """
    check_shapes(query=(query, "... L K"), key=(key, "... M K"), value=(value, "... M V"))
    weights_LM = attention_weights(query, key, mask, bias)
    return weighted_sum(weights_LM, value)


def _split(flat: Array, heads: int) -> Array:
    """[..., L, heads * features] -> [..., heads, L, features]."""
    features = flat.shape[-1] // heads  # reshape cannot infer it for an empty array
    return jnp.swapaxes(flat.reshape(*flat.shape[:-1], heads, features), -3, -2)


class MultiHeadAttention(nn.Module):
    """Several attentions side by side, each over its own projections, and one output matrix.

    MultiHead(X) = Concat(Z^1 ... Z^H) W_O with W_O in [H * d_v, D], which equals the sum over heads
    of Z^h W_O^h. Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2. With fewer key and value
    heads each serves a group of queries: one is multi-query attention (Shazeer 2019,
    arXiv:1911.02150), several are grouped-query attention (Ainslie et al. 2023, arXiv:2305.13245).

    Each projection is one matrix [D, H * K] whatever the number of heads, so the same seed draws
    the same values when only `num_heads` changes. Its sites are query, key, value, weights
    and mixed.

    Attributes:
      num_heads: heads, H.
      num_kv_heads: heads of keys and values, G, a divisor of H; H if not given.
      head_dim: query and key features of one head, K; width / num_heads if not given.
      value_dim: value features of one head, V; head_dim if not given.
      use_bias: whether the four projections have a bias.
      dropout_rate: share of the attention weights that is dropped in training.
      core: makes a row of ATTENTIONS: a module that turns queries and keys into weights, or a Core,
        which mixes the values itself.
      chunk: queries whose weights are made at once, see mix_in_chunks; None: all of them. A cache
        reads few at a time anyway.
      query_key_norm: makes the norm of each head's queries and of its keys, before the rotation
        (Henry et al. 2020, arXiv:2010.04245; as RMS norms in Qwen3).
      kernel_init: initial values of the query, key and value kernels.
      value_init: initial values of the value kernel; kernel_init if not given.
      out_init: initial values of the output kernel; kernel_init if not given.
      dtype: dtype of the computation; None takes that of inputs and parameters together.
    """

    num_heads: int
    num_kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    use_bias: bool = True
    dropout_rate: float = 0.0
    core: Callable[..., nn.Module] = SoftmaxAttention
    chunk: int | None = None
    query_key_norm: Callable[..., nn.Module] = NoNorm
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
        train: bool = False,
    ) -> Array:
        """Attends from the inputs to the memory, or to the inputs themselves.

        Args:
          inputs: [..., L, D], where the queries come from.
          memory: [..., M, D], where keys and values come from; the inputs if not given.
          mask: [..., L, M] bool, True = may attend, the same for all heads; or [..., H, L, M], or
            [..., 1, L, M] as Flax and Hugging Face make it, with one axis more than the inputs; or
            a Mask, rules and their places, which is made an array of where weights are.
          terms: what a position encoding gives to attention; a rotation needs as many inputs as
            rows of the memory.
          slot: where in a KV cache the inputs' keys and values go; M is then its capacity.
          train: whether dropout is on; then apply needs rngs={'dropout': key}.
        Returns:
          [..., L, D].
        Raises:
          ValueError: width is not a multiple of num_heads and no head_dim is given, num_kv_heads
            is no divisor of num_heads, or an argument's shape is wrong.
        """
        memory = inputs if memory is None else memory
        width = inputs.shape[-1]
        num_heads = self.num_heads
        head_dim, num_kv_heads = self._sizes(width)
        value_dim, value_init = self.value_dim or head_dim, self.value_init or self.kernel_init
        query = self._linear("query", num_heads * head_dim, self.kernel_init)
        key = self._linear("key", num_kv_heads * head_dim, self.kernel_init)
        value = self._linear("value", num_kv_heads * value_dim, value_init)
        query_HLK = _split(query(inputs), num_heads)
        key_GMK = _split(key(memory), num_kv_heads)
        value_GMV = _split(value(memory), num_kv_heads)
        query_HLK = self.query_key_norm(name="query_norm")(query_HLK)
        key_GMK = self.query_key_norm(name="key_norm")(key_GMK)
        if terms.rotation is not None:
            query_HLK, key_GMK = (rotate(array, terms.rotation) for array in (query_HLK, key_GMK))
        query_HLK, key_GMK = site(self, "query", query_HLK), site(self, "key", key_GMK)
        value_GMV = site(self, "value", value_GMV)
        core = self.core(name="weights_of")  # a parameter path of stored runs: never renamed
        arrays, drops = (query_HLK, key_GMK, value_GMV), train and self.dropout_rate > 0
        if isinstance(core, Core):
            gates = {name: self._gate(name, size, inputs) for name, size in core.gates.items()}
            mixed_HLV = self._mixed_by_core(core, arrays, gates, mask, terms, slot, drops)
        else:
            mixed_HLV = self._mixed_by_weights(core, arrays, mask, terms, slot, drops)
        mixed_LHV = jnp.swapaxes(site(self, "mixed", mixed_HLV), -3, -2)
        concatenated = mixed_LHV.reshape(*mixed_LHV.shape[:-2], num_heads * value_dim)
        return self._linear("out", width, self.out_init or self.kernel_init)(concatenated)

    def _mixed_by_weights(
        self,
        core: nn.Module,
        arrays: tuple[Array, Array, Array],
        mask: Array | Mask | None,
        terms: PositionTerms,
        slot: CacheSlot | None,
        drops: bool,
    ) -> Array:
        """Weighted sums of the values, by the weights that a core makes: [..., H, L, V]."""
        query_HLK, key_GMK, value_GMV = arrays
        key_GMK = append_to_cache(self, "keys", key_GMK, slot)
        value_GMV = append_to_cache(self, "values", value_GMV, slot)
        # To save memory: the same numbers, some queries at a time. The plain way follows.
        if (
            self.chunk is not None
            and slot is None
            and query_HLK.shape[-2] > self.chunk
            and not is_looked_into(self)  # as where somebody reads or changes the weights
        ):
            return mix_in_chunks(
                self._pure(core),
                query_HLK,
                key_GMK,
                value_GMV,
                size=self.chunk,
                mask=mask,
                bias=terms.bias,
                values=terms.values,
                drop=self._drop_by_chunk() if drops else None,
            )
        # layers/weights: scores, -inf where the mask hides, softmax.
        weights_HLM = site(self, "weights", weights_by(core, query_HLK, key_GMK, mask, terms.bias))
        kept_HLM = nn.Dropout(self.dropout_rate, deterministic=not drops)(weights_HLM)
        mixed_HLV = weighted_sum(kept_HLM, serve_groups(value_GMV, self.num_heads))
        if terms.values is not None:
            mixed_HLV += terms.values(kept_HLM).astype(mixed_HLV.dtype)
        return mixed_HLV

    def _mixed_by_core(
        self,
        core: Core,
        arrays: tuple[Array, Array, Array],
        gates: dict[str, Array],
        mask: Array | Mask | None,
        terms: PositionTerms,
        slot: CacheSlot | None,
        drops: bool,
    ) -> Array:
        """What a core makes of the values that mixes them itself: [..., H, L, V]."""
        if terms.values is not None:
            raise ValueError(
                f"position: {type(core).__name__} mixes values itself, to which vectors of "
                "distances could not be added"
            )
        if self.chunk is not None:
            raise ValueError(
                f"attention_chunk: {type(core).__name__} mixes values itself; expected None"
            )
        query_HLK, key_GMK, value_GMV = arrays
        keeps_state = slot is not None and not drops and core.keeps_state(mask)
        if not keeps_state:
            key_GMK = append_to_cache(self, "keys", key_GMK, slot)
            value_GMV = append_to_cache(self, "values", value_GMV, slot)
        mixed_HLV, state = core(
            query_HLK,
            key_GMK,
            value_GMV,
            mask=mask,
            bias=terms.bias,
            gates=gates,
            dropout=nn.Dropout(self.dropout_rate, deterministic=False) if drops else None,
            state=kept_state(self, 0, keeps_state),
        )
        keep_state(self, 0, keeps_state, state)
        if not keeps_state and hasattr(core, "weights"):
            seen = (core.weights, query_HLK, key_GMK, mask, terms.bias)
            show(self, "weights", functools.partial(weights_by, *seen))
        return mixed_HLV

    def _pure(self, core: nn.Module) -> Callable[..., Any]:
        """A core as a function, which loops may call; each chunk has a key of its own."""
        row, variables = core.clone(parent=None), core.variables
        key = self.make_rng("dropout") if self.has_rng("dropout") else None

        def weigh(first: Array | int, query: Array, keys: Array, **options: Any) -> Any:
            rngs = {} if key is None else {"dropout": jax.random.fold_in(key, first)}
            weights, sown = row.apply(
                variables, query, keys, **options, rngs=rngs, mutable=["losses"]
            )
            if jax.tree.leaves(sown):
                raise ValueError(
                    f"attention_chunk: {type(core).__name__} adds to the loss; expected None"
                )
            return weights

        return weigh

    def _drop_by_chunk(self) -> Callable[..., Any]:
        """From weights and their first query to those that are kept; each chunk draws its own."""
        key, dropout = self.make_rng("dropout"), nn.Dropout(self.dropout_rate, parent=None)

        def drop(weights: Array, first: Array | int) -> Any:
            own = jax.random.fold_in(key, first)
            return dropout.apply({}, weights, deterministic=False, rng=own)

        return drop

    def _linear(self, name: str, features: int, init: Initializer) -> Linear:
        """A learned map [..., D] -> [..., features]; nothing is drawn before it is used."""
        return Linear(features, self.use_bias, init, self.dtype, name=name)

    def _gate(self, name: str, features: int, inputs: Array) -> Array:
        """What a core reads of the inputs, [..., H, L, features]."""
        flat = self._linear(f"{name}_gate", self.num_heads * features, self.kernel_init)(inputs)
        return _split(flat, self.num_heads)

    def _sizes(self, width: int) -> tuple[int, int]:
        """Head size K and number of key and value heads G."""
        if self.head_dim is None and width % self.num_heads:
            raise ValueError(
                f"num_heads: expected a divisor of width {width}, got {self.num_heads}, nearest "
                f"{nearest_divisor(width, self.num_heads)}; or give head_dim"
            )
        num_kv_heads = self.num_kv_heads or self.num_heads
        if self.num_heads % num_kv_heads:
            raise ValueError(
                f"num_kv_heads: expected a divisor of num_heads {self.num_heads}, "
                f"got {num_kv_heads}, nearest {nearest_divisor(self.num_heads, num_kv_heads)}"
            )
        return self.head_dim or width // self.num_heads, num_kv_heads


ATTENTIONS = {
    "softmax": SoftmaxAttention,
    "fused": FusedAttention,
    "local": LocalAttention,
    "sink": SinkAttention,
    "sigmoid": SigmoidAttention,
    "linear": LinearAttention,
    "gated_delta": GatedDeltaRule,
    "talking_heads": TalkingHeadsAttention,
    "differential": DifferentialAttention,
    "diff_transformer": DiffTransformer,
}

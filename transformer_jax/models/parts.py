"""What all transformers here share: their fields, and a stack of blocks."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.layers.attention import MultiHeadAttention
from transformer_jax.layers.blocks import Block, ModuleFactory, Wiring
from transformer_jax.layers.cache import advance_cache, nan_on_overflow
from transformer_jax.layers.embeddings import TokenEmbedding
from transformer_jax.layers.initialisation import Initializers
from transformer_jax.layers.linear import Initializer, Linear
from transformer_jax.layers.parametrisation import Standard
from transformer_jax.layers.position_terms import PositionTerms
from transformer_jax.layers.projections import Projections
from transformer_jax.masks import Full, Mask, Places, Rule, Unmasked, self_attention_rule
from transformer_jax.models.families import FAMILIES, make_with_known_fields, row
from transformer_jax.options import Count, Natural, Positive, Share, Switch
from transformer_jax.shapes import check_shapes
from transformer_jax.sites import site

_LOOKED_AT = 256  # positions, to see whether a mask lets one look ahead


def add_positions(hidden: Array, terms: PositionTerms) -> Array:
    """Adds [..., L, D] what an encoding gives for the embeddings, if it gives anything."""
    return hidden if terms.embedding is None else hidden + terms.embedding.astype(hidden.dtype)


class Transformer(nn.Module):
    """The fields of every transformer, and the stack of blocks that they describe; abstract.

    Each family of components is a table; a field chooses a row by its name (or gives a class of
    your own that is like the rows), and `..._options` holds further fields of that row.

    Attributes:
      width: model width, D.
      depth: number of blocks.
      num_heads: attention heads, H; a divisor of width unless head_dim is given.
      num_kv_heads: heads of keys and values, G, a divisor of H; H if not given; 1 is multi-query
        attention.
      head_dim: features of one head, K; width / num_heads if not given.
      value_dim: features of one head's values, V; head_dim if not given.
      mlp_dim: features inside the feed-forward layer, F; if not given 4 * width, or 8/3 of the
        width where a gate makes it three maps.
      position: a row of POSITIONS.
      position_options: its fields.
      position_in_every_layer: whether what positions add to the embeddings is added again before
        each further block (Dehghani et al. 2019, arXiv:1807.03819, section 2.1).
      mixer: a row of MIXERS: what lets places exchange what they know.
      mixer_options: its fields.
      attention: a row of ATTENTIONS.
      attention_options: its fields.
      attention_scale: what scores are multiplied with; 1 / sqrt(head_dim) if not given.
      projections: a row of PROJECTIONS.
      query_key_norm: a row of NORMS, for the queries and the keys of each head.
      mask: a row of MASKS, for self-attention; causal is for an encoder, unmasked shows a decoder
        even the answers.
      mask_options: its arguments.
      feed_forward: a row of FEED_FORWARDS.
      feed_forward_options: its fields.
      activation: a row of ACTIVATIONS.
      norm: a row of NORMS.
      norm_options: its fields.
      norm_epsilon: what each norm adds before it takes the root.
      embedding_norm: whether a norm follows the sum of the embeddings, as in BERT and BART.
      wiring: a row of WIRINGS.
      wiring_options: its fields.
      initialisation: a row of INITIALISATIONS.
      initialisation_options: its arguments.
      parametrisation: a row of PARAMETRISATIONS.
      parametrisation_options: its fields.
      use_bias: whether projections, feed-forward maps and norms have a bias.
      dropout_rate: share dropped in training after the embedding, on the attention weights and
        after each branch.
      attention_dropout_rate: share of the attention weights alone; dropout_rate if not given.
      stochastic_depth: share of the examples for which the last block's branches are left out in
        training; earlier blocks have proportionally less (Huang et al. 2016, arXiv:1603.09382).
      init_std: deviation of the initial values.
      dtype: dtype of the computation, bfloat16 say; parameters, norms, softmax and logits stay
        float32. None takes the parameters' dtype.
    """

    width: Count = 128
    depth: Natural = 4
    num_heads: Count = 4
    num_kv_heads: Count | None = None
    head_dim: Count | None = None
    value_dim: Count | None = None
    mlp_dim: Count | None = None
    position: str | ModuleFactory = "learned"
    position_options: Mapping[str, Any] = FrozenDict()
    position_in_every_layer: Switch = False
    mixer: str | ModuleFactory = "attention"
    mixer_options: Mapping[str, Any] = FrozenDict()
    attention: str | ModuleFactory = "softmax"
    attention_options: Mapping[str, Any] = FrozenDict()
    attention_scale: Positive | None = None
    projections: str | Projections = "separate"
    query_key_norm: str | ModuleFactory = "none"
    mask: str | Callable[..., Rule | Array | None] = "full"
    mask_options: Mapping[str, Any] = FrozenDict()
    feed_forward: str | Callable[..., nn.Module | None] = "mlp"
    feed_forward_options: Mapping[str, Any] = FrozenDict()
    activation: str | Callable[[Array], Array] = "gelu"
    norm: str | ModuleFactory = "layer_norm"
    norm_options: Mapping[str, Any] = FrozenDict()
    norm_epsilon: Positive = 1e-5
    embedding_norm: Switch = False
    wiring: str | Callable[..., Wiring] = "pre"
    wiring_options: Mapping[str, Any] = FrozenDict()
    initialisation: str | Callable[..., Initializers] = "depth_scaled"
    initialisation_options: Mapping[str, Any] = FrozenDict()
    parametrisation: str | Callable[..., Standard] = "standard"
    parametrisation_options: Mapping[str, Any] = FrozenDict()
    use_bias: Switch = True
    dropout_rate: Share = 0.0
    attention_dropout_rate: Share | None = None
    stochastic_depth: Share = 0.0
    init_std: Positive = 0.02
    dtype: DTypeLike | None = None

    # ---- rows

    def build(self, family: str, **known: Any) -> Any:
        """Makes the component that the field `family` names: `build("position")`, say.

        Its class gets those of the model's sizes and of `known` that it declares, and the options
        that the user gave it.

        Raises:
          ValueError: no such row.
        """
        return self._factory(family, getattr(self, f"{family}_options"), **known)()

    def _factory(self, family: str, options: Mapping[str, Any], **known: Any) -> ModuleFactory:
        """What makes that component, in whichever module it is called."""
        known = self._sizes() | known
        return functools.partial(make_with_known_fields, self._row(family), known, **options)

    def _row(self, family: str) -> Any:
        return row(FAMILIES[family], getattr(self, family), family)

    def _sizes(self) -> dict[str, Any]:
        head_dim = self.head_dim or self.width // self.num_heads
        named = ("width", "depth", "num_heads", "use_bias")
        return {name: getattr(self, name) for name in named} | {
            "head_dim": head_dim,
            "scale": self._scale(head_dim),
            "epsilon": self.norm_epsilon,
        }

    def _scale(self, head_dim: int) -> float | None:
        if self.attention_scale is not None:
            return self.attention_scale
        grows = self.head_dim is None
        return self.width_scaling.scale(head_dim, grows, self.width)

    @property
    def width_scaling(self) -> Standard:
        """The row `parametrisation`: what is scaled by the width."""
        return self._row("parametrisation")(**self.parametrisation_options)

    @property
    def initializers(self) -> Initializers:
        """Initial values by what a parameter is for."""
        return self.build(
            "initialisation",
            std=self.init_std,
            kernel_gain=self.width_scaling.kernel_gain(self.width),
            branch_gain=self.build("wiring").branch_gain,
        )

    # ---- parts

    @property
    def embedding_init(self) -> Initializer:
        """Initial values of embeddings and of kernels outside the blocks."""
        return self.initializers.embedding

    def make_embedding(self, vocab_size: int, name: str | None = None) -> TokenEmbedding:
        """Makes a token embedding of this width."""
        return TokenEmbedding(vocab_size, self.width, self.embedding_init, self.dtype, name=name)

    def make_output(self, features: int, use_bias: bool) -> Linear:
        """Makes the map to logits, whose sums are float32 or wider whatever the dtype."""
        wide = jnp.promote_types(self.dtype or jnp.float32, jnp.float32)
        return Linear(features, use_bias, self.embedding_init, self.dtype, wide)

    def scale_for_logits(self, hidden: Array) -> Array:
        """Multiplies by the parametrisation's gain what the output layer reads, [..., D]."""
        gain = self.width_scaling.logits_gain(self.width)
        return hidden if gain == 1 else hidden * gain

    @property
    def make_norm(self) -> ModuleFactory:
        """Makes a norm, in whichever module it is called."""
        return self._factory("norm", self.norm_options)

    def run_blocks(
        self,
        embedded: Array,
        positions: Array | None,
        causal: bool,
        segments: Array | None,
        train: bool,
        memory: Array | None = None,
        memory_mask: Array | None = None,
        **known: Any,
    ) -> Array:
        """Adds positions to what is embedded and sends it through the blocks.

        To be called once, inside the compact `__call__` of a model, whose parameters these are.

        Args:
          embedded: [..., L, D].
          positions: [..., L] int; None counts from 0, or on from what a cache holds.
          causal: whether no position may look ahead.
          segments: [..., L] int, positions of other segments are not seen, nor is 0; None sees all.
          train: whether dropout is on.
          memory: [..., M, D], what cross-attention looks at, in blocks that then have one.
          memory_mask: [..., L, M] bool.
          **known: what a position encoding may want to know, `max_length` say.
        Returns:
          [..., L, D], normalised. Behind a cache: NaN once more tokens were read than it holds,
          which are max_length, or those of one call where that is not known.
        Raises:
          ValueError: a cache is asked for where a position sees what comes after it, or with more
            than one text.
        """
        length = embedded.shape[-2]
        slot = advance_cache(self, length, known.get("max_length", length)) if causal else None
        if slot is not None and (positions is not None or segments is not None):
            raise ValueError("cache: it holds one text, from 0 on; give no positions or segments")
        if slot is not None and not self.hides_what_follows():
            raise ValueError(f"cache: in mask {self.mask!r} what is read sees what comes after it")
        if positions is None:
            positions = jnp.arange(length if slot is None else slot.capacity)
        encoding = self.build("position", bidirectional=not causal, name="positions", **known)
        terms = encoding(positions)
        mask = self.attention_mask(positions, causal, segments)
        if slot is not None:  # made for all places of the cache; asked about the new tokens
            assert mask is not None  # it hides what follows, as was seen
            terms, mask = slot.rows_of(terms), mask.of_queries(slot.first, slot.count)
        hidden_LD = add_positions(embedded, terms)
        if self.embedding_norm:
            hidden_LD = self.make_norm(name="embedding_norm")(hidden_LD)
        hidden_LD = nn.Dropout(self.dropout_rate, deterministic=not train)(hidden_LD)
        hidden_LD = site(self, "embedded", hidden_LD)
        seen = {"mask": mask, "memory_mask": memory_mask, "terms": terms, "slot": slot}
        wiring, initializers = self.build("wiring"), self.initializers
        for layer in range(self.depth):
            block = Block(
                attention=self._attention_factory(initializers),
                mixer=self._mixer_factory(initializers),
                feed_forward=self._feed_forward_factory(initializers),
                norm=self.make_norm,
                wiring=wiring,
                dropout_rate=self.dropout_rate,
                branch_dropout_rate=self.stochastic_depth * (layer + 1) / self.depth,
                name=f"block_{layer}",
            )
            if layer and self.position_in_every_layer:
                hidden_LD = add_positions(hidden_LD, terms)
            hidden_LD = block(hidden_LD, memory, train=train, **seen)
        hidden_LD = self.make_norm(name="final_norm")(hidden_LD) if wiring.final_norm else hidden_LD
        return site(self, "hidden", nan_on_overflow(hidden_LD, slot))

    def can_cache(self) -> bool:
        """Whether what a position has computed surely stays right when tokens follow it.

        Its mask hides them, and all rows are this package's: a feed-forward layer of the user's may
        mix positions too, for which a cache keeps nothing.
        """
        own = [name for name, rows in FAMILIES.items() if self._row(name) not in rows.values()]
        return not own and self.hides_what_follows()

    def hides_what_follows(self) -> bool:
        """Whether no position sees what comes after it, among the first 256."""
        with jax.ensure_compile_time_eval():
            mask = self.attention_mask(jnp.arange(_LOOKED_AT), True, None)
            return mask is not None and not bool(jnp.triu(mask.dense(), 1).any())

    def attention_mask(self, positions: Array, causal: bool, segments: Array | None) -> Mask | None:
        """Returns what self-attention may see, a rule and its places; None: nothing is hidden.

        Args:
          positions: [..., L] int.
          causal: whether no position may look ahead.
          segments: [..., L] int, positions of other segments are not seen, nor is 0; None sees all.
        """
        rule = self_attention_rule(self._row("mask"), self.mask_options, causal)
        if segments is None and type(rule) in (Full, Unmasked):
            return None
        places = Places(jnp.arange(positions.shape[-1]), positions, segments)
        return Mask(places, places, rule)

    def _mixer_factory(self, initializers: Initializers) -> ModuleFactory | None:
        """What takes the place of self-attention; None: nothing does."""
        if self._row("mixer") is MultiHeadAttention:
            if self.mixer_options:
                raise ValueError(
                    "mixer_options: attention has fields of the model; expected none, got "
                    f"{dict(self.mixer_options)}"
                )
            return None
        return self._factory(
            "mixer",
            self.mixer_options,
            kernel_init=initializers.value,
            out_init=initializers.output,
            dtype=self.dtype,
        )

    def _attention_factory(self, initializers: Initializers) -> ModuleFactory:
        takes = inspect.signature(self._row("attention")).parameters
        if self._sizes()["scale"] is not None and "scale" not in takes:
            raise ValueError(f"attention_scale: {self.attention} attention has no scale")
        own = self.attention_dropout_rate
        dropped = self.dropout_rate if own is None else own
        return functools.partial(
            MultiHeadAttention,
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
            value_dim=self.value_dim,
            use_bias=self.use_bias,
            dropout_rate=dropped,
            core=self._factory(
                "attention", self.attention_options, kernel_init=initializers.embedding
            ),
            projections=self._row("projections"),
            query_key_norm=self._factory("query_key_norm", {}),
            kernel_init=initializers.query_key,
            value_init=initializers.value,
            out_init=initializers.output,
            dtype=self.dtype,
        )

    def _feed_forward_factory(self, initializers: Initializers) -> Callable[..., nn.Module | None]:
        return self._factory(
            "feed_forward",
            self.feed_forward_options,
            mlp_dim=self.mlp_dim,
            activation=self._row("activation"),
            kernel_init=initializers.value,
            out_init=initializers.output,
            dtype=self.dtype,
        )


class Stack(Transformer):
    """The blocks alone, with positions and final norm: one half of an encoder–decoder."""

    @nn.compact
    def __call__(
        self, embedded: Array, positions: Array | None, *arguments: Any, **known: Any
    ) -> Array:
        """[..., L, D] -> [..., L, D]; the arguments are those of `run_blocks`."""
        return self.run_blocks(embedded, positions, *arguments, **known)


def shared_fields(model: Transformer) -> dict[str, Any]:
    """Returns what a model hands to the stacks that it is made of."""
    names = dataclasses.fields(cast(Any, Stack))
    own = [field.name for field in names if field.name not in ("parent", "name")]
    return {name: getattr(model, name) for name in own}


def check_tokens(max_length: int, tokens: Array, **alike: Array | None) -> None:
    """Refuses an input that is too long, or arrays [..., L] that do not go with it.

    Args:
      max_length: longest input.
      tokens: [..., L], or what stands for them.
      **alike: name -> [..., L] or None.
    Raises:
      ValueError: naming the argument.
    """
    length = tokens.shape[-1]
    if length > max_length:
        raise ValueError(f"tokens: length {length} is beyond max_length {max_length}")
    for name, array in alike.items():
        if array is not None:
            check_shapes(tokens=(tokens, "... L"), **{name: (array, "... L")})
            axes = zip(reversed(array.shape), reversed(tokens.shape), strict=False)
            if array.ndim > tokens.ndim or any(size not in (1, of) for size, of in axes):
                raise ValueError(
                    f"{name}: expected what broadcasts to {tokens.shape}, got {array.shape}"
                )

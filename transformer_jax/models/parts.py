"""What all transformers here share: their fields, and a stack of blocks."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, Literal, cast

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.core import FrozenDict
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.layers.blocks import Block, ModuleFactory, Wiring
from transformer_jax.layers.cache import CacheSlot, advance_cache, nan_on_overflow
from transformer_jax.layers.embeddings import TokenEmbedding
from transformer_jax.layers.initialisation import Initializers
from transformer_jax.layers.linear import Initializer, Linear, logits_layer
from transformer_jax.layers.parametrisation import Standard
from transformer_jax.layers.position_terms import PositionTerms, add_positions
from transformer_jax.layers.remat import Policy
from transformer_jax.layers.skips import Skip, Skips
from transformer_jax.masks import Full, Mask, Places, Rule, Unmasked, self_attention_rule
from transformer_jax.models.block import make_block, terms_of_type
from transformer_jax.models.families import FAMILIES, make_with_known_fields, row
from transformer_jax.models.layer_list import Layer, layer_list
from transformer_jax.models.scanned import run_block, scan_blocks
from transformer_jax.sites import is_looked_into, site

_LOOKED_AT = 256  # positions, to see whether a mask lets one look ahead


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
      mixer: a row of MIXERS: what lets places exchange what they know.
      mixer_options: its fields.
      attention: a row of ATTENTIONS.
      attention_options: its fields.
      attention_scale: what scores are multiplied with; 1 / sqrt(head_dim) if not given.
      attention_chunk: queries whose weights are made at once, to save memory; None: all.
      query_key_norm: a row of NORMS, for the queries and the keys of each head.
      mask: a row of MASKS: what self-attention hides beside the future, which a decoder hides
        anyway: full nothing more. causal is for an encoder, prefix and unmasked show the future.
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
      parametrisation: a row of PARAMETRISATIONS: how initial values, rates and logits go with the
        width; standard, or muP.
      parametrisation_options: its fields.
      use_bias: whether projections, feed-forward maps and norms have a bias.
      dropout_rate: share dropped in training after the embedding, on the attention weights and
        after each branch.
      attention_dropout_rate: share of the attention weights alone; dropout_rate if not given.
      layers: letters of layer types, one for each block and repeated over the depth, "LLLG" say;
        what is different stands in `layer_types.L`; empty: all blocks are alike.
      layer_types: letter -> fields that these blocks have otherwise, of LAYER_FIELDS; a letter
        without any is the model as it is.
      distinct_blocks: blocks with parameters of their own, which the others share; None: all. 1 is
        ALBERT's (Lan et al. 2020, arXiv:1909.11942, section 3.1) and the universal transformer's.
      sharing: in a cycle (1 2 3 1 2 3) or in sequence (1 1 2 2 3 3), as Takase and Kiyono 2021 call
        them (arXiv:2104.06022, section 2).
      skips: a row of SKIPS: which earlier streams a block reads beside its own.
      skips_options: its fields.
      scan_layers: whether blocks are a loop of the compiled program, of which a deep model's is
        shorter; to save memory it takes `remat` too. Caches and captured sites have blocks one by
        one, as without it.
      remat: a row of REMATS: what a training step keeps of each block for its backward pass.
      remat_options: its arguments.
      stochastic_depth: share of the examples for which the last block's branches are left out in
        training; earlier blocks have proportionally less (Huang et al. 2016, arXiv:1603.09382).
      init_std: deviation of the initial values.
      dtype: dtype of the computation, bfloat16 say; parameters, norms, softmax and logits stay
        float32. None takes the parameters' dtype.
    """

    width: int = 128
    depth: int = 4
    num_heads: int = 4
    num_kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    mlp_dim: int | None = None
    position: str | ModuleFactory = "learned"
    position_options: Mapping[str, Any] = FrozenDict()
    mixer: str | ModuleFactory = "attention"
    mixer_options: Mapping[str, Any] = FrozenDict()
    attention: str | ModuleFactory = "softmax"
    attention_options: Mapping[str, Any] = FrozenDict()
    attention_scale: float | None = None
    attention_chunk: int | None = None
    query_key_norm: str | ModuleFactory = "none"
    mask: str | Callable[..., Rule | Array | None] = "full"
    mask_options: Mapping[str, Any] = FrozenDict()
    feed_forward: str | Callable[..., nn.Module | None] = "mlp"
    feed_forward_options: Mapping[str, Any] = FrozenDict()
    activation: str | Callable[[Array], Array] = "gelu"
    norm: str | ModuleFactory = "layer_norm"
    norm_options: Mapping[str, Any] = FrozenDict()
    norm_epsilon: float = 1e-5
    embedding_norm: bool = False
    wiring: str | Callable[..., Wiring] = "pre"
    wiring_options: Mapping[str, Any] = FrozenDict()
    initialisation: str | Callable[..., Initializers] = "depth_scaled"
    initialisation_options: Mapping[str, Any] = FrozenDict()
    parametrisation: str | Callable[..., Standard] = "standard"
    parametrisation_options: Mapping[str, Any] = FrozenDict()
    layers: str = ""
    layer_types: Mapping[str, Mapping[str, Any]] = FrozenDict()
    distinct_blocks: int | None = None
    sharing: Literal["cycle", "sequence"] = "cycle"
    skips: str | Callable[..., Skips] = "none"
    skips_options: Mapping[str, Any] = FrozenDict()
    scan_layers: bool = False
    remat: str | Callable[..., Policy | None] = "none"
    remat_options: Mapping[str, Any] = FrozenDict()
    use_bias: bool = True
    dropout_rate: float = 0.0
    attention_dropout_rate: float | None = None
    stochastic_depth: float = 0.0
    init_std: float = 0.02
    dtype: DTypeLike | None = None

    # ---- rows

    def build(self, family: str, **known: Any) -> Any:
        """Makes the component that the field `family` names: `build("position")`, say.

        Its class gets those of the model's sizes and of `known` that it declares, and the user's
        options: with norm="layer_norm" it is LayerNorm(epsilon=..., **norm_options).

        Raises:
          ValueError: no such row.
        """
        return self.factory(family, **known)()

    def factory(self, family: str, **known: Any) -> ModuleFactory:
        """Returns what makes that component, in whichever module it is called."""
        known, options = self.sizes() | known, getattr(self, f"{family}_options", {})
        return functools.partial(make_with_known_fields, self.row_of(family), known, **options)

    def row_of(self, family: str) -> Any:
        """Returns the row that a field names, or the user's own in its place."""
        return row(FAMILIES[family], getattr(self, family), family)

    def sizes(self) -> dict[str, Any]:
        """Returns what rows may want to know of the model, by name."""
        head_dim = self.head_dim or self.width // self.num_heads
        scale = self.attention_scale
        if scale is None:
            scale = self.width_scaling.scale(head_dim, self.head_dim is None, self.width)
        named = ("width", "depth", "num_heads", "use_bias")
        return {name: getattr(self, name) for name in named} | {
            "head_dim": head_dim,
            "value_dim": self.value_dim,
            "scale": scale,
            "epsilon": self.norm_epsilon,
            "side": getattr(self, "side", ""),
        }

    @property
    def width_scaling(self) -> Standard:
        """The row `parametrisation`: what is scaled by the width."""
        # Not by `build`, which asks sizes(), which asks this.
        return self.row_of("parametrisation")(**self.parametrisation_options)

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
        return logits_layer(features, use_bias, self.embedding_init, self.dtype)

    def scale_for_logits(self, hidden: Array) -> Array:
        """Multiplies by the parametrisation's gain what the output layer reads, [..., D]."""
        gain = self.width_scaling.logits_gain(self.width)
        return hidden if gain == 1 else hidden * gain

    @property
    def make_norm(self) -> ModuleFactory:
        """Makes a norm, in whichever module it is called."""
        return self.factory("norm")

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
          [..., L, D], normalised. With a KV cache: NaN once more tokens were read than it holds,
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
            masks = ", ".join(sorted({repr(model.mask) for model in self.by_type().values()}))
            raise ValueError(f"cache: in mask {masks} what is read sees what comes after it")
        if positions is None:
            positions = jnp.arange(length if slot is None else slot.capacity)
        known, models = {"bidirectional": not causal, **known}, self.by_type()
        terms, inputs = self._inputs_by_type(models, positions, segments, slot, known)
        hidden_LD = add_positions(embedded, terms)
        if self.embedding_norm:
            hidden_LD = self.make_norm(name="embedding_norm")(hidden_LD)
        hidden_LD = nn.Dropout(self.dropout_rate, deterministic=not train)(hidden_LD)
        hidden_LD = site(self, "embedded", hidden_LD)
        policy = self.build("remat") if train else None
        layers, done = self.layer_list(), 0
        if self.scan_layers and slot is None and not is_looked_into(self):
            every_block = {"memory": memory, "memory_mask": memory_mask, "train": train}
            hidden_LD, done = scan_blocks(self, models, inputs, hidden_LD, policy, **every_block)
        streams: list[Array] = []  # before each block
        for number, layer in enumerate(layers[done:], done):
            streams.append(hidden_LD)
            if layer.reads:
                skip = Skip(self.build("skips").initial, name=f"skip_{number}")
                hidden_LD = skip(hidden_LD, [streams[stream] for stream in layer.reads])
            block = make_block(models[layer.type], number, self._make_for(number, layer))
            options: dict[str, Any] = {"memory_mask": memory_mask, "slot": slot, "train": train}
            options |= inputs[layer.type]
            hidden_LD = run_block(block, hidden_LD, memory, policy, **options)
        ends = self.build("wiring").final_norm
        hidden_LD = self.make_norm(name="final_norm")(hidden_LD) if ends else hidden_LD
        return site(self, "hidden", nan_on_overflow(hidden_LD, slot))

    # ---- layers

    def layer_list(self) -> tuple[Layer, ...]:
        """Returns what each block is: its type, whose parameters it has, which streams it reads."""
        return layer_list(
            self.depth,
            self.layers,
            self.layer_types,
            self.distinct_blocks,
            self.sharing,
            self.build("skips").reads,
        )

    def by_type(self) -> dict[str, "Transformer"]:
        """Returns for each type of layer a model all of whose blocks are of it.

        That is the model itself, for a type that changes nothing. None is applied: they hold the
        fields by which make_block and attention_mask make a block of the type.
        """
        fields: dict[str, Any] = {**shared_fields(self), "layers": "", "layer_types": FrozenDict()}

        def with_fields(changes: Mapping[str, Any]) -> Transformer:
            if not changes:
                return self
            # Another row has other options than the model's own.
            names = (f"{name}_options" for name in changes)
            fresh: dict[str, Any] = {name: FrozenDict() for name in names if name in fields}
            return Stack(**{**fields, **fresh, **changes}, parent=None)

        return {layer.type: with_fields(layer.fields) for layer in self.layer_list()}

    def _make_for(self, number: int, layer: Layer) -> Callable[..., Block]:
        """The class of a block; one that shares parameters reads its owner's."""
        if layer.owner == number:
            return Block
        owned = self.variables["params"][f"block_{layer.owner}"]
        return nn.map_variables(Block, "params", trans_in_fn=lambda _: {"params": owned})

    def _inputs_by_type(
        self,
        models: Mapping[str, "Transformer"],
        positions: Array,
        segments: Array | None,
        slot: CacheSlot | None,
        known: Mapping[str, Any],
    ) -> tuple[PositionTerms, dict[str, dict[str, Any]]]:
        """The model's position terms, and terms and mask of each type of layer's attention."""
        terms = self.build("position", name="positions", **known)(positions)
        inputs: dict[str, dict[str, Any]] = {
            letter: {
                "terms": terms_of_type(letter, model, self, terms, positions, known),
                "mask": model.attention_mask(positions, not known["bidirectional"], segments),
            }
            for letter, model in models.items()
        }
        acts_inside = terms.rotation is not None or terms.bias is not None
        if inputs and acts_inside and all(one["terms"] is not terms for one in inputs.values()):
            raise ValueError(
                f"position: no layer has {self.position!r}; expected one that a layer has"
            )
        if slot is None:
            return terms, inputs
        rows = slot.rows_of(terms)  # made for all places of the cache; asked about the new tokens
        for one in inputs.values():
            one["terms"] = rows if one["terms"] is terms else slot.rows_of(one["terms"])
            one["mask"] = one["mask"].of_queries(slot.first, slot.count)
        return rows, inputs

    def can_cache(self) -> bool:
        """Whether what a position has computed surely stays right when tokens follow it.

        Its mask hides them, and all rows are this package's: a feed-forward layer of the user's may
        mix positions too, for which a cache keeps nothing.
        """
        all_ours = all(
            model.row_of(name) in rows.values()
            for model in self.by_type().values()
            for name, rows in FAMILIES.items()
        )
        return all_ours and self.hides_what_follows()

    def hides_what_follows(self) -> bool:
        """Whether no position sees what comes after it, among the first 256."""

        def hides(model: Transformer) -> bool:
            mask = model.attention_mask(jnp.arange(_LOOKED_AT), True, None)
            return mask is not None and not bool(jnp.triu(mask.dense(), 1).any())

        with jax.ensure_compile_time_eval():
            return all(map(hides, self.by_type().values()))

    def attention_mask(self, positions: Array, causal: bool, segments: Array | None) -> Mask | None:
        """Returns what self-attention may see, a rule and its places; None: nothing is hidden.

        Args:
          positions: [..., L] int.
          causal: whether no position may look ahead.
          segments: [..., L] int, positions of other segments are not seen, nor is 0; None sees all.
        """
        rule = self_attention_rule(self.row_of("mask"), self.mask_options, causal)
        if segments is None and type(rule) in (Full, Unmasked):
            return None
        places = Places(jnp.arange(positions.shape[-1]), positions, segments)
        return Mask(places, places, rule)


class Stack(Transformer):
    """The blocks alone, with positions and final norm: one half of an encoder–decoder.

    Attributes:
      side: which half, encoder or decoder.
    """

    side: str = ""

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
    return {name: getattr(model, name) for name in own if hasattr(model, name)}

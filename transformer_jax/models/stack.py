"""From options to modules: the stack of blocks, and the base class of all transformers.

`block_specs` resolves the options of a model into one specification per block; `Stack` sends the
residual stream through the blocks. Names of variants become classes only here.
"""

import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Self, get_type_hints

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, errors

from transformer_jax.attention import AttentionVariant, MultiHeadAttention
from transformer_jax.blocks import Block, Carry, Context
from transformer_jax.cache import advance_cache, nan_on_overflow
from transformer_jax.feedforward import no_feed_forward
from transformer_jax.initialisation import Initializers, Standard
from transformer_jax.linear import (
    Checked,
    Initializer,
    Linear,
    ModuleFactory,
    TokenEmbedding,
    logits_layer,
)
from transformer_jax.masks import Full, Mask, Places, Unmasked, self_attention_rule
from transformer_jax.model_options import ModelOptions
from transformer_jax.norms import NoNorm
from transformer_jax.options import FrozenOptions, Variant, check_values, entry_of
from transformer_jax.positions import PositionTerms, Rotation, Sizes, add_positions, of_queries
from transformer_jax.shapes import as_int32
from transformer_jax.sites import site

OPTIONS = tuple(field.name for field in dataclasses.fields(ModelOptions))
_CHECKED = 256  # number of positions for which a mask is checked for looking ahead

SKIPS = {
    "none": None,
    "mirrored": "transformer_jax.variants.skips:MirroredSkips",
    "embedding": "transformer_jax.variants.skips:EmbeddingSkips",
    "dense": "transformer_jax.variants.skips:DenseSkips",
}
"""Skips by name: the earlier streams that each block reads; see variants/skips.py."""

STEMS = {"none": None, "smear": "transformer_jax.variants.convolutions:Smear"}
"""Changes of the embedded input [..., L, D] of a stack, given a Context, by name."""

HEADS = {
    "none": None,
    "parallel": "transformer_jax.variants.prediction_heads:ParallelHeads",
    "sequential": "transformer_jax.variants.prediction_heads:SequentialHeads",
}
"""Heads that predict further tokens in training, by name; see variants/prediction_heads.py."""

FAMILIES: dict[str, Variant] = {
    family: mark
    for family, kind in get_type_hints(ModelOptions, include_extras=True).items()
    for mark in getattr(kind, "__metadata__", ())
    if isinstance(mark, Variant)
}
"""Families of variants, by the name of the option that chooses from each."""


def variant(options: ModelOptions, family: str) -> Any:
    """Returns the variant that an option names, or the option itself if it is a class or function.

    Raises:
      ValueError: There is no such name; the message lists the valid names.
    """
    choice = getattr(options, family)
    if not isinstance(choice, str):
        return choice
    table = FAMILIES[family].entries()
    if choice not in table:
        raise ValueError(f"{family}: expected one of {', '.join(table)}, got {choice!r}")
    return entry_of(table, choice)


def own_options(options: ModelOptions, family: str) -> dict[str, Any]:
    """Returns, by name, the given options that belong to the chosen variant of a family.

    Raises:
      ValueError: No variant of the family has such an option.
    """
    chosen, section = variant(options, family), FAMILIES[family].section.removeprefix("model.")
    if not (stated := getattr(options, section)):
        return {}
    if not isinstance(getattr(options, family), str):
        return {} if family == "query_key_norm" else dict(stated)  # norms share their options
    known = {} if chosen is None else inspect.signature(chosen).parameters
    if others := stated.keys() - known.keys():  # a different variant of the family may have them
        from transformer_jax.declarations import refuse_unknown

        refuse_unknown(section, others, FAMILIES[family].entries())
    own = {name: value for name, value in stated.items() if name in known}
    if own:
        check_values(chosen, own)
    return own


def factory(options: ModelOptions, family: str, **arguments: Any) -> ModuleFactory:
    """Returns a factory of the variant that the option `family` names, with its own options."""
    return functools.partial(variant(options, family), **arguments, **own_options(options, family))


def made(options: ModelOptions, family: str, **arguments: Any) -> Any:
    """Returns an instance of the variant that an option names."""
    return factory(options, family, **arguments)()


def optional(options: ModelOptions, family: str) -> ModuleFactory | None:
    """Returns a factory of the variant that an option names, or None for one that does nothing."""
    return None if variant(options, family) is None else factory(options, family)


def norm_factory(options: ModelOptions, family: str = "norm") -> ModuleFactory:
    """Returns a factory of norms for the stream, or for queries and keys."""
    return factory(options, family, use_bias=options.use_bias)


def scaling(options: ModelOptions) -> Standard:
    """Returns the parametrisation, which sets how values scale with the width."""
    return made(options, "parametrisation")


def initializers(options: ModelOptions, side: str = "") -> Initializers:
    """Returns the initialisers of embeddings and of each kind of kernel."""
    return made(
        options,
        "initialisation",
        std=options.init_std,
        depth=options.depth,
        kernel_gain=scaling(options).kernel_gain(options.width),
        branch_gain=_wiring(options).branch_gain(options.depth, side),
    )


def _wiring(options: ModelOptions) -> type[Block]:
    wiring = variant(options, "wiring")
    return getattr(wiring, "func", wiring)  # unwraps a partial of a class


def _options_of_wiring(options: ModelOptions) -> dict[str, Any]:
    given = getattr(variant(options, "wiring"), "keywords", {})  # of a partial
    return given | own_options(options, "wiring")


def _head_dim(options: ModelOptions) -> int:
    if options.head_dim is None and options.width < (heads := options.num_heads):
        raise ValueError(f"num_heads={heads}: expected a divisor of width={options.width}")
    return options.head_dim or options.width // options.num_heads


def _scale(options: ModelOptions) -> float | None:
    """Returns the factor of the attention scores, or None for 1 / sqrt(K)."""
    if options.attention_scale is not None:
        return options.attention_scale
    grows = options.head_dim is None
    return scaling(options).scale(_head_dim(options), grows, options.width)


class BlockSpec(NamedTuple):
    """Specification of one block of a stack.

    Attributes:
      letter: Letter of its layer type; "" if all blocks are alike.
      options: Options of a model in which all blocks have this type.
      owner: Index of the block whose parameters it uses; its own index unless they are shared.
      reads: Streams added to its input: 0 is the embedding, n the output of block n - 1.
    """

    letter: str
    options: ModelOptions
    owner: int
    reads: tuple[int, ...] = ()


@functools.lru_cache(maxsize=256)
def block_specs(options: ModelOptions) -> tuple[BlockSpec, ...]:
    """Returns the specification of every block of a stack.

    Raises:
      ValueError: Layer types, shared parameters or skips are invalid; see layer_list.
    """
    has_skips = variant(options, "skips") is not None
    has_types = options.layers or options.layer_types
    if not (has_skips or has_types or options.distinct_blocks is not None):
        return tuple(BlockSpec("", options, block) for block in range(options.depth))
    from transformer_jax.models.layer_list import layer_list

    skips = made(options, "skips") if has_skips else None
    return tuple(BlockSpec(*fields) for fields in layer_list(options, skips))


def make_block(options: ModelOptions, side: str = "") -> ModuleFactory:
    """Returns a factory of blocks, `make(name=...)`, for a model whose blocks are all alike.

    Raises:
      ValueError: Some options are mutually exclusive.
    """
    init = initializers(options, side)
    common = {"use_bias": options.use_bias, "out_init": init.output, "dtype": options.dtype}
    dropout = options.attention_dropout_rate
    has_head_norm = variant(options, "query_key_norm") is not NoNorm
    mixer_class = variant(options, "mixer")
    is_attention = isinstance(mixer_class, type) and issubclass(mixer_class, MultiHeadAttention)
    attention = functools.partial(
        factory(options, "mixer") if is_attention else MultiHeadAttention,
        num_heads=options.num_heads,
        num_kv_heads=options.num_kv_heads,
        head_dim=options.head_dim,
        value_dim=options.value_dim,
        dropout_rate=options.dropout_rate if dropout is None else dropout,
        scale=_scale(options),
        variant=_attention_variant(options),
        query_key_norm=norm_factory(options, "query_key_norm") if has_head_norm else None,
        values=optional(options, "values"),
        head_output=optional(options, "head_output"),
        kernel_init=init.query_key,
        value_init=init.value,
        **common,
    )
    common["kernel_init"] = init.value
    mixer = feed_forward = None
    if not is_attention:
        mixer = factory(options, "mixer", **common)
    if variant(options, "feed_forward") is not no_feed_forward:
        sizes = {"mlp_dim": options.mlp_dim, "activation": variant(options, "activation")}
        feed_forward = factory(options, "feed_forward", **sizes, **common)
    return functools.partial(
        factory(options, "wiring"),
        attention=attention,
        mixer=mixer,
        convolution=optional(options, "convolution"),
        feed_forward=feed_forward,
        norm=norm_factory(options),
        dropout_rate=options.dropout_rate,
        stochastic_depth=options.stochastic_depth,
        depth=options.depth,
        side=side,
    )


def _attention_variant(options: ModelOptions) -> ModuleFactory:
    chosen = variant(options, "attention")
    kind = getattr(chosen, "func", chosen)
    if not (isinstance(kind, type) and issubclass(kind, AttentionVariant)):
        raise ValueError(f"attention: expected a subclass of AttentionVariant, got {kind!r}")
    return factory(options, "attention")


def mask_of(options: ModelOptions, positions: Array, causal: bool, segments: Any) -> Mask | None:
    """Returns the self-attention mask (a rule and its places), or None if nothing is hidden.

    Args:
      options: Options of a model whose blocks are all alike.
      positions: [..., L] int.
      causal: Whether no position may look ahead.
      segments: [..., L] int; different segments and segment 0 are hidden. None hides nothing.
    """
    rule = self_attention_rule(variant(options, "mask"), own_options(options, "mask"), causal)
    if segments is None and type(rule) in (Full, Unmasked):
        return None
    places = Places(jnp.arange(positions.shape[-1]), positions, segments)
    return Mask(places, places, rule)


def is_causal(options: ModelOptions) -> bool:
    """Returns whether, among the first 256 positions, none sees a later one."""

    def hides_the_future(options: ModelOptions) -> bool:
        mask = mask_of(options, jnp.arange(_CHECKED), True, None)
        return mask is not None and not bool(jnp.triu(mask.dense(), 1).any())

    with jax.ensure_compile_time_eval():
        return all(map(hides_the_future, {spec.options for spec in block_specs(options)}))


class Stack(nn.Module):
    """A stack of blocks, with positions and the final norm.

    Attributes:
      options: Options of the model.
      causal: Whether no position may look ahead.
      max_length: Largest number of positions in an input.
      vocab_size: Number of tokens in the vocabulary, or None if the input is not text.
      side: "encoder" or "decoder" in a model that has both.
      grid: Numbers of rows and columns of patches, if the input is an image.
    """

    options: ModelOptions
    causal: bool
    max_length: int
    vocab_size: int | None = None
    side: str = ""
    grid: tuple[int, int] | None = None

    @nn.compact
    def __call__(
        self,
        embedded: Array,
        positions: Array | None = None,
        *,
        tokens: Array | None = None,
        segments: Array | None = None,
        memory: Array | None = None,
        memory_mask: Array | None = None,
        train: bool = False,
    ) -> Array:
        """Adds positions to the embedded input and applies the blocks.

        Args:
          embedded: [..., L, D].
          positions: [..., L] int; None counts from 0, or from the end of a cache.
          tokens: [..., L] int, for blocks that read them; None if the input is not text.
          segments: [..., L] int; different segments and segment 0 are hidden. None hides nothing.
          memory: Input of the blocks' cross-attention, [..., M, D], or None.
          memory_mask: [..., L, M] bool.
          train: Whether dropout is on.

        Returns:
          [..., L, D], normalised. With a KV cache, NaN once more tokens are read than it can hold.

        Raises:
          ValueError: A cache is used with positions that look ahead, `positions` or `segments`.
        """
        options, length = self.options, embedded.shape[-2]
        specs = block_specs(options)
        slot = advance_cache(self, length, self.max_length) if self.causal else None
        if slot is not None and (positions is not None or segments is not None):
            raise ValueError("cache: holds one text from position 0; pass no positions or segments")
        if slot is not None and not is_causal(options):
            masks = ", ".join(sorted({repr(spec.options.mask) for spec in specs}))
            raise ValueError(f"cache: expected masks that hide later positions, got {masks}")
        if positions is None:
            positions = jnp.arange(length if slot is None else slot.capacity)
        positions = as_int32(positions)
        terms = self._terms("positions", options, positions)
        common = Context(
            memory=memory, memory_mask=memory_mask, tokens=tokens, slot=slot, train=train,
            is_token=None if segments is None else segments > 0,
        )  # fmt: skip
        contexts = self._contexts(specs, terms, positions, segments, common)
        if slot is not None:  # terms cover the whole cache; queries are the new tokens
            terms = of_queries(terms, slot.first, slot.count)

        hidden = add_positions(embedded, terms)
        if options.embedding_norm:
            hidden = norm_factory(options)(name="embedding_norm")(hidden)
        if (stem := optional(options, "stem")) is not None and specs:
            hidden = stem(name="stem")(hidden, contexts[specs[0].letter])
        hidden = nn.Dropout(options.dropout_rate, deterministic=not train)(hidden)
        hidden = site(self, "embedded", hidden)
        contexts = {k: dataclasses.replace(c, embedded=hidden) for k, c in contexts.items()}
        policy = made(options, "remat") if train and options.remat != "none" else None
        try:
            hidden = self._run(specs, hidden, contexts, policy)
        except (errors.ConcretizationTypeError, errors.TracerIntegerConversionError) as error:
            if policy is None and "blocks" not in self.variables.get("params", {}):
                raise  # it is traced by the caller's own transformation
            raise ValueError(
                "scan_layers, remat: a block branches in Python on a traced value, for example its "
                "number; use jnp.where in the block, or neither of the two options"
            ) from error
        if _wiring(options).final_norm:
            hidden = norm_factory(options)(name="final_norm")(hidden)
        predicts = self.causal and specs and (train or self.is_initializing())
        if options.heads != "none" and predicts:
            from transformer_jax.variants.prediction_heads import Head

            last, own = specs[-1], FrozenOptions(_options_of_wiring(options))
            head = functools.partial(Head, make_block(last.options), _wiring(options), own)
            parts = (head, norm_factory(options), initializers(options).embedding)
            context = dataclasses.replace(contexts[last.letter], layer=len(specs) - 1)
            made(options, "heads", name="heads")(hidden, embedded, *parts, context)
        return site(self, "hidden", nan_on_overflow(hidden, slot))

    @nn.nowrap
    def _run(
        self, specs: Sequence[BlockSpec], hidden: Array, contexts: dict[str, Context], policy: Any
    ) -> Array:
        """Applies the blocks to the stream.

        Blocks that share parameters have their own sites, dropout and cache.

        Args:
          specs: Specifications of the blocks.
          hidden: [..., L, D].
          contexts: Context of each layer type, by letter.
          policy: Rematerialisation policy of the blocks; None keeps everything.
        """

        def make_of(spec: BlockSpec, prevent_cse: bool = True) -> ModuleFactory:
            make = make_block(spec.options, self.side)
            if policy is None:
                return make
            from transformer_jax.models.transformed import rematerialised

            return rematerialised(make, policy, prevent_cse)

        first, carry, streams = 0, Carry(), list[Array]()
        wiring, own = _wiring(self.options), _options_of_wiring(self.options)
        hidden = wiring.enter(hidden, **own)
        if "blocks" in self.variables.get("params", {}):
            if any(spec.reads or spec.owner != number for number, spec in enumerate(specs)):
                raise ValueError(
                    "scan_layers: blocks that share parameters or read earlier streams cannot be "
                    "scanned; expected separate parameters for each block"
                )
            from transformer_jax.models.transformed import scan_units

            unit = specs[: self.options.unit]
            first = len(specs) - len(specs) % len(unit)
            makes = [make_of(spec, prevent_cse=False) for spec in unit]
            letters = [spec.letter for spec in unit]
            stacks = {
                kind: self.variables[kind]["blocks"]
                for kind in ("params", "state")
                if "blocks" in self.variables.get(kind, {})
            }
            hidden, carry = scan_units(makes, letters, first, hidden, contexts, stacks)
        for number, spec in enumerate(specs[first:], first):
            streams.append(hidden)
            if spec.reads:
                from transformer_jax.variants.skips import Skip

                skip = Skip(made(self.options, "skips").initial, name=f"skip_{number}")
                hidden = skip(hidden, [streams[stream] for stream in spec.reads])
            make = make_of(spec)
            if spec.owner != number:
                from transformer_jax.models.transformed import with_params

                make = with_params(make, self.variables["params"][f"block_{spec.owner}"])
            context = dataclasses.replace(contexts[spec.letter], layer=number)
            hidden, carry = make(name=f"block_{number}")(hidden, carry, context)
        return wiring.leave(hidden, carry, **own)

    @nn.nowrap
    def _terms(self, name: str, options: ModelOptions, positions: Array) -> PositionTerms:
        terms = factory(options, "position")(name=name)(positions, self._sizes(options))
        if not isinstance(terms, PositionTerms):
            raise ValueError(
                f"position: expected PositionTerms, got {type(terms).__name__}; return "
                "PositionTerms(embedding=...), (rotation=...) or (bias=...)"
            )
        if not isinstance(terms.rotation, Rotation | None):
            raise ValueError(
                f"position: expected rotation=Rotation(cos, sin) with arrays [..., L, R/2], got "
                f"{type(terms.rotation).__name__}"
            )
        return terms

    @nn.nowrap
    def _sizes(self, options: ModelOptions) -> Sizes:
        head_dim, scale = _head_dim(options), _scale(options)
        return Sizes(
            width=options.width,
            num_heads=options.num_heads,
            head_dim=head_dim,
            value_dim=options.value_dim or head_dim,
            scale=head_dim**-0.5 if scale is None else scale,
            max_length=self.max_length,
            vocab_size=self.vocab_size,
            causal=self.causal,
            grid=self.grid,
        )

    @nn.nowrap
    def _contexts(
        self,
        specs: Sequence[BlockSpec],
        terms: PositionTerms,
        positions: Array,
        segments: Array | None,
        common: Context,
    ) -> dict[str, Context]:
        """Returns the context of each layer type, by letter."""
        types = {spec.letter: spec.options for spec in specs}
        contexts, slot = {}, common.slot
        acts_inside = terms.rotation is not None or terms.bias is not None
        sharing = [letter for letter in types if self._shares_terms(types[letter], acts_inside)]
        for letter, options in types.items():
            own = terms
            if letter not in sharing:
                own = self._terms(f"positions_{letter}", options, positions)
                for adds, position in ((own, options.position), (terms, self.options.position)):
                    if adds.embedding is not None:
                        raise ValueError(
                            f"layer_types: {letter}.position={options.position!r}: {position!r} is "
                            "added to the embeddings, once for all blocks; expected positions "
                            "that act inside attention"
                        )
            mask = mask_of(options, positions, self.causal, segments)
            if slot is not None:
                assert mask is not None
                own = of_queries(own, slot.first, slot.count)
                mask = mask.of_queries(slot.first, slot.count)
            own = own._replace(embedding=None)
            sizes = self._sizes(options)
            contexts[letter] = dataclasses.replace(common, mask=mask, terms=own, sizes=sizes)
        if specs and acts_inside and not sharing:
            raise ValueError(f"position: no layer uses {self.options.position!r}")
        return contexts

    @nn.nowrap
    def _shares_terms(self, options: ModelOptions, acts_inside: bool) -> bool:
        """Returns whether a layer type has the same position terms as the model."""
        own, shared = ((x.position, own_options(x, "position")) for x in (options, self.options))
        has_sizes = not acts_inside or self._sizes(options) == self._sizes(self.options)
        return own == shared and has_sizes


class Transformer(Checked):
    """Abstract base class of models with a stack of blocks.

    Attributes:
      options: Options of the stack, the section `model` of a config; see ModelOptions.
    """

    options: ModelOptions
    usual: ClassVar[Mapping[str, Any]] = FrozenOptions()  # defaults of this model that differ

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Returns a model with these options and fields: `Decoder.of(vocab_size=65, width=128)`.

        A variant is given by name, or as a class or a partial of one: position="rotary",
        position=RotaryPositions, or position=partial(RotaryPositions, fraction=0.5).
        """
        of_stack, own = _divided(fields)
        known = [field.name for field in dataclasses.fields(cls)]  # ty: ignore
        for name in own:
            if name not in known:
                from transformer_jax.errors import suggest

                raise ValueError(f"{name}: no such option{suggest(name, [*OPTIONS, *known])}")
        return cls(options=ModelOptions.of(**{**cls.usual, **of_stack}), **own)

    def with_options(self, **changes: Any) -> Self:
        """Returns a copy of the model with changed options or fields."""
        of_stack, own = _divided(changes)
        of_stack = FrozenOptions.of(of_stack)
        return self.clone(options=dataclasses.replace(self.options, **of_stack), **own)

    # ---- parts

    @property
    def embedding_init(self) -> Initializer:
        """Initializer of embeddings and of kernels outside the blocks."""
        return initializers(self.options).embedding

    def make_embedding(self, vocab_size: int, name: str | None = None) -> TokenEmbedding:
        """Returns a token embedding of the model's width."""
        width, dtype = self.options.width, self.options.dtype
        return TokenEmbedding(vocab_size, width, self.embedding_init, dtype, name=name)

    def make_output(self, features: int, use_bias: bool) -> Linear:
        """Returns the map to logits, which sums in float32 or wider for every dtype."""
        return logits_layer(features, use_bias, self.embedding_init, self.options.dtype)

    def scale_for_logits(self, hidden: Array) -> Array:
        """Multiplies the input of the output layer, [..., D], by the parametrisation's gain."""
        gain = scaling(self.options).logits_gain(self.options.width)
        return hidden if gain == 1 else hidden * gain

    def is_causal(self) -> bool:
        """Returns whether, among the first 256 positions, none sees a later one."""
        return is_causal(self.options)

    def can_cache(self) -> bool:
        """Returns whether the values at a position are certain to stay valid when tokens follow.

        The masks must hide later tokens, and all variants must be this package's: a user-defined
        feed-forward layer might mix positions, for which there is no cache.
        """
        all_named = all(
            isinstance(getattr(spec.options, family), str)
            for spec in block_specs(self.options)
            for family in FAMILIES
        )
        return all_named and self.is_causal()


def _divided(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits the fields of a model into the options of its stack and the other fields."""
    of_stack = {name: value for name, value in fields.items() if name in OPTIONS}
    return of_stack, {name: value for name, value in fields.items() if name not in OPTIONS}

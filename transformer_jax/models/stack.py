"""The stack of blocks of all transformers here: from options to modules.

`block_specs` resolves the options of a model into one specification per block; `Stack` sends the
residual stream through the blocks. Only here do names of variants become classes.
"""

import dataclasses
import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, errors

from transformer_jax.attention import (
    ATTENTIONS,
    AttentionVariant,
    MultiHeadAttention,
    SoftmaxAttention,
)
from transformer_jax.blocks import MIXERS, WIRINGS, Block, Carry, Context, ModuleFactory
from transformer_jax.cache import advance_cache, nan_on_overflow
from transformer_jax.feedforward import ACTIVATIONS, FEED_FORWARDS, no_feed_forward
from transformer_jax.initialisation import INITIALISATIONS, Initializers
from transformer_jax.masks import MASKS, Full, Mask, Places, Rule, Unmasked, self_attention_rule
from transformer_jax.model_options import LAYER_FIELDS, ModelOptions
from transformer_jax.norms import NORMS, NoNorm
from transformer_jax.options import FrozenOptions, entry_of
from transformer_jax.parametrisation import PARAMETRISATIONS, Standard
from transformer_jax.position_terms import PositionTerms, Sizes, add_positions, of_queries
from transformer_jax.positions import POSITIONS
from transformer_jax.remat import REMATS, Policy
from transformer_jax.sites import site

_CHECKED = 256  # places for which a mask is tried, to see whether it lets one look ahead

SKIPS = {
    "none": None,
    "mirrored": "transformer_jax.variants.skips:MirroredSkips",
    "embedding": "transformer_jax.variants.skips:EmbeddingSkips",
    "dense": "transformer_jax.variants.skips:DenseSkips",
}
"""Which earlier streams each block reads, see variants/skips.py."""

# Every family of variants, by the option that chooses one.
FAMILIES: dict[str, Mapping[str, Any]] = {
    "position": POSITIONS,
    "mixer": MIXERS,
    "attention": ATTENTIONS,
    "query_key_norm": NORMS,
    "mask": MASKS,
    "feed_forward": FEED_FORWARDS,
    "activation": ACTIVATIONS,
    "norm": NORMS,
    "wiring": WIRINGS,
    "skips": SKIPS,
    "remat": REMATS,
    "initialisation": INITIALISATIONS,
    "parametrisation": PARAMETRISATIONS,
}


# ---------------------------------------------------------------- from names to classes


def variant(options: ModelOptions, family: str) -> Any:
    """Returns the variant that an option names, or the given class or function.

    Raises:
      ValueError: There is no such name; the message lists the names.
    """
    choice, table = getattr(options, family), FAMILIES[family]
    if not isinstance(choice, str):
        return choice
    if choice not in table:
        raise ValueError(f"{family}: expected one of {', '.join(table)}, got {choice!r}")
    return entry_of(table, choice)


def own_options(options: ModelOptions, family: str) -> dict[str, Any]:
    """Returns the stated options that the chosen variant of a family has.

    Raises:
      ValueError: No variant of the family has such an option.
    """
    chosen, table = variant(options, family), FAMILIES[family]
    stated = getattr(options, f"{_SECTION.get(family, family)}_options")
    if chosen is None:
        return {}
    if not isinstance(getattr(options, family), str):
        return {} if family == "query_key_norm" else dict(stated)
    known = inspect.signature(chosen).parameters
    for name in stated.keys() - known.keys():  # another variant of the family may have it
        from transformer_jax.declarations import declared_options
        from transformer_jax.errors import suggest

        others = [declared_options(entry_of(table, n)) for n in table if table[n] is not None]
        if not any(name in other for other in others):
            names = sorted({option for other in others for option in other})
            section = _SECTION.get(family, family)
            raise ValueError(f"{section}_options: {name}: no such option{suggest(name, names)}")
    return {name: value for name, value in stated.items() if name in known}


_SECTION = {"query_key_norm": "norm"}  # norms share their options


def made(options: ModelOptions, family: str, **arguments: Any) -> Any:
    """Returns an instance of the variant that an option names, with its options and arguments."""
    return variant(options, family)(**arguments, **own_options(options, family))


def factory(options: ModelOptions, family: str, **arguments: Any) -> ModuleFactory:
    """Returns a factory of the variant that the options select."""
    chosen = variant(options, family)
    return functools.partial(chosen, **arguments, **own_options(options, family))


def scaling(options: ModelOptions) -> Standard:
    """Returns the parametrisation, which scales with the width."""
    return made(options, "parametrisation")


def initializers(options: ModelOptions, side: str = "") -> Initializers:
    """Returns initial values by purpose."""
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
    return getattr(wiring, "func", wiring)  # a partial of a class


def head_dim_of(options: ModelOptions) -> int:
    """Returns the features of one head, K."""
    return options.head_dim or options.width // options.num_heads


def scale_of(options: ModelOptions) -> float | None:
    """Returns the factor of the attention scores, or None for 1 / sqrt(K)."""
    if options.attention_scale is not None:
        return options.attention_scale
    grows = options.head_dim is None
    return scaling(options).scale(head_dim_of(options), grows, options.width)


# ---------------------------------------------------------------- one specification for each block


class BlockSpec(NamedTuple):
    """One block of a stack.

    Attributes:
      letter: Letter of its layer type; "" if all blocks are alike.
      options: Options of a model in which all blocks have this type.
      owner: Number of the block whose parameters it uses; its own unless shared.
      reads: Streams added to its input: 0 is the embedding, n the output of block n - 1.
    """

    letter: str
    options: ModelOptions
    owner: int
    reads: tuple[int, ...]


@functools.lru_cache(maxsize=256)
def block_specs(options: ModelOptions) -> tuple[BlockSpec, ...]:
    """Returns the specification of every block of a stack.

    Raises:
      ValueError: A type is not in the pattern or has a field that no type may have, blocks of two
        types would share parameters, or a block would read a later stream.
    """
    pattern, depth = options.layers, options.depth
    if not isinstance(pattern, str) or (pattern and not (pattern.isalpha() and pattern.isascii())):
        raise ValueError(f"layers: expected letters such as LLLG, got {pattern!r}")
    _check_types(pattern, options.layer_types)
    skips = None if variant(options, "skips") is None else made(options, "skips")
    specs = []
    for block in range(depth):
        letter, owner = _letter(options, block), _owner(options, block)
        if letter != _letter(options, owner):
            raise ValueError(
                f"distinct_blocks: block {block} of type {letter} would have the parameters of "
                f"block {owner}, of type {_letter(options, owner)}, in layers={pattern}"
            )
        reads = () if skips is None else tuple(skips.reads(block, depth))
        for stream in reads:
            if not 0 <= stream < block:
                raise ValueError(f"skips: block {block} reads stream {stream}, not one before it")
        specs.append(BlockSpec(letter, options_of_type(options, letter), owner, reads))
    return tuple(specs)


def options_of_type(options: ModelOptions, letter: str) -> ModelOptions:
    """Returns the options of a model in which all blocks have one layer type."""
    changes = options.layer_types.get(letter, {})
    if not changes:
        return options
    merged: dict[str, Any] = {}
    for name, value in changes.items():
        if name.endswith("_options"):
            value = FrozenOptions({**getattr(options, name), **value})
        merged[name] = value
    return dataclasses.replace(options, layers="", layer_types=FrozenOptions(), **merged)


def _letter(options: ModelOptions, block: int) -> str:
    return options.layers[block % len(options.layers)] if options.layers else ""


def _owner(options: ModelOptions, block: int) -> int:
    depth, distinct, sharing = options.depth, options.distinct_blocks, options.sharing
    if distinct is None:
        return block
    if not 1 <= distinct <= depth:
        raise ValueError(f"distinct_blocks: expected 1 to depth {depth}, got {distinct}")
    if sharing not in ("cycle", "sequence"):
        raise ValueError(f"sharing: expected cycle or sequence, got {sharing!r}")
    if sharing == "cycle":
        return block % distinct
    return -(-(block * distinct // depth) * depth // distinct)  # first block of its run


def _check_types(pattern: str, types: Mapping[str, Any]) -> None:
    for letter, fields in types.items():
        if letter not in set(pattern):
            raise ValueError(
                f"layer_types: no block is {letter!r} in layers={pattern!r}; expected one of "
                f"{', '.join(sorted(set(pattern))) or 'none'}"
            )
        if not isinstance(fields, Mapping):
            raise ValueError(f"layer_types: {letter}: expected fields by name, got {fields!r}")
        for field in fields:
            if field not in LAYER_FIELDS:
                raise ValueError(
                    f"layer_types: {letter}.{field}: expected one of {', '.join(LAYER_FIELDS)}"
                )


def make_block(options: ModelOptions, side: str = "") -> ModuleFactory:
    """Returns a factory of blocks, `make(name=...)`, for a model with equal blocks.

    Raises:
      ValueError: Some options exclude each other.
    """
    init = initializers(options, side)
    common = {"use_bias": options.use_bias, "out_init": init.output, "dtype": options.dtype}
    dropout = options.attention_dropout_rate
    no_norm = variant(options, "query_key_norm") is NoNorm
    attention = functools.partial(
        MultiHeadAttention,
        num_heads=options.num_heads,
        num_kv_heads=options.num_kv_heads,
        head_dim=options.head_dim,
        value_dim=options.value_dim,
        dropout_rate=options.dropout_rate if dropout is None else dropout,
        scale=scale_of(options),
        variant=_attention_variant(options),
        query_key_norm=None if no_norm else norm_factory(options, "query_key_norm"),
        kernel_init=init.query_key,
        value_init=init.value,
        **common,
    )
    has_mixer = variant(options, "mixer") is not MultiHeadAttention
    return functools.partial(
        factory(options, "wiring"),
        attention=attention,
        mixer=factory(options, "mixer", kernel_init=init.value, **common) if has_mixer else None,
        feed_forward=_feed_forward(options, kernel_init=init.value, **common),
        norm=norm_factory(options),
        dropout_rate=options.dropout_rate,
        stochastic_depth=options.stochastic_depth,
        depth=options.depth,
        side=side,
    )


def _attention_variant(options: ModelOptions) -> ModuleFactory | None:
    """Returns a replacement of scaled_dot_product_attention, or None in the common case."""
    stated = own_options(options, "attention")
    chosen = variant(options, "attention")
    if chosen is SoftmaxAttention and stated.get("soft_cap") is None:
        return None
    kind = getattr(chosen, "func", chosen)
    if not (isinstance(kind, type) and issubclass(kind, AttentionVariant)):
        raise ValueError(f"attention: expected an AttentionVariant, got {kind!r}")
    return factory(options, "attention")


def norm_factory(options: ModelOptions, family: str = "norm") -> ModuleFactory:
    """Returns a factory of the norms of the stream, or of queries and keys."""
    return factory(options, family, use_bias=options.use_bias)


def _feed_forward(options: ModelOptions, **common: Any) -> ModuleFactory | None:
    if variant(options, "feed_forward") is no_feed_forward:
        return None
    activation = variant(options, "activation")
    more = {"mlp_dim": options.mlp_dim, "activation": activation}
    return factory(options, "feed_forward", **more, **common)


def rule_of(options: ModelOptions, causal: bool) -> Rule:
    """Returns the mask rule of self-attention in a model with equal blocks."""
    return self_attention_rule(variant(options, "mask"), own_options(options, "mask"), causal)


def mask_of(
    options: ModelOptions, positions: Array, causal: bool, segments: Array | None
) -> Mask | None:
    """Returns the mask of self-attention, a rule and its places, or None if nothing is hidden.

    Args:
      options: Options of a model with equal blocks.
      positions: [..., L] int.
      causal: Whether no position may look ahead.
      segments: [..., L] int; other segments and segment 0 are hidden. None hides nothing.
    """
    rule = rule_of(options, causal)
    if segments is None and type(rule) in (Full, Unmasked):
        return None
    places = Places(jnp.arange(positions.shape[-1]), positions, segments)
    return Mask(places, places, rule)


def is_causal(options: ModelOptions) -> bool:
    """Returns whether no position sees what comes after it, among the first 256."""

    def hides(spec: BlockSpec) -> bool:
        mask = mask_of(spec.options, jnp.arange(_CHECKED), True, None)
        return mask is not None and not bool(jnp.triu(mask.dense(), 1).any())

    with jax.ensure_compile_time_eval():
        return all(map(hides, {spec.letter: spec for spec in block_specs(options)}.values()))


def can_cache(options: ModelOptions) -> bool:
    """Returns whether values of a position surely stay valid when tokens follow.

    Its mask must hide them, and all variants must be this package's: a user-defined feed-forward
    layer may mix positions, for which there is no cache.
    """
    all_ours = all(
        getattr(spec.options, family) in table
        for spec in block_specs(options)
        for family, table in FAMILIES.items()
    )
    return all_ours and is_causal(options)


# ---------------------------------------------------------------- the module


class Stack(nn.Module):
    """Positions, blocks, and the final norm.

    Attributes:
      options: Options of the model.
      causal: Whether no position may look ahead.
      max_length: Largest number of positions of an input.
      side: "encoder" or "decoder" in a model that has both.
      grid: Rows and columns of patches, if the input is an image.
    """

    options: ModelOptions
    causal: bool
    max_length: int
    side: str = ""
    grid: tuple[int, int] | None = None

    @nn.compact
    def __call__(
        self,
        embedded: Array,
        positions: Array | None = None,
        *,
        segments: Array | None = None,
        memory: Array | None = None,
        memory_mask: Array | None = None,
        train: bool = False,
    ) -> Array:
        """Adds positions to the embedded input and applies the blocks.

        Args:
          embedded: [..., L, D].
          positions: [..., L] int; None counts from 0, or from the end of a cache.
          segments: [..., L] int; other segments and segment 0 are hidden. None hides nothing.
          memory: Input of cross-attention, [..., M, D], for blocks that have it.
          memory_mask: [..., L, M] bool.
          train: Whether dropout is on.

        Returns:
          [..., L, D], normalised. With a KV cache: NaN once more tokens were read than it holds.

        Raises:
          ValueError: A cache is used although positions look ahead, or with more than
            one document.
        """
        options, length = self.options, embedded.shape[-2]
        specs = block_specs(options)
        slot = advance_cache(self, length, self.max_length) if self.causal else None
        if slot is not None and (positions is not None or segments is not None):
            raise ValueError(
                "cache: it holds one text from position 0; do not pass positions or segments"
            )
        if slot is not None and not is_causal(options):
            masks = ", ".join(sorted({repr(spec.options.mask) for spec in specs}))
            raise ValueError(f"cache: in mask {masks} what is read sees what comes after it")
        if positions is None:
            positions = jnp.arange(length if slot is None else slot.capacity)
        terms = self._terms("positions", options, positions)
        common = Context(memory=memory, memory_mask=memory_mask, slot=slot, train=train)
        contexts = self._contexts(specs, terms, positions, segments, common)
        if slot is not None:  # made for all places of the cache; asked about the new tokens
            terms = of_queries(terms, slot.first, slot.count)

        hidden = add_positions(embedded, terms)
        if options.embedding_norm:
            hidden = norm_factory(options)(name="embedding_norm")(hidden)
        hidden = nn.Dropout(options.dropout_rate, deterministic=not train)(hidden)
        hidden = site(self, "embedded", hidden)
        policy = made(options, "remat") if train else None
        try:
            hidden = self._run(specs, hidden, contexts, policy)
        except (errors.ConcretizationTypeError, errors.TracerIntegerConversionError) as error:
            raise ValueError(
                "scan_layers, remat: a block branches in Python on its number, say, which they "
                "trace; expected jnp.where and the like, or neither option"
            ) from error
        if _wiring(options).final_norm:
            hidden = norm_factory(options)(name="final_norm")(hidden)
        return site(self, "hidden", nan_on_overflow(hidden, slot))

    @nn.nowrap
    def _run(
        self,
        specs: Sequence[BlockSpec],
        hidden: Array,
        contexts: Mapping[str, Context],
        policy: Policy | None,
    ) -> Array:
        """Applies the blocks to the stream.

        Blocks that share parameters have their own sites, dropout and cache.

        Args:
          specs: Specifications of the blocks.
          hidden: [..., L, D].
          contexts: Context of each layer type.
          policy: Rematerialisation policy of the blocks; None keeps everything.
        """
        done, carry, streams = 0, Carry(), list[Array]()
        if "blocks" in self.variables.get("params", {}):
            if any(spec.reads or spec.owner != number for number, spec in enumerate(specs)):
                raise ValueError(
                    "scan_layers: blocks that share parameters or read earlier streams cannot be "
                    "scanned; expected parameters of each block by itself"
                )
            hidden, carry, done = self._scan(specs, hidden, contexts, policy)
        for number, spec in enumerate(specs[done:], done):
            streams.append(hidden)
            if spec.reads:
                from transformer_jax.variants.skips import Skip

                skip = Skip(made(self.options, "skips").initial, name=f"skip_{number}")
                hidden = skip(hidden, [streams[stream] for stream in spec.reads])
            make = _with_remat(make_block(spec.options, self.side), policy)
            if spec.owner != number:
                make = _with_params(make, self.variables["params"][f"block_{spec.owner}"])
            context = dataclasses.replace(contexts[spec.letter], layer=number)
            hidden, carry = make(name=f"block_{number}")(hidden, carry, context)
        return hidden

    @nn.nowrap
    def _scan(
        self,
        specs: Sequence[BlockSpec],
        hidden: Array,
        contexts: Mapping[str, Context],
        policy: Policy | None,
    ) -> tuple[Array, Carry, int]:
        """Applies the repeated units of the stack in one loop.

        Returns the stream, the carry, and the number of blocks.
        """
        unit = self.options.unit
        whole = len(specs) - len(specs) % unit
        makes = [_with_remat(make_block(s.options, self.side), policy, False) for s in specs[:unit]]
        letters = tuple(spec.letter for spec in specs[:unit])
        scan = nn.scan(
            Unit,
            variable_axes={"params": 0, "losses": 0},
            split_rngs={"params": True, "dropout": True},
            in_axes=(0, nn.broadcast),
            length=whole // unit,
        )
        numbers = jnp.arange(whole).reshape(-1, unit)
        units = scan(tuple(makes), letters, name="blocks")
        (hidden, carry), _ = units((hidden, Carry()), numbers, dict(contexts))
        return hidden, carry, whole

    @nn.nowrap
    def _terms(self, name: str, options: ModelOptions, positions: Array) -> PositionTerms:
        terms = factory(options, "position")(name=name)(positions, self._sizes(options))
        if not isinstance(terms, PositionTerms):
            raise ValueError(
                f"position: expected PositionTerms, got {type(terms).__name__}; return "
                "PositionTerms(embedding=...), (rotation=...) or (bias=...)"
            )
        return terms

    @nn.nowrap
    def _sizes(self, options: ModelOptions) -> Sizes:
        head_dim, scale = head_dim_of(options), scale_of(options)
        return Sizes(
            width=options.width,
            num_heads=options.num_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5 if scale is None else scale,
            max_length=self.max_length,
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
        """Returns the context of the blocks of each layer type."""
        contexts: dict[str, Context] = {}
        for letter, options in {spec.letter: spec.options for spec in specs}.items():
            own = self._terms_of_type(letter, options, terms, positions)
            mask = mask_of(options, positions, self.causal, segments)
            if common.slot is not None:
                own = of_queries(own, common.slot.first, common.slot.count)
                assert mask is not None
                mask = mask.of_queries(common.slot.first, common.slot.count)
            contexts[letter] = dataclasses.replace(
                common, mask=mask, terms=own._replace(embedding=None), sizes=self._sizes(options)
            )
        acts_inside = terms.rotation is not None or terms.bias is not None
        if specs and acts_inside and not any(self._shares_terms(s.options, terms) for s in specs):
            raise ValueError(
                f"position: no layer has {self.options.position!r}; expected one that a layer has"
            )
        return contexts

    @nn.nowrap
    def _terms_of_type(
        self, letter: str, options: ModelOptions, terms: PositionTerms, positions: Array
    ) -> PositionTerms:
        """Returns the position terms for the attention of a layer type."""
        if self._shares_terms(options, terms):
            return terms
        own = self._terms(f"positions_{letter}", options, positions)
        if own.embedding is not None or terms.embedding is not None:
            added = options.position if own.embedding is not None else self.options.position
            raise ValueError(
                f"layer_types: {letter}.position={options.position!r}: {added!r} is added to the "
                "embeddings, once for all blocks; expected positions inside attention"
            )
        return own

    @nn.nowrap
    def _shares_terms(self, options: ModelOptions, terms: PositionTerms) -> bool:
        """Returns whether a layer type has the positions of the model."""
        type_values, model_values = (
            (one.position, FrozenOptions(own_options(one, "position")))
            for one in (options, self.options)
        )
        are_embeddings = terms.rotation is None and terms.bias is None
        return type_values == model_values and (
            are_embeddings or self._sizes(options) == self._sizes(self.options)
        )


class Unit(nn.Module):
    """The blocks that repeat in a scan.

    Attributes:
      makes: Factory of each block.
      letters: Letters of their layer types.
    """

    makes: tuple[ModuleFactory, ...]
    letters: tuple[str, ...]

    @nn.compact
    def __call__(
        self, stream: tuple[Array, Carry], numbers: Array, contexts: Mapping[str, Context]
    ) -> tuple[tuple[Array, Carry], None]:
        """Maps the stream [..., L, D], the carry, and the numbers of the blocks."""
        hidden, carry = stream
        for index, (make, letter) in enumerate(zip(self.makes, self.letters, strict=True)):
            context = dataclasses.replace(contexts[letter], layer=numbers[index])
            hidden, carry = make(name=f"block_{index}")(hidden, carry, context)
        return (hidden, carry), None


def _with_remat(
    make: ModuleFactory, policy: Policy | None, prevent_cse: bool = True
) -> ModuleFactory:
    """Returns a factory of blocks whose backward pass keeps what the policy allows."""
    if policy is None:
        return make
    assert isinstance(make, functools.partial)
    block = nn.remat(make.func, policy=policy, prevent_cse=prevent_cse)
    return functools.partial(block, *make.args, **make.keywords)


def _with_params(make: ModuleFactory, params: Any) -> ModuleFactory:
    """Returns a factory of blocks with the parameters of another block."""
    assert isinstance(make, functools.partial)
    block = nn.map_variables(make.func, "params", trans_in_fn=lambda _: {"params": params})
    return functools.partial(block, *make.args, **make.keywords)

"""Attention masks. True = may attend; masks are combined with `&`.

Masks have two forms. An array, [..., L, M] bool, with a row per query and a column per key, can be
printed, compared and tested. A `Mask` is a rule with the places that it applies to; `dense()` makes
the array. Nothing of size L x M exists before that, and faster implementations (variants/local.py,
variants/fused.py) read the rule's `tags` instead. Pure functions take the array alone.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.options import Count, Natural, check_values


def causal_mask(length: int, key_length: int | None = None) -> Array:
    """Returns the mask that hides the future: query i sees keys j <= i.

    Models use the rule `Causal`, which becomes an array only where attention weights are computed.
    With more keys than queries, the *last* query is aligned with the last key, as decoding with a
    KV cache requires (jax.nn's `is_causal` aligns the first ones).

    Args:
      length: Number of queries, L.
      key_length: Number of keys, M; L if None.
    Returns:
      [L, M] bool.
    """
    ahead = _offsets(length, key_length)
    return ahead <= 0


def window_mask(length: int, window: int, key_length: int | None = None) -> Array:
    """Returns the mask of a sliding window: query i sees keys with |i - j| < window.

    `causal_mask(n) & window_mask(n, w)` shows each query itself and the w - 1 positions before it
    (Beltagy et al. 2020, arXiv:2004.05150, section 3.1; Mistral's convention).

    Args:
      length: Number of queries, L.
      window: Size of the window in positions, at least 1.
      key_length: Number of keys, M; L if None.
    Returns:
      [L, M] bool.
    Raises:
      ValueError: The window is smaller than 1.
    """
    if window < 1:
        raise ValueError(f"window: expected at least 1 position, got {window}")
    return jnp.abs(_offsets(length, key_length)) < window


def prefix_mask(length: int, prefix_length: int | Array) -> Array:
    """Returns the prefix-LM mask: the prefix is visible to all positions, the rest is causal.

    Raffel et al. 2020, arXiv:1910.10683, figure 4 (right).

    Args:
      length: Number of positions, L.
      prefix_length: Number of leading positions that see each other; an int, or [...] int.
    Returns:
      [..., L, L] bool.
    Raises:
      ValueError: prefix_length is not an integer.
    """
    prefix_length = jnp.asarray(prefix_length)
    if not jnp.issubdtype(prefix_length.dtype, jnp.integer):
        raise ValueError(f"prefix_length: expected integers, got {prefix_length.dtype}")
    in_prefix = jnp.arange(length) < prefix_length[..., None, None]
    return causal_mask(length) | in_prefix


def padding_mask(is_token: Array) -> Array:
    """Returns the mask that hides padded keys from every query.

    Args:
      is_token: [..., M] bool, False where the memory is padding.
    Returns:
      [..., 1, M] bool; broadcasts over queries.
    Raises:
      ValueError: is_token is not bool.
    """
    if is_token.dtype != jnp.bool_:
        raise ValueError(f"is_token: expected bool, True = token, got {is_token.dtype}")
    return is_token[..., None, :]


def segment_mask(segments: Array, key_segments: Array | None = None) -> Array:
    """Returns the mask of packed documents: positions with equal segment numbers see each other.

    Segment 0 is padding and invisible to all, so a padded query has a fully masked row.

    Args:
      segments: The queries' document numbers from 1, [..., L] int.
      key_segments: The keys' document numbers, [..., M] int; those of the queries if None.
    Returns:
      [..., L, M] bool.
    Raises:
      ValueError: The numbers are not integers.
    """
    key_segments = segments if key_segments is None else key_segments
    for name, array in (("segments", segments), ("key_segments", key_segments)):
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"{name}: expected integers, 0 = padding, got {array.dtype}")
    same = segments[..., :, None] == key_segments[..., None, :]
    return same & (key_segments != 0)[..., None, :]


def _offsets(length: int, key_length: int | None) -> Array:
    """Returns j - i for query i and key j, [L, M] int, with the last query and key aligned."""
    key_length = length if key_length is None else key_length
    queries = jnp.arange(length) + (key_length - length)
    return jnp.arange(key_length)[None, :] - queries[:, None]


Tags = tuple[tuple[str, Mapping[str, Any]], ...]


class Places(NamedTuple):
    """Positions of queries or keys.

    Attributes:
      index: Position in the sequence, [..., L] int.
      position: Position in the document, [..., L] int, for position encodings.
      segment: Document numbers from 1, [..., L] int, 0 = padding; None for one document.
    """

    index: Array
    position: Array
    segment: Array | None = None


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule for the keys that each query may attend to, at any length; MASKS names subclasses.

    Attributes:
      sees_ahead: Whether the rule itself decides which later positions a causal model may see; if
        not, a causal model combines it with `Causal`.
    """

    sees_ahead: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Raises ValueError, naming the field, if its type does not allow its value."""
        check_values(type(self), vars(self))

    def allowed(self, query: Places, key: Places) -> Array:
        """Returns whether each query [..., L] may attend to each key [..., M], [..., L, M] bool."""
        raise NotImplementedError

    @property
    def tags(self) -> Tags:
        """Name and options of each rule that applies, for kernels that skip hidden keys.

        A user-defined rule has its full name, with a dot; kernels that lack it call `allowed`.
        """
        name = _NAMES.get(type(self))
        if name is None:
            return ((f"{type(self).__module__}.{type(self).__qualname__}", {}),)
        return ((name, {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}),)

    def __and__(self, other: "Rule") -> "Rule":
        return Joined((self, other))


@dataclasses.dataclass(frozen=True)
class Joined(Rule):
    """The intersection of several rules."""

    rules: tuple[Rule, ...]

    def allowed(self, query: Places, key: Places) -> Array:
        """[..., L] and [..., M] -> [..., L, M] bool."""
        first, *others = (rule.allowed(query, key) for rule in self.rules)
        for other in others:
            first = first & other
        return first

    @property
    def tags(self) -> Tags:
        """Tags of all rules."""
        return tuple(tag for rule in self.rules for tag in rule.tags)


@dataclasses.dataclass(frozen=True)
class Full(Rule):
    """All positions; in a causal model, those up to the query (Vaswani et al. 2017, sec. 3.2.3)."""

    def allowed(self, query: Places, key: Places) -> Array:
        """[..., L] and [..., M] -> [..., L, M] bool."""
        return jnp.ones((query.index.shape[-1], key.index.shape[-1]), bool)


@dataclasses.dataclass(frozen=True)
class Causal(Rule):
    """The query's own position and earlier ones, also in an encoder.

    In an encoder, the rule shows the benefit of bidirectional attention (Devlin et al. 2019,
    section 5.1, "LTR & No NSP"). In a decoder it is combined with every rule that does not set
    `sees_ahead`. `causal_mask` returns the same mask as an array.
    """

    def allowed(self, query: Places, key: Places) -> Array:
        """[..., L] and [..., M] -> [..., L, M] bool."""
        return key.index[..., None, :] <= query.index[..., :, None]


@dataclasses.dataclass(frozen=True)
class Window(Rule):
    """Positions less than `size` away, and the first few (Beltagy et al. 2020, arXiv:2004.05150).

    A causal query sees itself and the size - 1 positions before, as in Mistral. The first `sinks`
    positions stay visible, as attention sinks (Xiao et al. 2023, arXiv:2309.17453, section 3.2).

    Attributes:
      size: Window in positions, including the query's own.
      sinks: Number of first positions that are always visible.
    """

    size: Count = 32
    sinks: Natural = 0

    def allowed(self, query: Places, key: Places) -> Array:
        """[..., L] and [..., M] -> [..., L, M] bool."""
        distance = jnp.abs(key.position[..., None, :] - query.position[..., :, None])
        return (distance < self.size) | (key.position < self.sinks)[..., None, :]


@dataclasses.dataclass(frozen=True)
class Prefix(Rule):
    """A prefix that all positions see, before a causal rest (Raffel et al. 2020, figure 4).

    Attributes:
      length: Length of the prefix in positions.
    """

    length: Count = 16
    sees_ahead: ClassVar[bool] = True

    def allowed(self, query: Places, key: Places) -> Array:
        """[..., L] and [..., M] -> [..., L, M] bool."""
        return Causal().allowed(query, key) | (key.position < self.length)[..., None, :]


@dataclasses.dataclass(frozen=True)
class Unmasked(Full):
    """All positions, even in a causal model, which then reads the token that it has to predict.

    The rule shows the purpose of the causal mask (Vaswani et al. 2017, section 3.2.3): without that
    mask, a decoder copies the token instead of predicting it.
    """

    sees_ahead: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class OfPositions(Rule):
    """A rule given by a function that maps all positions to the whole mask.

    Attributes:
      function: (positions [..., M] int, the causal mask [M, M] bool or None in a bidirectional
        model) -> [..., M, M] bool, or None if nothing is hidden.
      is_causal: Whether the model is causal.
    """

    function: Callable[..., Array | None]
    is_causal: bool
    sees_ahead: ClassVar[bool] = True

    def allowed(self, query: Places, key: Places) -> Array:
        """[..., L] and [..., M] -> [..., L, M] bool."""
        past_only = causal_mask(key.index.shape[-1]) if self.is_causal else None
        allowed = self.function(key.position, past_only)
        if allowed is None:
            return Full().allowed(query, key)
        return jnp.take(allowed, query.index, axis=-2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mask:
    """A rule and the places that it applies to.

    Attributes:
      query: Places of the queries.
      key: Places of the keys.
      rule: The rule, beside which different segments, and segment 0, are hidden.
    """

    query: Places
    key: Places
    rule: Rule = dataclasses.field(metadata={"static": True})

    def dense(self) -> Array:
        """Returns the mask as an array, [..., L, M] bool."""
        allowed = self.rule.allowed(self.query, self.key)
        if self.query.segment is None:
            return allowed
        return allowed & segment_mask(self.query.segment, self.key.segment)

    def of_queries(self, first: Array, count: int) -> "Mask":
        """Returns the mask of `count` queries from `first` on."""

        def rows(places: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(places, first, count, axis=-1)

        return dataclasses.replace(self, query=jax.tree.map(rows, self.query))

    @property
    def tags(self) -> Tags:
        """Tags of the rule, and `segment` if there are segments."""
        return self.rule.tags + (() if self.query.segment is None else (("segment", {}),))

    @property
    def names(self) -> set[str]:
        """Names of the tags."""
        return {name for name, _ in self.tags}


MASKS = {"full": Full, "causal": Causal, "window": Window, "prefix": Prefix, "unmasked": Unmasked}
_NAMES = {rule: name for name, rule in MASKS.items()}


def as_array(mask: Array | Mask | None) -> Array | None:
    """Returns a mask of either form as an array, [..., L, M] bool, or None if there is none."""
    return mask.dense() if isinstance(mask, Mask) else mask


def self_attention_rule(row: Any, options: Mapping[str, Any], causal: bool) -> Rule:
    """Returns the rule of self-attention for an entry of MASKS and the model's direction.

    Args:
      row: A subclass of Rule, a rule, or a function as in OfPositions with further options.
      options: Options of the entry.
      causal: Whether the model may not look ahead.
    Raises:
      ValueError: A bidirectional model has a prefix mask, or options are given with a rule.
    """
    if isinstance(row, Rule):
        if options:
            raise ValueError(f"mask: {row} has its own options; expected no others, got {options}")
        rule = row
    elif isinstance(row, type) and issubclass(row, Rule):
        rule = row(**options)
    else:
        rule = OfPositions(functools.partial(row, **options) if options else row, causal)
    if not causal and any(name == "prefix" for name, _ in rule.tags):
        raise ValueError("mask: a prefix is for causal models; this model is bidirectional")
    if not causal or _sees_ahead(rule) or type(rule) is Causal:
        return rule
    return Causal() if type(rule) is Full else rule & Causal()


def _sees_ahead(rule: Rule) -> bool:
    """Returns whether a rule, or any rule that it combines, sets `sees_ahead`."""
    return any(map(_sees_ahead, rule.rules)) if isinstance(rule, Joined) else rule.sees_ahead

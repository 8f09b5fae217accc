"""Attention masks: who may attend to whom. True = may attend; masks are joined by `&`.

Two forms. As an array, [..., L, M] bool: row = query position, column = key position, a 0/1 grid
that can be printed, compared and tested. As a `Mask`: a rule and the places that it is asked about,
of which `dense()` makes the array. Nothing of size L x M exists before somebody asks, and who knows
a faster way (variants/local.py, variants/fused.py) reads the rule's `tags`. MultiHeadAttention
takes both, pure functions the array.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.options import Count, Natural


def causal_mask(length: int, key_length: int | None = None) -> Array:
    """Returns the mask that hides the future: query i sees keys j <= i.

    Models use the rule `Causal`, which becomes an array only where attention weights are computed.
    With more keys than queries the *last* query lines up with the last key, which is what decoding
    with a KV cache needs (jax.nn's `is_causal` lines up the first ones).

    Args:
      length: number of queries, L.
      key_length: number of keys, M; L if not given.
    Returns:
      [L, M] bool.
    """
    ahead = _offsets(length, key_length)
    return ahead <= 0


def window_mask(length: int, window: int, key_length: int | None = None) -> Array:
    """Returns the mask of a sliding window: query i sees keys with |i - j| < window.

    `causal_mask(n) & window_mask(n, w)` lets each query see itself and the w - 1 positions before
    (Beltagy et al. 2020, arXiv:2004.05150, section 3.1; Mistral's convention).

    Args:
      length: number of queries, L.
      window: positions, at least 1.
      key_length: number of keys, M; L if not given.
    Returns:
      [L, M] bool.
    Raises:
      ValueError: window < 1.
    """
    if window < 1:
        raise ValueError(f"window: expected at least 1 position, got {window}")
    return jnp.abs(_offsets(length, key_length)) < window


def prefix_mask(length: int, prefix_length: int | Array) -> Array:
    """Returns the prefix-LM mask: the prefix is seen by everybody, the rest is causal.

    Raffel et al. 2020, arXiv:1910.10683, figure 4 (right).

    Args:
      length: number of positions, L.
      prefix_length: number of leading positions that see each other; an int, or [...] int.
    Returns:
      [..., L, L] bool.
    """
    in_prefix = jnp.arange(length) < jnp.asarray(prefix_length)[..., None, None]
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
    """Returns the mask that keeps packed documents apart: equal segment numbers see each other.

    Segment 0 is padding and is seen by nobody, so a padded query has a fully masked row.

    Args:
      segments: [..., L] int, the queries' document numbers from 1.
      key_segments: [..., M] int, the keys'; the queries' own if not given.
    Returns:
      [..., L, M] bool.
    Raises:
      ValueError: the numbers are not integers.
    """
    key_segments = segments if key_segments is None else key_segments
    for name, array in (("segments", segments), ("key_segments", key_segments)):
        if not jnp.issubdtype(array.dtype, jnp.integer):
            raise ValueError(f"{name}: expected integers, 0 = padding, got {array.dtype}")
    same = segments[..., :, None] == key_segments[..., None, :]
    return same & (key_segments != 0)[..., None, :]


def _offsets(length: int, key_length: int | None) -> Array:
    """[L, M] int: how many positions key j lies ahead of query i, last aligned with last."""
    key_length = length if key_length is None else key_length
    queries = jnp.arange(length) + (key_length - length)
    return jnp.arange(key_length)[None, :] - queries[:, None]


# ---------------------------------------------------------------- rules


Tags = tuple[tuple[str, Mapping[str, Any]], ...]


class Places(NamedTuple):
    """Positions of queries or keys.

    Attributes:
      index: [..., L] int, in the sequence.
      position: [..., L] int, in the document; what position encodings count.
      segment: [..., L] int, document numbers from 1, 0 = padding; None: all is one document.
    """

    index: Array
    position: Array
    segment: Array | None = None


@dataclasses.dataclass(frozen=True)
class Rule:
    """A rule for who may attend to whom, at any length; MASKS names subclasses.

    Attributes:
      sees_ahead: True: the rule decides itself what a causal model may see ahead, if anything.
        False: `Causal` is joined to it in a causal model.
    """

    sees_ahead: ClassVar[bool] = False

    def allowed(self, query: Places, key: Places) -> Array:
        """Returns what the queries [..., L] may see of the keys [..., M]: [..., L, M] bool."""
        raise NotImplementedError

    @property
    def tags(self) -> Tags:
        """Name and options of each rule that has to allow it, for kernels that skip what is hidden.

        A rule of your own, a subclass of these too, has its whole name, with a dot, and no options:
        a kernel that does not know it asks `allowed`.
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
        """Those of all of them."""
        return tuple(tag for rule in self.rules for tag in rule.tags)


@dataclasses.dataclass(frozen=True)
class Full(Rule):
    """Each sees all; in a causal model itself and earlier ones (Vaswani et al. 2017, 3.2.3)."""

    def allowed(self, query: Places, key: Places) -> Array:
        """[..., L] and [..., M] -> [..., L, M] bool."""
        return jnp.ones((query.index.shape[-1], key.index.shape[-1]), bool)


@dataclasses.dataclass(frozen=True)
class Causal(Rule):
    """Each position sees itself and earlier ones, in an encoder too.

    There it measures what bidirectional attention is worth (Devlin et al. 2019, section 5.1, "LTR &
    No NSP"). In a decoder it is joined to every rule that does not say itself what may be seen
    ahead (`sees_ahead`). `causal_mask` is the same as an array.
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
      size: positions, with the query's own.
      sinks: first positions that everybody sees.
    """

    size: Count = 32
    sinks: Natural = 0

    def allowed(self, query: Places, key: Places) -> Array:
        """[..., L] and [..., M] -> [..., L, M] bool."""
        distance = jnp.abs(key.position[..., None, :] - query.position[..., :, None])
        return (distance < self.size) | (key.position < self.sinks)[..., None, :]


@dataclasses.dataclass(frozen=True)
class Prefix(Rule):
    """The first positions see each other, the rest is causal (Raffel et al. 2020, figure 4).

    Attributes:
      length: positions of the prefix.
    """

    length: Count = 16
    sees_ahead: ClassVar[bool] = True

    def allowed(self, query: Places, key: Places) -> Array:
        """[..., L] and [..., M] -> [..., L, M] bool."""
        return Causal().allowed(query, key) | (key.position < self.length)[..., None, :]


@dataclasses.dataclass(frozen=True)
class Unmasked(Full):
    """Everything, even in a causal model, which then reads the token that it has to predict.

    To show what the causal mask is for (Vaswani et al. 2017, section 3.2.3): the loss of such a
    decoder is no prediction.
    """

    sees_ahead: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class OfPositions(Rule):
    """A rule that is written as a function of all positions, which makes the whole array.

    Attributes:
      function: (positions [..., M] int, what came before [M, M] bool, or None in a model that looks
        both ways) -> [..., M, M] bool, or None where nothing is hidden.
      is_causal: whether the model is.
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
    """A rule and the places that it is asked about.

    Attributes:
      query: where the queries stand.
      key: where the keys stand.
      rule: what may be seen. Where places have segments, other segments are not seen, nor is 0.
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
        """Returns the mask of some of its queries alone, `count` from `first` on."""

        def rows(places: Array) -> Array:
            return jax.lax.dynamic_slice_in_dim(places, first, count, axis=-1)

        return dataclasses.replace(self, query=jax.tree.map(rows, self.query))

    @property
    def tags(self) -> Tags:
        """The rule's; `segment` too, where there are some."""
        return self.rule.tags + (() if self.query.segment is None else (("segment", {}),))

    @property
    def names(self) -> set[str]:
        """The names of its tags."""
        return {name for name, _ in self.tags}


MASKS = {"full": Full, "causal": Causal, "window": Window, "prefix": Prefix, "unmasked": Unmasked}
_NAMES = {rule: name for name, rule in MASKS.items()}


def as_array(mask: Array | Mask | None) -> Array | None:
    """Returns either form of a mask as an array, [..., L, M] bool."""
    return mask.dense() if isinstance(mask, Mask) else mask


def count_by_one(places: Places) -> Array:
    """Returns whether places are one behind the other in each segment, [..., L] -> [...] bool.

    A segment that comes back is none: what it saw before may be far from it.
    """
    one = jnp.diff(places.position, axis=-1) == 1
    if places.segment is not None:
        before = jax.lax.cummax(places.segment, axis=places.segment.ndim - 1)[..., :-1]
        one &= jnp.diff(places.segment, axis=-1) == 0
        one |= (places.segment[..., 1:] > before) | (places.segment[..., 1:] == 0)
    return one.all(-1)


def self_attention_rule(row: Any, options: Mapping[str, Any], causal: bool) -> Rule:
    """Returns what self-attention may see, as a row of MASKS and the model's direction say it.

    Args:
      row: a class of rules, or a rule, or a function as in OfPositions with the options as further
        arguments.
      options: its fields.
      causal: whether the model may not look ahead.
    Raises:
      ValueError: a prefix in a model that sees everything, or options beside a rule.
    """
    if isinstance(row, Rule):
        if options:
            raise ValueError(f"mask: {row} has its options; expected none beside it, got {options}")
        rule = row
    elif isinstance(row, type) and issubclass(row, Rule):
        rule = row(**options)
    else:
        rule = OfPositions(functools.partial(row, **options) if options else row, causal)
    if not causal and any(name == "prefix" for name, _ in rule.tags):
        raise ValueError("mask: a prefix is for causal models; this one sees everything")
    if not causal or _sees_ahead(rule) or type(rule) is Causal:
        return rule
    return Causal() if type(rule) is Full else rule & Causal()


def _sees_ahead(rule: Rule) -> bool:
    """Returns whether a rule, or one joined in it, says that a causal model may look ahead."""
    return any(map(_sees_ahead, rule.rules)) if isinstance(rule, Joined) else rule.sees_ahead

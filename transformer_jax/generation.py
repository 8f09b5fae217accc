"""Generation: drawing new tokens from a language model."""

import functools
import inspect
import sys
from collections.abc import Callable
from numbers import Integral, Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.typing import ArrayLike

from transformer_jax.cache import with_capacity
from transformer_jax.errors import InvalidInput
from transformer_jax.paths import variables_of


def restrict_logits(logits: Array, top_k: int | None = None, top_p: float = 1.0) -> Array:
    """Returns the logits, set to -inf for every token that must not be drawn.

    Args:
      logits: [..., V] float.
      top_k: Keeps the k likeliest tokens (Fan et al. 2018); None, or k >= V, keeps all.
      top_p: Keeps the smallest set of likeliest tokens whose total probability reaches p
        (Holtzman et al. 2020, section 3.1), at least one token; 1 keeps all.
    Returns:
      [..., V]; the likeliest token is always kept, as is any token tied with the last one kept.
    """
    _, top_k, top_p = checked_draws((1.0, top_k, top_p))
    vocab_size = logits.shape[-1]
    descending = jnp.flip(jnp.sort(_at_least_float32(logits), axis=-1), axis=-1)
    if top_k is not None and top_k < vocab_size:
        least = descending[..., top_k - 1, None]
        logits, descending = (jnp.where(a < least, -jnp.inf, a) for a in (logits, descending))
    if top_p < 1:
        probabilities = jax.nn.softmax(descending, axis=-1)
        reached_before = jnp.cumsum(probabilities, axis=-1) - probabilities
        count = jnp.maximum((reached_before < top_p).sum(-1, keepdims=True), 1)
        smallest = jnp.take_along_axis(descending, count - 1, axis=-1)
        logits = jnp.where(logits < smallest, -jnp.inf, logits)
    return logits


def _at_least_float32(logits: Array) -> Array:
    """Returns logits in which sums and Gumbel noise over a vocabulary are exact enough."""
    return logits.astype(jnp.promote_types(logits.dtype, jnp.float32))


def draw_token(
    rng: Array,
    logits: Array,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> Array:
    """Draws one token from softmax(logits / temperature), restricted to top-k and top-p.

    Args:
      rng: PRNG key.
      logits: [..., V] float.
      temperature: Divisor of the logits; 0, or less than 1e-30, takes the likeliest token.
      top_k: As in restrict_logits.
      top_p: As in restrict_logits, applied after the temperature.
    Returns:
      [...] int32; -1 if the logits contain NaN, or all are -inf.
    Raises:
      InvalidInput: An option is not allowed.
    """
    temperature, top_k, top_p = checked_draws((temperature, top_k, top_p))
    if temperature < 1e-30:
        drawn = logits.argmax(-1)
    else:
        restricted = restrict_logits(_at_least_float32(logits) / temperature, top_k, top_p)
        drawn = jax.random.categorical(rng, restricted, axis=-1)
    has_none = jnp.isnan(logits).any(-1) | (logits == -jnp.inf).all(-1)
    return jnp.where(has_none, -1, drawn).astype(jnp.int32)


# (context [..., C], length, cache) -> (logits [..., V] after the first `length` tokens, cache)
NextLogits = Callable[[Array, Array, Any], tuple[Array, Any]]
# (tokens [..., T], cache) -> (logits [..., T, V], cache); the first cache is {}
Read = Callable[[Array, Any], tuple[Array, Any]]


class Text(NamedTuple):
    """State of texts during their generation.

    Attributes:
      context: The model's input, [..., C] int32.
      length: Number of tokens in the context, [] int32.
      drawn: New tokens, [..., N] int32; 0 where none has been drawn yet.
      cache: Cache of the model, any tree of arrays.
    """

    context: Array
    length: Array
    drawn: Array
    cache: Any


class Draws(NamedTuple):
    """Options of draw_token."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0


def windowed_next_logits(apply: Callable[..., Array], method: Callable | None = None) -> NextLogits:
    """Returns a NextLogits function without a cache, which reads the whole context for each token.

    A mask may look ahead, so `segments` marks the unwritten positions as padding.

    Args:
      apply: Function from tokens [..., C] to logits [..., C, V], which is causal or takes the
        argument `segments` [..., C].
      method: Function whose signature is inspected in place of that of `apply`.
    """
    takes_segments = "segments" in inspect.signature(method or apply).parameters

    def next_logits(context: Array, length: Array, cache: Any) -> tuple[Array, Any]:
        is_written = jnp.broadcast_to(jnp.arange(context.shape[-1]) < length, context.shape)
        segments = {"segments": is_written.astype(jnp.int32)} if takes_segments else {}
        logits = apply(context, **segments)
        return jax.lax.dynamic_index_in_dim(logits, length - 1, axis=-2, keepdims=False), cache

    return next_logits


def generate(
    next_logits: NextLogits,
    prompt: Array,
    num_tokens: int,
    rng: Array,
    max_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    cache: Any = None,
    end: int | Array | None = None,
) -> Array:
    """Continues a prompt, one token at a time.

    When the text outgrows the model's `max_length`, the context slides: the model sees the last
    `max_length` tokens, at positions 0 .. max_length - 1. Under jit, all numbers are static.

    Args:
      next_logits: Function that returns the logits after a context, and a new cache.
      prompt: [..., P] int, at least one token.
      num_tokens: Number of tokens to add, N.
      rng: PRNG key; token i is drawn with fold_in(rng, i).
      max_length: Maximum input length of the model, C.
      temperature, top_k, top_p: As in draw_token.
      cache: Initial cache of next_logits, any tree of arrays.
      end: Token that ends a text. Once every text contains it, drawing stops and the rest is 0.

    Returns:
      New tokens, [..., N] int32; -1 from the first NaN in the logits onwards.

    Raises:
      InvalidInput: The prompt is empty, or a sampling option is out of range.
    """
    draws = checked_draws((temperature, top_k, top_p), prompt, num_tokens)
    if num_tokens == 0:  # a loop without steps still traces its body, which could not write
        return jnp.zeros((*prompt.shape[:-1], 0), jnp.int32)
    text = begin_text(prompt, num_tokens, max_length, cache)
    return continue_text(next_logits, text, 0, num_tokens, rng, draws, end).drawn


def begin_text(prompt: Array, num_tokens: int, max_length: int, cache: Any) -> Text:
    """Returns a text of which nothing is drawn yet."""
    seen = prompt[..., -max_length:]
    padding = [(0, 0)] * (seen.ndim - 1) + [(0, max_length - seen.shape[-1])]
    context = jnp.pad(seen, padding).astype(jnp.int32)
    drawn = jnp.zeros((*prompt.shape[:-1], num_tokens), jnp.int32)
    return Text(context, jnp.int32(seen.shape[-1]), drawn, cache)


def continue_text(
    next_logits: NextLogits,
    text: Text,
    first: int | Array,
    last: int | Array,
    rng: Array,
    draws: Draws,
    end: int | Array | None = None,
) -> Text:
    """Returns the text with new tokens `first` to `last - 1`, or fewer if all texts have ended."""

    def add_token(index: Array, text: Text) -> Text:
        context, length, drawn, cache = text
        logits, cache = next_logits(context, length, cache)
        token = draw_token(jax.random.fold_in(rng, index), logits, *draws)
        is_full = length == context.shape[-1]
        context = jnp.where(is_full, jnp.roll(context, -1, axis=-1), context)
        length = jnp.where(is_full, length, length + 1)
        context = context.at[..., length - 1].set(token)
        return Text(context, length, drawn.at[..., index].set(token), cache)

    if end is None:
        return jax.lax.fori_loop(first, last, add_token, text)

    def is_unfinished(state: tuple[Array, Text]) -> Array:
        index, text = state
        is_end = (text.drawn == end) & (jnp.arange(text.drawn.shape[-1]) < index)
        return (index < last) & ~is_end.any(-1).all()

    def advance(state: tuple[Array, Text]) -> tuple[Array, Text]:
        index, text = state
        return index + 1, add_token(index, text)

    return jax.lax.while_loop(is_unfinished, advance, (jnp.int32(first), text))[1]


def generate_with_cache(
    read: Read | None,
    read_window: NextLogits,
    prompt: Array,
    num_tokens: int,
    rng: Array,
    max_length: int,
    end: int | Array | None = None,
    **draws: Any,
) -> Array:
    """Continues a prompt with a model that caches the tokens it has read; see `generate`.

    The prompt is read in one pass, then each new token on its own, until the context slides.
    Sliding moves every token, so from then on the whole context is read for each new token.

    Args:
      read: Function that reads tokens with a cache; None if the model has no cache.
      read_window: Function that reads a whole context; it returns the cache unchanged.
      prompt, num_tokens, rng, max_length, end: As in generate.
      **draws: temperature, top_k and top_p, as in generate.
    """
    checked_draws(Draws(**draws), prompt, num_tokens)
    next_logits, cache = read_window, None
    if read is not None and num_tokens:
        fits = fits_in(prompt, num_tokens, max_length)
        next_logits = cached_logits(read, read_window, fits, max_length)
        cache = read_prompt(read, prompt, num_tokens, max_length)
    return generate(next_logits, prompt, num_tokens, rng, max_length, cache=cache, end=end, **draws)


def fits_in(prompt: Array, num_tokens: int, max_length: int) -> bool:
    """Returns whether all tokens except the last new one fit into `max_length`."""
    return min(prompt.shape[-1], max_length) - 1 + num_tokens <= max_length


def read_prompt(read: Read, prompt: Array, num_tokens: int, max_length: int) -> tuple[Array, Any]:
    """Reads all prompt tokens but the last; returns their number, and a cache with room left."""
    tokens = prompt[..., -max_length:][..., :-1]
    count = tokens.shape[-1]
    return jnp.int32(count), with_capacity(read(tokens, {})[1], min(count + num_tokens, max_length))


def cached_logits(read: Read, read_window: NextLogits, fits: bool, max_length: int) -> NextLogits:
    """Returns a NextLogits that reads the last token, or the whole context once it slides."""

    def read_last(context: Array, length: Array, cache: Any) -> tuple[Array, Any]:
        count, cached = cache
        token = jax.lax.dynamic_slice_in_dim(context, length - 1, 1, axis=-1)
        logits, cached = read(token, cached)
        return logits[..., -1, :], (count + 1, cached)

    def read_while_it_fits(context: Array, length: Array, cache: Any) -> tuple[Array, Any]:
        still_fits = cache[0] < max_length
        return jax.lax.cond(still_fits, read_last, read_window, context, length, cache)

    return read_last if fits else read_while_it_fits


def readers_of(
    model: Any, params: Any, *memory: Array, method: str = "__call__"
) -> tuple[Read | None, NextLogits]:
    """Returns two functions that apply a model: one with its cache (or None), and one without."""

    def read(tokens: Array, cache: Any) -> tuple[Array, Any]:
        variables = {**variables_of(params), "cache": cache}
        logits, updated = model.apply(variables, tokens, *memory, method=method, mutable=["cache"])
        return logits, updated["cache"]

    def apply(tokens: Array, **segments: Array) -> Array:
        return model.apply(variables_of(params), tokens, *memory, method=method, **segments)

    can_cache = hasattr(model, "can_cache") and model.can_cache()  # a user's model may lack it
    read_window = windowed_next_logits(apply, getattr(type(model), method))
    return (read if can_cache else None), read_window


def generate_from(model: Any, params: Any, prompt: ArrayLike, rng: Array, **options: Any) -> Array:
    """Continues a prompt with a decoder; compiled once per prompt length and set of options.

    Args:
      model: A hashable Linen module with a `max_length`, such as Decoder.
      params: Parameters of the model.
      prompt: [..., P] int.
      rng: PRNG key.
      **options: num_tokens, temperature, top_k and top_p, as in `generate`.

    Returns:
      New tokens, [..., num_tokens] int32.
    """
    options = {name: plain_number(value) for name, value in options.items()}
    return _generate_from(model, params, jnp.asarray(prompt), rng, **options)


@functools.partial(jax.jit, static_argnames=("model", "num_tokens", *Draws._fields))
def _generate_from(model: Any, params: Any, prompt: Array, rng: Array, **options: Any) -> Array:
    if prompt.ndim == 1 and not hasattr(model, "can_cache"):  # a user's model may need [B, L]
        return _generate_from(model, params, prompt[None], rng, **options)[0]
    readers = readers_of(model, params)
    return generate_with_cache(*readers, prompt, rng=rng, max_length=model.max_length, **options)


@functools.partial(jax.jit, static_argnames=("model", "num_tokens"))
def generate_after(
    model: Any,
    params: Any,
    source_inputs: dict[str, Array],
    begin: Array,
    num_tokens: int,
    end: int | Array | None = None,
) -> Array:
    """Generates targets for sources with an encoder–decoder, always choosing the likeliest token.

    Args:
      model: A hashable Linen module with `encode` and `decode`, such as EncoderDecoder.
      params: Parameters of the model.
      source_inputs: Arguments of `encode` by name, arrays [B, M].
      begin: Tokens before the first new one, [] or [P] int.
      num_tokens: Number of tokens to write, N; P - 1 + N is at most the maximum target length.
      end: Token that ends a target. Once every target contains it, no more tokens are written.

    Returns:
      [B, N] int32; tokens after an end token are arbitrary. -1 from the first NaN logit onwards.
    """
    memory = model.apply(variables_of(params), **source_inputs, method="encode")
    begin = jnp.atleast_1d(jnp.asarray(begin))
    prompt = jnp.broadcast_to(begin, (len(source_inputs["source"]), len(begin)))
    return generate_with_cache(
        *readers_of(model, params, memory, method="decode"),
        prompt,
        num_tokens,
        jax.random.key(0),  # the likeliest token needs no random numbers
        len(begin) - 1 + num_tokens,
        end,
        temperature=0,
    )


def plain_number(value: Any) -> Any:
    """Returns a number of jax or numpy as one of Python, which has a hash; others unchanged."""
    return value.item() if getattr(value, "shape", None) == () else value


def checked_draws(draws: tuple, prompt: Any = None, num_tokens: int = 0) -> Draws:
    """Returns the options of draw_token as plain numbers.

    Raises:
      InvalidInput: One of them, a prompt or a number of tokens is not allowed; all are named.
    """
    draws = Draws(*map(plain_number, draws))
    heat, k, p = draws
    is_integer = isinstance(num_tokens, Integral) and 0 <= num_tokens < 2**31
    is_finite = isinstance(heat, Real) and 0 <= heat <= sys.float_info.max
    rows = [
        ("num_tokens", num_tokens, "an integer >= 0, below 2**31", is_integer),
        ("temperature", heat, "a finite number >= 0", is_finite),
        ("top_k", k, "an integer >= 1 or None", k is None or (isinstance(k, Integral) and k >= 1)),
        ("top_p", p, "a number in [0, 1]", isinstance(p, Real) and 0 <= p <= 1),
    ]
    if prompt is not None:
        is_right = prompt.ndim and prompt.shape[-1] and jnp.issubdtype(prompt.dtype, jnp.integer)
        given = f"{prompt.dtype} {prompt.shape}"
        rows.append(("prompt", given, "integers [..., P], at least one token", is_right))
    if wrong := [
        f"{name}: expected {what}, got {given}" for name, given, what, ok in rows if not ok
    ]:
        raise InvalidInput("\n".join(wrong))
    return draws

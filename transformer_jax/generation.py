"""Drawing new tokens from a language model."""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.cache import with_capacity
from transformer_jax.errors import InvalidInput
from transformer_jax.sampling import draw_token

# (context [..., C], length, cache) -> (logits [..., V] after the first `length` tokens, new cache).
# A model that keeps keys and values puts them into the cache; one that does not, passes it on.
NextLogits = Callable[[Array, Array, Any], tuple[Array, Any]]


def windowed_next_logits(apply: Callable[..., Array], method: Callable | None = None) -> NextLogits:
    """Turns a model into a NextLogits without a cache: the whole window is computed every time.

    A mask may let places look ahead, so what is not written yet is told as padding, by `segments`.

    Args:
      apply: tokens [..., C] -> logits [..., C, V], causal, or with an argument `segments` [..., C].
      method: whose arguments `apply` takes, if they cannot be read off it.
    """
    tells_segments = "segments" in inspect.signature(method or apply).parameters

    def next_logits(context: Array, length: Array, cache: Any) -> tuple[Array, Any]:
        is_written = jnp.broadcast_to(jnp.arange(context.shape[-1]) < length, context.shape)
        extra = {"segments": is_written.astype(jnp.int32)} if tells_segments else {}
        logits = apply(context, **extra)
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
    `max_length` tokens, at positions 0 .. max_length - 1. Works under jit (all sizes static).

    Args:
      next_logits: gives the logits after a context, and a new cache.
      prompt: [..., P] int, at least one token.
      num_tokens: tokens to add, N.
      rng: PRNG key; token i is drawn with fold_in(rng, i).
      max_length: the model's longest input, C.
      temperature: as in draw_token.
      top_k: as in draw_token.
      top_p: as in draw_token.
      cache: what next_logits starts with, any tree of arrays.
      end: a token; once all texts have it no more is drawn, and the rest is 0.
    Returns:
      [..., N] int32, the new tokens; -1 from where the model's logits held a NaN.
    Raises:
      InvalidInput: the prompt is empty, or a sampling option has no meaning.
    """
    _check_options(prompt, num_tokens, temperature, top_k, top_p)
    if num_tokens == 0:  # a loop over nothing is traced too, and has no place to write to
        return jnp.zeros((*prompt.shape[:-1], 0), jnp.int32)
    draws = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "end": end}
    begun = _begun(prompt, num_tokens, max_length, cache)
    return _continued(next_logits, begun, 0, num_tokens, rng, max_length, **draws).drawn


class _Text(NamedTuple):
    """A text that is being written.

    Attributes:
      context: [..., C] int32, what the model sees.
      length: [] int32, how many tokens of it are there.
      drawn: [..., N] int32, the new tokens; 0 where none was drawn yet.
      cache: what the model has kept.
    """

    context: Array
    length: Array
    drawn: Array
    cache: Any


def _begun(prompt: Array, num_tokens: int, max_length: int, cache: Any) -> _Text:
    seen = prompt[..., -max_length:]
    padding = [(0, 0)] * (seen.ndim - 1) + [(0, max_length - seen.shape[-1])]
    context = jnp.pad(seen, padding).astype(jnp.int32)
    drawn = jnp.zeros((*prompt.shape[:-1], num_tokens), jnp.int32)
    return _Text(context, jnp.int32(seen.shape[-1]), drawn, cache)


def _continued(
    next_logits: NextLogits,
    text: _Text,
    first: int | Array,
    last: int | Array,
    rng: Array,
    max_length: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    end: int | Array | None = None,
) -> _Text:
    """The text with new tokens first to last - 1, or fewer where all have ended."""

    def add_token(index: Array, text: _Text) -> _Text:
        context, length, drawn, cache = text
        logits, cache = next_logits(context, length, cache)
        token = draw_token(jax.random.fold_in(rng, index), logits, temperature, top_k, top_p)
        is_full = length == max_length
        context = jnp.where(is_full, jnp.roll(context, -1, axis=-1), context)
        length = jnp.where(is_full, length, length + 1)
        context = context.at[..., length - 1].set(token)
        return _Text(context, length, drawn.at[..., index].set(token), cache)

    if end is None:
        return jax.lax.fori_loop(first, last, add_token, text)

    def goes_on(state: tuple[Array, _Text]) -> Array:
        index, text = state
        is_end = (text.drawn == end) & (jnp.arange(text.drawn.shape[-1]) < index)
        return (index < last) & ~is_end.any(-1).all()

    def advance(state: tuple[Array, _Text]) -> tuple[Array, _Text]:
        index, text = state
        return index + 1, add_token(index, text)

    return jax.lax.while_loop(goes_on, advance, (jnp.int32(first), text))[1]


def generate_with_cache(
    read: Callable[[Array, Any], tuple[Array, Any]],
    read_again: NextLogits,
    prompt: Array,
    num_tokens: int,
    rng: Array,
    max_length: int,
    end: int | Array | None = None,
    **options: Any,
) -> Array:
    """`generate` with a model that keeps what it has read: the prompt is read at once.

    Each token is then read alone, until the context slides: every token's position changes with
    that, so from there on the whole context is read for each new token.

    Args:
      read: (tokens [..., T], cache) -> (logits [..., T, V], new cache); the first cache is {}.
      read_again: gives the logits after a whole context, and passes the cache on.
      prompt: as in generate.
      num_tokens: as in generate.
      rng: as in generate.
      max_length: as in generate.
      end: as in generate.
      **options: temperature, top_k and top_p of generate.
    Returns:
      As generate does.
    """
    _check_options(
        prompt, num_tokens, **{"temperature": 1.0, "top_k": None, "top_p": 1.0, **options}
    )
    next_logits = _with_cache(read, read_again, _fits(prompt, num_tokens, max_length), max_length)
    cache = _prompt_read(read, prompt, num_tokens, max_length) if num_tokens else None
    options = {"cache": cache, "end": end, **options}
    return generate(next_logits, prompt, num_tokens, rng, max_length, **options)


def _fits(prompt: Array, num_tokens: int, max_length: int) -> bool:
    """Returns whether all tokens but the last new one fit into the model's longest input."""
    return min(prompt.shape[-1], max_length) - 1 + num_tokens <= max_length


def _prompt_read(
    read: Callable[[Array, Any], tuple[Array, Any]], prompt: Array, num_tokens: int, max_length: int
) -> tuple[Array, Any]:
    """Returns the number of tokens read (the prompt but its last) and the cache, with room."""
    begun = prompt[..., -max_length:][..., :-1]
    count = begun.shape[-1]
    return jnp.int32(count), with_capacity(read(begun, {})[1], min(count + num_tokens, max_length))


def _with_cache(
    read: Callable[[Array, Any], tuple[Array, Any]],
    read_again: NextLogits,
    fits: bool,
    max_length: int,
) -> NextLogits:
    """Reads the last token alone; or, from where the context slides, the whole context."""

    def read_last(context: Array, length: Array, cache: Any) -> tuple[Array, Any]:
        held, cached = cache
        token = jax.lax.dynamic_slice_in_dim(context, length - 1, 1, axis=-1)
        logits, cached = read(token, cached)
        return logits[..., -1, :], (held + 1, cached)

    def read_while_it_fits(context: Array, length: Array, cache: Any) -> tuple[Array, Any]:
        still_fits = cache[0] < max_length
        return jax.lax.cond(still_fits, read_last, read_again, context, length, cache)

    return read_last if fits else read_while_it_fits


def feed_back(logits_of: Callable[[Array], Array], tokens: Array, replaced: Array) -> Array:
    """Writes the likeliest tokens into some places, from left to right, each seen by the next ones.

    Args:
      logits_of: tokens [..., L] -> logits [..., L, V] of each next token.
      tokens: [..., L] int; what stands in a place that is to be written is not seen.
      replaced: [..., L] bool, the places; the first one cannot be among them.
    Returns:
      [..., L] int32.
    """
    length = tokens.shape[-1]

    def write(place: Array, tokens: Array) -> Array:
        logits = jax.lax.dynamic_index_in_dim(logits_of(tokens), place - 1, -2, keepdims=False)
        at_place = jnp.arange(length) == place
        return jnp.where(replaced & at_place, logits.argmax(-1)[..., None], tokens)

    unseen = jnp.where(replaced, 0, tokens).astype(jnp.int32)
    return jax.lax.fori_loop(1, length, write, unseen)


@functools.partial(
    jax.jit, static_argnames=("model", "num_tokens", "temperature", "top_k", "top_p")
)
def generate_from(model: Any, params: Any, prompt: Array, rng: Array, **options: Any) -> Array:
    """Continues a prompt with a decoder; compiled once for each length of prompt and each option.

    Args:
      model: a hashable Linen module with a `max_length`, such as Decoder.
      params: of the model.
      prompt: [..., P] int.
      rng: PRNG key.
      **options: num_tokens, temperature, top_k, top_p of `generate`.
    Returns:
      [..., num_tokens] int32.
    """
    if prompt.ndim == 1 and not hasattr(model, "can_cache"):  # one's own may know [B, L] alone
        return generate_from(model, params, prompt[None], rng, **options)[0]
    sizes: dict[str, Any] = {"rng": rng, "max_length": model.max_length, **options}
    read, read_again = _reading(model, params)
    if read is None:
        return generate(read_again, prompt, **sizes)
    return generate_with_cache(read, read_again, prompt, **sizes)


def stream_from(
    model: Any,
    params: Any,
    prompt: Array,
    rng: Array,
    num_tokens: int,
    piece: int = 8,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
) -> Iterator[Array]:
    """Yields the tokens of `generate_from` as they are drawn, `piece` of them at a time.

    What is not asked for is not drawn.

    Args:
      model: as in generate_from.
      params: of the model.
      prompt: [P] int.
      rng: PRNG key.
      num_tokens: as in generate.
      piece: how many at a time; the last ones may be fewer.
      temperature: as in draw_token.
      top_k: as in draw_token.
      top_p: as in draw_token.
    Yields:
      [piece] int32.
    Raises:
      InvalidInput: see generate.
    """
    _check_options(prompt, num_tokens, temperature, top_k, top_p)
    fits = _fits(prompt, num_tokens, model.max_length)
    text = _begin_text(model, params, prompt[None], num_tokens)
    for first in range(0, num_tokens, piece):
        last = min(first + piece, num_tokens)
        text = _advance_text(model, params, text, rng, first, last, fits, temperature, top_k, top_p)
        yield text.drawn[0, first:last]


@functools.partial(jax.jit, static_argnums=(0, 3))
def _begin_text(model: Any, params: Any, prompt: Array, num_tokens: int) -> _Text:
    read, _ = _reading(model, params)
    sizes = num_tokens, model.max_length
    return _begun(prompt, *sizes, _prompt_read(read, prompt, *sizes) if read else None)


@functools.partial(jax.jit, static_argnums=(0, 6, 7, 8, 9), donate_argnums=2)
def _advance_text(
    model: Any,
    params: Any,
    text: _Text,
    rng: Array,
    first: Array,
    last: Array,
    fits: bool,
    *draws: Any,
) -> _Text:
    read, read_again = _reading(model, params)
    next_logits = _with_cache(read, read_again, fits, model.max_length) if read else read_again
    return _continued(next_logits, text, first, last, rng, model.max_length, *draws)


def _reading(
    model: Any, params: Any
) -> tuple[Callable[[Array, Any], tuple[Array, Any]] | None, NextLogits]:
    """Returns a decoder's functions for the next token (or None) and for whole texts."""

    def read(tokens: Array, cache: Any) -> tuple[Array, Any]:
        return _apply_with_cache(model, params, cache, tokens)

    apply = functools.partial(model.apply, {"params": params})
    read_again = windowed_next_logits(apply, type(model).__call__)
    return (read if _can_cache(model) else None), read_again


@functools.partial(jax.jit, static_argnames=("model", "num_tokens"))
def generate_after(
    model: Any,
    params: Any,
    source_inputs: dict[str, Array],
    begin: Array,
    num_tokens: int,
    end: int | Array | None = None,
) -> Array:
    """Writes what an encoder–decoder finds likeliest after its source, token by token.

    Args:
      model: a hashable Linen module with `encode` and `decode`, such as EncoderDecoder.
      params: of the model.
      source_inputs: arguments of `encode`, arrays [B, M].
      begin: the tokens before the first one, [] or [P] int.
      num_tokens: tokens to write, N; P - 1 + N is at most the model's longest target.
      end: the token that ends a text; once all have it no more is written.
    Returns:
      [B, N] int32; what follows an end token means nothing. -1 from where a logit was NaN.
    """
    variables = {"params": params}
    memory = model.apply(variables, **source_inputs, method="encode")
    begin = jnp.atleast_1d(jnp.asarray(begin, jnp.int32))
    prompt = jnp.broadcast_to(begin, (len(source_inputs["source"]), len(begin)))
    # The likeliest token needs no draw.
    sizes: dict[str, Any] = {"rng": jax.random.key(0), "temperature": 0, "end": end}
    sizes["max_length"] = len(begin) - 1 + num_tokens

    def decode(tokens: Array, **segments: Array) -> Array:
        return model.apply(variables, tokens, memory, **segments, method="decode")

    read_again = windowed_next_logits(decode, model.decode)
    if not _can_cache(model):
        return generate(read_again, prompt, num_tokens, **sizes)

    def read(tokens: Array, cache: Any) -> tuple[Array, Any]:
        return _apply_with_cache(model, params, cache, tokens, memory, method="decode")

    return generate_with_cache(read, read_again, prompt, num_tokens, **sizes)


def _can_cache(model: Any) -> bool:
    """Returns whether a model says that its cache stays valid; a user's model may not say."""
    return hasattr(model, "can_cache") and model.can_cache()


def _apply_with_cache(
    model: Any, params: Any, cache: Any, *arguments: Any, **options: Any
) -> tuple[Array, Any]:
    variables = {"params": params, "cache": cache}
    logits, updated = model.apply(variables, *arguments, **options, mutable=["cache"])
    return logits, updated["cache"]


def _check_options(prompt, num_tokens, temperature, top_k, top_p) -> None:
    problems = []
    if prompt.shape[-1] < 1:
        problems.append("prompt: expected at least one token, got none")
    if not 0 <= num_tokens < 2**31:
        problems.append(f"num_tokens: expected 0 or more, below 2**31; got {num_tokens}")
    if not 0 <= temperature < float("inf"):
        problems.append(f"temperature: expected a finite number >= 0, got {temperature}")
    if top_k is not None and top_k < 1:
        problems.append(f"top_k: expected at least 1, got {top_k}")
    if not 0 <= top_p <= 1:
        problems.append(f"top_p: expected a number in [0, 1], got {top_p}")
    if problems:
        raise InvalidInput("\n".join(problems))

"""Drawing new tokens from a language model."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.errors import InvalidInput
from transformer_jax.layers.cache import with_capacity

# (context [..., C], length, cache) -> (logits [..., V] after the first `length` tokens, new cache).
# A model that keeps keys and values puts them into the cache; one that does not, passes it on.
NextLogits = Callable[[Array, Array, Any], tuple[Array, Any]]


def restrict_logits(logits: Array, top_k: int | None = None, top_p: float = 1.0) -> Array:
    """Returns the logits with every token that may not be drawn set to -inf.

    Args:
      logits: [..., V] float.
      top_k: keep the k likeliest tokens (Fan et al. 2018); None, or k >= V, keeps all.
      top_p: keep the smallest set of likeliest tokens whose probability reaches p (Holtzman et
        al. 2020, section 3.1), at least one; 1 keeps all.
    Returns:
      [..., V]; the likeliest token always stays.
    """
    vocab_size = logits.shape[-1]
    descending = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
    if top_k is not None and top_k < vocab_size:
        logits = jnp.where(logits < descending[..., top_k - 1, None], -jnp.inf, logits)
    if top_p < 1:
        probabilities = jax.nn.softmax(jnp.flip(jnp.sort(logits, axis=-1), axis=-1), axis=-1)
        reached_before = jnp.cumsum(probabilities, axis=-1) - probabilities
        kept = jnp.maximum((reached_before < top_p).sum(-1, keepdims=True), 1)
        smallest = jnp.take_along_axis(descending, kept - 1, axis=-1)
        logits = jnp.where(logits < smallest, -jnp.inf, logits)
    return logits


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
      temperature: 0 takes the likeliest token.
      top_k: as in restrict_logits.
      top_p: as in restrict_logits, after the temperature.
    Returns:
      [...] int32; -1 where the logits hold a NaN.
    """
    if temperature == 0:
        drawn = logits.argmax(-1)
    else:
        restricted = restrict_logits(logits / temperature, top_k, top_p)
        drawn = jax.random.categorical(rng, restricted, axis=-1)
    return jnp.where(jnp.isnan(logits).any(-1), -1, drawn).astype(jnp.int32)


def windowed_next_logits(apply: Callable[[Array], Array]) -> NextLogits:
    """Turns a model into a NextLogits without a cache: the whole window is computed every time.

    Args:
      apply: tokens [..., C] -> logits [..., C, V], causal.
    """

    def next_logits(context: Array, length: Array, cache: Any) -> tuple[Array, Any]:
        logits = apply(context)
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
    Returns:
      [..., N] int32, the new tokens; -1 from where the model's logits held a NaN.
    Raises:
      InvalidInput: the prompt is empty, or a sampling option has no meaning.
    """
    _check_options(prompt, num_tokens, temperature, top_k, top_p)
    seen = prompt[..., -max_length:]
    padding = [(0, 0)] * (seen.ndim - 1) + [(0, max_length - seen.shape[-1])]
    context = jnp.pad(seen, padding).astype(jnp.int32)

    def add_token(index: Array, carry: tuple) -> tuple:
        context, length, drawn, cache = carry
        logits, cache = next_logits(context, length, cache)
        token = draw_token(jax.random.fold_in(rng, index), logits, temperature, top_k, top_p)
        is_full = length == max_length
        context = jnp.where(is_full, jnp.roll(context, -1, axis=-1), context)
        length = jnp.where(is_full, length, length + 1)
        context = context.at[..., length - 1].set(token)
        return context, length, drawn.at[..., index].set(token), cache

    drawn = jnp.zeros((*prompt.shape[:-1], num_tokens), jnp.int32)
    start = (context, jnp.int32(seen.shape[-1]), drawn, cache)
    return jax.lax.fori_loop(0, num_tokens, add_token, start)[2]


def generate_with_cache(
    read: Callable[[Array, Any], tuple[Array, Any]],
    read_again: NextLogits,
    prompt: Array,
    num_tokens: int,
    rng: Array,
    max_length: int,
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
      **options: temperature, top_k and top_p of generate.
    Returns:
      As generate does.
    """
    _check_options(
        prompt, num_tokens, **{"temperature": 1.0, "top_k": None, "top_p": 1.0, **options}
    )
    begun = prompt[..., -max_length:][..., :-1]
    count = begun.shape[-1]

    def read_last(context: Array, length: Array, cache: Any) -> tuple[Array, Any]:
        held, kept = cache
        token = jax.lax.dynamic_slice_in_dim(context, length - 1, 1, axis=-1)
        logits, kept = read(token, kept)
        return logits[..., -1, :], (held + 1, kept)

    def read_while_it_fits(context: Array, length: Array, cache: Any) -> tuple[Array, Any]:
        fits = cache[0] < max_length
        return jax.lax.cond(fits, read_last, read_again, context, length, cache)

    needed = count + num_tokens
    next_logits = read_last if needed <= max_length else read_while_it_fits
    cache = jnp.int32(count), with_capacity(read(begun, {})[1], min(needed, max_length))
    return generate(next_logits, prompt, num_tokens, rng, max_length, cache=cache, **options)


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
    places = jnp.arange(model.max_length)
    tells_segments = "segments" in inspect.signature(type(model).__call__).parameters

    def read_again(context: Array, length: Array, cache: Any) -> tuple[Array, Any]:
        # A prefix mask lets places look ahead, where nothing has been written yet.
        segments = jnp.broadcast_to((places < length).astype(jnp.int32), context.shape)
        known = {"segments": segments} if tells_segments else {}
        logits = model.apply({"params": params}, context, **known)
        return jax.lax.dynamic_index_in_dim(logits, length - 1, axis=-2, keepdims=False), cache

    sizes: dict[str, Any] = {"rng": rng, "max_length": model.max_length, **options}
    if not _can_cache(model):
        return generate(read_again, prompt, **sizes)

    def read(tokens: Array, cache: Any) -> tuple[Array, Any]:
        return _apply_with_cache(model, params, cache, tokens)

    return generate_with_cache(read, read_again, prompt, **sizes)


@functools.partial(jax.jit, static_argnames=("model", "num_tokens"))
def generate_after(
    model: Any, params: Any, source_inputs: dict[str, Array], begin: Array, num_tokens: int
) -> Array:
    """Writes what an encoder–decoder finds likeliest after its source, token by token.

    Args:
      model: a hashable Linen module with `encode` and `decode`, such as EncoderDecoder.
      params: of the model.
      source_inputs: arguments of `encode`, arrays [B, M].
      begin: the token before the first one, int.
      num_tokens: tokens to write, N; at most the model's longest target.
    Returns:
      [B, N] int32; what follows an end token means nothing. -1 from where a logit was NaN.
    """
    variables = {"params": params}
    memory = model.apply(variables, **source_inputs, method="encode")
    prompt = jnp.full((len(source_inputs["source"]), 1), begin, jnp.int32)
    # The likeliest token needs no draw.
    sizes: dict[str, Any] = {"rng": jax.random.key(0), "max_length": num_tokens, "temperature": 0}
    read_again = windowed_next_logits(
        lambda tokens: model.apply(variables, tokens, memory, method="decode")
    )
    if not _can_cache(model):
        return generate(read_again, prompt, num_tokens, **sizes)

    def read(tokens: Array, cache: Any) -> tuple[Array, Any]:
        return _apply_with_cache(model, params, cache, tokens, memory, method="decode")

    return generate_with_cache(read, read_again, prompt, num_tokens, **sizes)


def _can_cache(model: Any) -> bool:
    """Whether a model says that what it kept stays right; one of the user's may not say."""
    return hasattr(model, "can_cache") and model.can_cache()


def _apply_with_cache(
    model: Any, params: Any, cache: Any, *arguments: Any, **options: Any
) -> tuple[Array, Any]:
    variables = {"params": params, "cache": cache}
    logits, kept = model.apply(variables, *arguments, **options, mutable=["cache"])
    return logits, kept["cache"]


def _check_options(prompt, num_tokens, temperature, top_k, top_p) -> None:
    problems = []
    if prompt.shape[-1] < 1:
        problems.append("prompt: expected at least one token, got none")
    if num_tokens < 0:
        problems.append(f"num_tokens: expected 0 or more, got {num_tokens}")
    if not 0 <= temperature < float("inf"):
        problems.append(f"temperature: expected a finite number >= 0, got {temperature}")
    if top_k is not None and top_k < 1:
        problems.append(f"top_k: expected at least 1, got {top_k}")
    if not 0 <= top_p <= 1:
        problems.append(f"top_p: expected a number in [0, 1], got {top_p}")
    if problems:
        raise InvalidInput("\n".join(problems))

"""Generation in pieces: tokens are handed out while further ones are drawn."""

import functools
from collections.abc import Iterator
from typing import Any

import jax
from jax import Array

from transformer_jax import generation
from transformer_jax.generation import Draws, Text


def stream_from(
    model: Any, params: Any, prompt: Array, rng: Array, num_tokens: int, size: int = 8, **draws: Any
) -> Iterator[Array]:
    """Yields the tokens of `generate_from` as they are drawn, `size` of them at a time.

    Args:
      model, params, rng: As in generate_from.
      prompt: [P] int.
      num_tokens: As in generate.
      size: Number of tokens at a time; the last piece may be shorter.
      **draws: temperature, top_k and top_p, as in draw_token.

    Yields:
      New tokens, [size] int32.

    Raises:
      InvalidInput: As in generate.
    """
    options = generation.checked_draws(Draws(**draws), prompt, num_tokens)
    fits = generation.fits_in(prompt, num_tokens, model.max_length)
    text = _begin_with_model(model, params, prompt[None], num_tokens)
    for first in range(0, num_tokens, size):
        last = min(first + size, num_tokens)
        text = _continue_with_model(model, params, text, rng, first, last, fits, options)
        yield text.drawn[0, first:last]


@functools.partial(jax.jit, static_argnums=(0, 3))
def _begin_with_model(model: Any, params: Any, prompt: Array, num_tokens: int) -> Text:
    read, _ = generation.readers_of(model, params)
    sizes = num_tokens, model.max_length
    cache = generation.read_prompt(read, prompt, *sizes) if read else None
    return generation.begin_text(prompt, *sizes, cache)


@functools.partial(jax.jit, static_argnums=(0, 6, 7), donate_argnums=2)
def _continue_with_model(
    model: Any, params: Any, text: Text, rng: Array, first: int, last: int, fits: bool, draws: Draws
) -> Text:
    read, next_logits = generation.readers_of(model, params)
    if read is not None:
        next_logits = generation.cached_logits(read, next_logits, fits, model.max_length)
    return generation.continue_text(next_logits, text, first, last, rng, draws)

"""Generation by unmasking: drawing the tokens of a text in any order, several at a time."""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.data.special_tokens import special_tokens
from transformer_jax.data.tokenizers import Tokenizer, warn_of_unknown
from transformer_jax.errors import InvalidInput
from transformer_jax.generation import checked_draws, draw_token
from transformer_jax.paths import variables_of
from transformer_jax.processes import whole

if TYPE_CHECKING:
    from transformer_jax.training.run import Run


def unmask(
    apply: Callable[[Array], Array],
    tokens: Array,
    mask: int,
    rng: Array,
    num_steps: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    by_confidence: bool = False,
) -> Array:
    """Replaces all mask tokens of a text by drawn tokens, about equally many in each step.

    In each step, tokens are drawn for all masked positions and some of these are kept. With one
    token per step in random order, the text is drawn from the model's own distribution; the fewer
    steps there are, the more neighbours are drawn without knowing each other.

    Args:
      apply: Function from tokens [L] to logits [L, V] of the tokens that may be drawn.
      tokens: [L] int, with mask tokens.
      mask: The mask token.
      rng: PRNG key.
      num_steps: Number of steps; more than there are mask tokens have no effect.
      temperature, top_k, top_p: As in generation.draw_token.
      by_confidence: Whether the likeliest of the drawn tokens are kept (Nie et al. 2025,
        arXiv:2502.09992, section 2.4), rather than those at random positions.
    Returns:
      [L] int32.
    """
    order_rng, rng = jax.random.split(rng)
    priority, count = jax.random.uniform(order_rng, tokens.shape), (tokens == mask).sum()

    def step(index: Array, tokens: Array) -> Array:
        masked, logits = tokens == mask, apply(tokens)
        drawn = draw_token(jax.random.fold_in(rng, index), logits, temperature, top_k, top_p)
        sure = jnp.take_along_axis(jax.nn.log_softmax(logits), drawn[:, None], -1)[:, 0]
        rank = jnp.where(masked, -sure if by_confidence else priority, jnp.inf).argsort()
        left = count * (num_steps - 1 - index) // num_steps
        kept = jnp.zeros_like(masked).at[rank].set(jnp.arange(len(rank)) < masked.sum() - left)
        return jnp.where(kept, drawn, tokens)

    return jax.lax.fori_loop(0, num_steps, step, tokens.astype(jnp.int32))


def room_for(run: "Run", prompt: str) -> int:
    """Returns the largest number of tokens that can be added to a prompt."""
    return run.model.max_length - 1 - sum(map(len, _around(run, prompt)[1:]))


def unmask_text(
    run: "Run",
    prompt: str = "",
    num_tokens: int = 100,
    num_steps: int | None = None,
    temperature: float = 0.8,
    top_k: int | None = None,
    top_p: float = 1.0,
    seed: int = 0,
    by_confidence: bool = False,
) -> str:
    """Returns a prompt with new tokens, drawn by a model that was trained on masked diffusion.

    Args:
      run: The run, from load_run.
      prompt: Text that the tokenizer can encode. New tokens are at its ___, or else at its end.
      num_tokens: Number of new tokens.
      num_steps: Number of steps; by default, one for each new token.
      temperature, top_k, top_p, by_confidence: As in unmask.
      seed: An integer in [0, 2^32); the same seed gives the same text.

    Raises:
      InvalidInput: The text is too long, an option or the task is wrong, or the logits are NaN.
    """
    from transformer_jax.training.run import key_of

    tokenizer, before, after = _around(run, prompt)
    num_steps = num_tokens if num_steps is None else num_steps
    draws = checked_draws((temperature, top_k, top_p), num_tokens=num_tokens)
    room = room_for(run, prompt)
    if not 1 <= num_tokens <= room or num_steps < 1:
        raise InvalidInput(
            f"num_tokens={num_tokens}, num_steps={num_steps}: expected numbers of at least 1; "
            f"besides this prompt there is room for {max(room, 0)} tokens"
        )
    specials = special_tokens(tokenizer)
    text = np.array([specials.begin, *before, *num_tokens * [specials.mask], *after], np.int32)
    never = tuple(n for n in specials[:4] if n < tokenizer.vocab_size)
    sizes = (specials.mask, tokenizer.vocab_size, never, num_steps, draws, by_confidence)
    drawn = np.asarray(whole(_drawn(run.model, sizes, run.params, text, key_of(seed))))
    if (drawn < 0).any():
        raise InvalidInput("the model's logits are NaN: a parameter is not finite")
    return tokenizer.decode(drawn[1:])


def _around(run: "Run", prompt: str) -> tuple[Tokenizer, list[int], list[int]]:
    """Returns a run's tokenizer, and the tokens of a prompt before and after the new ones."""
    if run.config.data.task != "masked_diffusion" or run.tokenizer is None:
        raise InvalidInput(f"expected a run of masked diffusion, got {run.config.data.task}")
    before, after = (run.tokenizer.encode(p).tolist() for p in prompt.partition("___")[::2])
    warn_of_unknown(run.tokenizer, np.array([*before, *after]))
    return run.tokenizer, before, after


@functools.partial(jax.jit, static_argnums=(0, 1))
def _drawn(model: Any, sizes: tuple, params: Any, text: Array, rng: Array) -> Array:
    mask, vocab_size, never, num_steps, draws, by_confidence = sizes

    def apply(tokens: Array) -> Array:
        logits = model.apply(variables_of(params), tokens[None])[0, :, :vocab_size]
        return logits.at[:, jnp.array(never, int)].set(-jnp.inf)

    return unmask(apply, text, mask, rng, num_steps, *draws, by_confidence)

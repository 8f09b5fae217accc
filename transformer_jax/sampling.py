"""Drawing one token from the logits of a language model."""

import jax
import jax.numpy as jnp
from jax import Array


def restrict_logits(logits: Array, top_k: int | None = None, top_p: float = 1.0) -> Array:
    """Returns the logits with every token that may not be drawn set to -inf.

    Args:
      logits: [..., V] float.
      top_k: Keeps the k likeliest tokens (Fan et al. 2018); None, or k >= V, keeps all.
      top_p: Keeps the smallest set of likeliest tokens whose probability reaches p (Holtzman et
        al. 2020, section 3.1), at least one; 1 keeps all.
    Returns:
      [..., V]; the likeliest token is always kept, and ties with the last kept one.
    """
    vocab_size = logits.shape[-1]
    descending = jnp.flip(jnp.sort(logits, axis=-1), axis=-1)
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
      temperature: 0 takes the likeliest token, as do values below 1e-30, where quotients
        overflow.
      top_k: As in restrict_logits.
      top_p: As in restrict_logits, after the temperature.
    Returns:
      [...] int32; -1 if the logits contain NaN.
    """
    if temperature < 1e-30:
        drawn = logits.argmax(-1)
    else:
        restricted = restrict_logits(logits / temperature, top_k, top_p)
        drawn = jax.random.categorical(rng, restricted, axis=-1)
    return jnp.where(jnp.isnan(logits).any(-1), -1, drawn).astype(jnp.int32)

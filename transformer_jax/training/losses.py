"""What training makes small."""

import jax
import jax.numpy as jnp
from jax import Array


def cross_entropy(logits: Array, targets: Array, weights: Array) -> Array:
    """Returns -weight * log softmax(logits)[target] for each target.

    A position of weight 0 gives exactly 0, with zero gradient, whatever its logits and target. A
    target outside the vocabulary gives NaN (a library that wraps -1 gives a finite wrong loss).

    Args:
      logits: [..., V] float; computed with in float32 or wider.
      targets: [...] int.
      weights: [...] float, 0 where no loss is wanted.
    Returns:
      [...] nats.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    counts = weights > 0
    logits = jnp.where(counts[..., None], logits, 0)
    places = jnp.where(targets < 0, logits.shape[-1], targets)[..., None]
    chosen = jnp.take_along_axis(logits, places, axis=-1, mode="fill", fill_value=jnp.nan)
    losses = jax.nn.logsumexp(logits, axis=-1) - chosen[..., 0]
    return jnp.where(counts, weights * losses, 0)

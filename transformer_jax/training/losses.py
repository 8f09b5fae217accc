"""What training makes small."""

import jax
import jax.numpy as jnp
from jax import Array


def cross_entropy(logits: Array, targets: Array, weights: Array, smoothing: float = 0.0) -> Array:
    """Returns -weight * log softmax(logits)[target] for each target.

    With smoothing e the target distribution is 1 - e on the target and e shared by all V classes
    (Szegedy et al. 2016, arXiv:1512.00567, section 7).

    A position of weight 0 gives exactly 0, with zero gradient, whatever its logits and target. A
    target outside the vocabulary gives NaN (a library that wraps -1 gives a finite wrong loss).

    Args:
      logits: [..., V] float; computed with in float32 or wider.
      targets: [...] int.
      weights: [...] float, 0 where no loss is wanted.
      smoothing: e, in [0, 1).
    Returns:
      [...] nats.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    counts = weights > 0
    logits = jnp.where(counts[..., None], logits, 0)
    places = jnp.where(targets < 0, logits.shape[-1], targets)[..., None]
    chosen = jnp.take_along_axis(logits, places, axis=-1, mode="fill", fill_value=jnp.nan)
    of_targets = chosen[..., 0]
    if smoothing:
        of_targets = (1 - smoothing) * of_targets + smoothing * logits.mean(-1)
    losses = jax.nn.logsumexp(logits, axis=-1) - of_targets
    return jnp.where(counts, weights * losses, 0)

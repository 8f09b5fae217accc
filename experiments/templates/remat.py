"""A component of my own: what a training step keeps of each block for its backward pass."""

from collections.abc import Callable

import jax

from transformer_jax.options import Switch


def mine(keeps_norms: Switch = False) -> Callable:
    """Keeps all but the widest values, which are computed again.

    Args:
      keeps_norms: whether what the feed-forward layer reads is kept; an option, for me to set.
    """
    left_out = ["feed_forward.hidden"] + ([] if keeps_norms else ["feed_forward.input"])
    return jax.checkpoint_policies.save_anything_except_these_names(*left_out)

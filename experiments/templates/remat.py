"""A component of my own: what a training step keeps of each block for its backward pass."""

from collections.abc import Callable

import jax

from transformer_jax.options import Switch


def mine(keeps_hidden: Switch = False) -> Callable:
    """Keeps what attention is made of and gives; all else of a block is computed again.

    Args:
      keeps_hidden: whether the widest values are kept too; an option, for me to set.
    """
    kept = ["attention.query", "attention.key", "attention.value", "attention.out"]
    kept += ["feed_forward.hidden"] * keeps_hidden
    return jax.checkpoint_policies.save_only_these_names(*kept)

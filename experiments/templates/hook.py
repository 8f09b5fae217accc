"""A hook of my own: values that are observed during training."""

import jax.numpy as jnp

from transformer_jax import capture


def mine(run, batch):
    """Returns the largest absolute value in the stream after the last block, over a batch.

    Args:
      run: The model with its current parameters; for more, see transformer_jax/training/hooks.py.
      batch: The batch of the next update.
    """
    values = capture(run.model, run.params, batch["inputs"], "*block_*.residual")
    name, stream = list(values.items())[-1]
    return {name: jnp.abs(stream).max()}

"""A hook of my own: what is looked at while a model is trained."""

import jax.numpy as jnp

from transformer_jax import capture


def mine(run, batch):
    """The largest value of the stream behind the last block, over a batch.

    Args:
      run: The model as it is; transformer_jax/training/hooks.py has other arguments.
      batch: That of the update that follows.
    """
    values = capture(run.model, run.params, batch["inputs"], "*block_*.residual")
    name, stream = list(values.items())[-1]
    return {name: jnp.abs(stream).max()}

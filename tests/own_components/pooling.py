"""A component of my own: from the vectors of all places to one vector of the whole."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp


@dataclasses.dataclass(frozen=True)
class Mine:
    """Half of each feature's mean over the places, and half of its largest value."""

    adds_token: ClassVar[bool] = False  # whether a class token has to stand first

    def __call__(self, hidden, is_token=None):
        """[..., L, D] and [..., L] bool, False where there is padding -> [..., D]."""
        kept = jnp.ones(hidden.shape[:-1], bool) if is_token is None else is_token
        kept = jnp.broadcast_to(kept, hidden.shape[:-1])[..., None]
        mean = jnp.where(kept, hidden, 0).sum(-2) / jnp.maximum(kept.sum(-2), 1)
        largest = jnp.where(kept, hidden, -jnp.inf).max(-2)
        return (mean + jnp.where(kept.any(-2), largest, 0)) / 2

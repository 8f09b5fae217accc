"""Pooling, which reduces the vectors of all positions to one vector."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.linear import Initializer
from transformer_jax.options import entry_of


class Pooling(Protocol):
    """Interface of all pooling classes.

    Attributes:
      adds_token: Whether the sequence must begin with a class token.
    """

    adds_token: ClassVar[bool] = False

    def __call__(self, hidden: Array, is_token: Array | None = None) -> Array:
        """[..., L, D] and [..., L] bool, False at padding -> [..., D]."""


@dataclasses.dataclass(frozen=True)
class FirstPlace(Pooling):
    """The vector of the class token, at the first position (Devlin et al. 2019, section 3)."""

    adds_token: ClassVar[bool] = True

    def __call__(self, hidden: Array, is_token: Array | None = None) -> Array:
        """[..., L, D] -> [..., D]."""
        return hidden[..., 0, :]


@dataclasses.dataclass(frozen=True)
class LastPlace(Pooling):
    """The vector of the last position that is not padding (Radford et al. 2018, section 3.2).

    Read from left to right, it has seen the whole input. It is 0 if everything is padding.
    """

    def __call__(self, hidden: Array, is_token: Array | None = None) -> Array:
        """[..., L, D] -> [..., D]."""
        if is_token is None:
            return hidden[..., -1, :]
        places = jnp.arange(hidden.shape[-2])
        last = jnp.where(is_token, places, -1).max(-1, keepdims=True)
        return jnp.where((places == last)[..., None], hidden, 0).sum(-2)


@dataclasses.dataclass(frozen=True)
class MeanOfPlaces(Pooling):
    """The mean over all positions that are not padding (Reimers and Gurevych 2019, section 3).

    The result is 0 if everything is padding. Sums are in float32 or wider.
    """

    def __call__(self, hidden: Array, is_token: Array | None = None) -> Array:
        """[..., L, D] -> [..., D]."""
        wide_LD = hidden.astype(jnp.promote_types(hidden.dtype, jnp.float32))
        if is_token is None:
            return wide_LD.mean(-2).astype(hidden.dtype)
        kept_D = jnp.where(is_token[..., None], wide_LD, 0).sum(-2)
        count = is_token.sum(-1, keepdims=True)
        return (kept_D / jnp.maximum(count, 1)).astype(hidden.dtype)


@dataclasses.dataclass(frozen=True)
class LargestOfPlaces(Pooling):
    """The maximum of each feature over all positions that are not padding (Conneau et al. 2017).

    arXiv:1705.02364. The result is 0 if everything is padding.
    """

    def __call__(self, hidden: Array, is_token: Array | None = None) -> Array:
        """[..., L, D] -> [..., D]."""
        if is_token is None:
            return hidden.max(-2)
        largest_D = jnp.where(is_token[..., None], hidden, -jnp.inf).max(-2)
        return jnp.where(is_token.any(-1, keepdims=True), largest_D, 0)


POOLINGS = {
    "class_token": FirstPlace,
    "last": LastPlace,
    "mean": MeanOfPlaces,
    "max": LargestOfPlaces,
    "attention": "transformer_jax.variants.attention_pooling:AttentionPooling",
}


def pooling_class(choice: str | Callable[[], Pooling]) -> Any:
    """Returns the class for a name, or a class itself; raises ValueError for an unknown name."""
    if not isinstance(choice, str):
        return choice
    if choice not in POOLINGS:
        raise ValueError(f"pooling: expected one of {', '.join(POOLINGS)}, got {choice!r}")
    return entry_of(POOLINGS, choice)


def adds_token(choice: str | Callable[[], Pooling]) -> bool:
    """Returns whether a pooling needs a class token; see Pooling."""
    made = pooling_class(choice)
    return (made if hasattr(made, "adds_token") else made()).adds_token


def pooling_of(choice: str | Callable[[], Pooling]) -> Pooling:
    """Returns a Pooling, inside the call of a module, which then owns its parameters."""
    made = pooling_class(choice)
    is_module = isinstance(made, type) and issubclass(made, nn.Module)
    return made(name="attention_pooling") if is_module else made()


class ClassToken(nn.Module):
    """Learned vectors put before a sequence: a class token, or registers.

    Dosovitskiy et al. 2021, arXiv:2010.11929, eq. 1; Darcet et al. 2024, arXiv:2309.16588, 2.2.

    Attributes:
      embedding_init: Initial values of the vectors.
      count: Number of vectors, N.
    """

    embedding_init: Initializer = nn.initializers.normal(0.02)
    count: int = 1

    @nn.compact
    def __call__(self, inputs: Array) -> Array:
        """[..., L, D] -> [..., N + L, D]."""
        vectors = self.param("embedding", self.embedding_init, (self.count, inputs.shape[-1]))
        repeated = jnp.broadcast_to(vectors, (*inputs.shape[:-2], *vectors.shape))
        return jnp.concatenate([repeated.astype(inputs.dtype), inputs], axis=-2)

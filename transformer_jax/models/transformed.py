"""Blocks under flax's transformations: scanned, rematerialised, or with shared parameters."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.blocks import Carry, Context, ModuleFactory


def rematerialised(make: ModuleFactory, policy: Any, prevent_cse: bool) -> ModuleFactory:
    """Returns a factory of blocks whose backward pass keeps what the policy allows."""
    assert isinstance(make, functools.partial)
    block = nn.remat(make.func, policy=policy, prevent_cse=prevent_cse)
    return functools.partial(block, *make.args, **make.keywords)


def with_params(make: ModuleFactory, params: Any) -> ModuleFactory:
    """Returns a factory of blocks that use `params`, those of an earlier block."""
    assert isinstance(make, functools.partial)
    block = nn.map_variables(make.func, "params", trans_in_fn=lambda _: {"params": params})
    return functools.partial(block, *make.args, **make.keywords)


def scan_units(
    makes: Sequence[ModuleFactory],
    letters: Sequence[str],
    count: int,
    hidden: Array,
    contexts: Mapping[str, Context],
) -> tuple[Array, Carry]:
    """Applies `count` blocks, the repetitions of a unit, in one loop named `blocks`.

    Args:
      makes: Factory of each block of the unit.
      letters: Letters of their layer types.
      count: Number of blocks, a multiple of the unit.
      hidden: Residual stream, [..., L, D].
      contexts: Context of each layer type.
    """
    unit = len(makes)
    scan = nn.scan(
        Unit,
        variable_axes={"params": 0, "losses": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),
        length=count // unit,
    )
    numbers = jnp.arange(count).reshape(-1, unit)
    units = scan(tuple(makes), tuple(letters), name="blocks")
    (hidden, carry), _ = units((hidden, Carry()), numbers, dict(contexts))
    return hidden, carry


class Unit(nn.Module):
    """The blocks that repeat in a scan."""

    makes: tuple[ModuleFactory, ...]
    letters: tuple[str, ...]

    @nn.compact
    def __call__(
        self, stream: tuple[Array, Carry], numbers: Array, contexts: Mapping[str, Context]
    ) -> tuple[tuple[Array, Carry], None]:
        """Maps the stream [..., L, D] and the carry, given the numbers of the blocks."""
        hidden, carry = stream
        for index, (make, letter) in enumerate(zip(self.makes, self.letters, strict=True)):
            context = dataclasses.replace(contexts[letter], layer=numbers[index])
            hidden, carry = make(name=f"block_{index}")(hidden, carry, context)
        return (hidden, carry), None

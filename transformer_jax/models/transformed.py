"""Blocks under flax's transformations: scanned, rematerialised, or with shared parameters."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.blocks import Carry, Context
from transformer_jax.linear import ModuleFactory


def rematerialised(make: ModuleFactory, policy: Any, prevent_cse: bool) -> ModuleFactory:
    """Returns a factory of blocks that keep, for the backward pass, only what the policy allows."""
    assert isinstance(make, functools.partial)
    block = nn.remat(make.func, policy=policy, prevent_cse=prevent_cse)
    return functools.partial(block, *make.args, **make.keywords)


def with_params(make: ModuleFactory, params: Any) -> ModuleFactory:
    """Returns a factory of blocks that use `params`, the parameters of an earlier block."""
    assert isinstance(make, functools.partial)
    block = nn.map_variables(make.func, "params", trans_in_fn=lambda _: {"params": params})
    return functools.partial(block, *make.args, **make.keywords)


def scan_units(
    makes: Sequence[ModuleFactory],
    letters: Sequence[str],
    count: int,
    hidden: Array,
    contexts: Mapping[str, Context],
    stacks: Mapping[str, Any],
) -> tuple[Array, Carry]:
    """Applies `count` blocks, as repetitions of a unit of blocks, in one loop named `blocks`.

    Args:
      makes: Factories of the blocks in the unit.
      letters: Letters of the layer types of these blocks.
      count: Total number of blocks, a multiple of the number in the unit.
      hidden: Residual stream, [..., L, D].
      contexts: Context of each layer type, by letter.
      stacks: Stacked variables of the loop, by collection.
    """
    unit = len(makes)
    scan = nn.scan(
        Unit,
        variable_axes={"params": 0, "losses": 0, "state": 0},
        split_rngs={"params": True, "dropout": True},
        in_axes=(0, nn.broadcast),
        length=count // unit,
    )
    numbers = jnp.arange(count).reshape(-1, unit)
    units = scan(tuple(makes), tuple(letters), name="blocks")

    def one_unit() -> Carry:
        """Applies the first unit alone, to see what it hands on."""
        variables = {kind: jax.tree.map(lambda x: x[0], tree) for kind, tree in stacks.items()}
        rngs = {"dropout": jax.random.key(0)}
        alone = Unit(tuple(makes), tuple(letters), parent=None)
        arguments = ((hidden, Carry()), numbers[0], dict(contexts))
        ((_, carry), _), _ = alone.apply(variables, *arguments, rngs=rngs, mutable=["losses"])
        return carry

    carry = _carry_of_scan(jax.eval_shape(one_unit))
    (hidden, carry), _ = units((hidden, carry), numbers, dict(contexts))
    return hidden, carry


def _carry_of_scan(shapes: Carry) -> Carry:
    """Returns the carry with which a scan begins, given that after its first unit, as shapes."""
    zeros = lambda leaf: jnp.zeros(leaf.shape, leaf.dtype)  # noqa: E731
    begun = {name: (jax.tree.map(zeros, held[-1]),) * 2 for name, held in shapes.outputs.items()}
    return Carry(begun, {name: jnp.bool_(False) for name in begun})


class Unit(nn.Module):
    """The group of blocks that a scan repeats."""

    makes: tuple[ModuleFactory, ...]
    letters: tuple[str, ...]

    @nn.compact
    def __call__(
        self, stream: tuple[Array, Carry], numbers: Array, contexts: Mapping[str, Context]
    ) -> tuple[tuple[Array, Carry], None]:
        """Applies the blocks, with the given numbers, to the stream [..., L, D] and the carry."""
        hidden, carry = stream
        for index, (make, letter) in enumerate(zip(self.makes, self.letters, strict=True)):
            context = dataclasses.replace(contexts[letter], layer=numbers[index])
            hidden, carry = make(name=f"block_{index}")(hidden, carry, context)
        return (hidden, carry), None

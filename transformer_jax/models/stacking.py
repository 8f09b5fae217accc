"""Blocks that compute the same as one: of each of their arrays a stack, with an axis in front.

Everywhere else a block's parameters are `block_3`. `block_1:12:2` are blocks 1, 3, ... 11: the
second of every two of twelve, as in Python's ranges.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def name_of_stack(index: int, whole: int, unit: int) -> str:
    """Returns the name of the blocks at one place of every unit.

    Args:
      index: in the unit, from 0 on.
      whole: how many blocks all units have together.
      unit: blocks from one repetition to the next.
    """
    return f"block_{index}:{whole}:{unit}"


def stack_blocks(tree: Any, unit: int, join: Callable[[Sequence[Any]], Any] = jnp.stack) -> Any:
    """Returns a tree with the blocks of its dicts stacked, those of the last half unit left alone.

    Args:
      tree: parameters, or what has dicts like theirs in it, an optimizer's state say.
      unit: how many blocks are repeated.
      join: makes one array of several.
    Raises:
      ValueError: arrays of blocks at one place of the unit differ in shape, or are not there.
    """

    def stacked(node: Any) -> Any:
        if not _has_blocks(node):
            return node
        count = sum(name.startswith("block_") for name in node)
        whole = count - count % unit
        if whole < 2 * unit:
            return node
        alone = {f"block_{number}" for number in range(whole)}
        rest = {name: part for name, part in node.items() if name not in alone}
        for index in range(unit):
            blocks = [node[f"block_{number}"] for number in range(index, whole, unit)]
            joined = jax.tree.map(lambda *leaves: join(leaves), *blocks)
            rest[name_of_stack(index, whole, unit)] = joined
        return rest

    return jax.tree.map(stacked, tree, is_leaf=_has_blocks)


def unstack_blocks(tree: Any) -> Any:
    """Returns a tree that stack_blocks gave with its blocks one by one; any other as it is."""

    def unstacked(node: Any) -> Any:
        if not _has_blocks(node):
            return node
        blocks = {}
        for name, part in node.items():
            if ":" not in name:
                blocks[name] = part
                continue
            numbers = range(*map(int, name.removeprefix("block_").split(":")))
            for index, number in enumerate(numbers):
                take = lambda leaf, index=index: leaf[index]  # noqa: E731
                blocks[f"block_{number}"] = jax.tree.map(take, part)
        return blocks

    return jax.tree.map(unstacked, tree, is_leaf=_has_blocks)


def _has_blocks(node: Any) -> bool:
    return isinstance(node, dict) and any(str(name).startswith("block_") for name in node)

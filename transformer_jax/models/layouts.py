"""Two layouts of parameters: separate blocks, and stacks of blocks for a scan."""

import re
from typing import Any

import jax
import jax.numpy as jnp

from transformer_jax.paths import by_path


def stack_blocks(tree: Any, unit: int) -> Any:
    """Returns parameters in the layout of a scan: `blocks/block_0`, ..., with a leading axis.

    Args:
      tree: Parameters with `block_0`, `block_1`, ..., or a tree that contains such dicts, e.g.
        the state of an optimizer. A dict may lack some blocks of the unit, in every repetition.
      unit: Number of blocks in a repeated unit; blocks of an incomplete last unit stay separate.

    Raises:
      ValueError: Blocks at the same place of the unit have different parameters.
    """
    numbers = _numbers_in(tree, r"block_(\d+)")
    count = 1 + max(numbers, default=-1)
    whole = count - count % unit
    if whole < 2 * unit:
        return tree

    def places_of(node: Any) -> list[int]:
        """Returns the places in the unit of which all repetitions are in a dict."""
        if not isinstance(node, dict):
            return []
        of_place = {place: range(place, whole, unit) for place in range(unit)}
        return [p for p, blocks in of_place.items() if all(f"block_{n}" in node for n in blocks)]

    def stacked(node: Any) -> Any:
        units, rest = {}, dict(node)
        for place in places_of(node):
            blocks = [rest.pop(f"block_{number}") for number in range(place, whole, unit)]
            if len({jax.tree.structure(block) for block in blocks}) > 1:
                raise ValueError(
                    f"scan_layers: blocks {place} and {place + unit} have different parameters, "
                    "which cannot be stacked; set scan_layers=False"
                )
            units[f"block_{place}"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)
        return {**rest, "blocks": units}

    has_places = lambda node: bool(places_of(node))  # noqa: E731
    return jax.tree.map(lambda n: stacked(n) if has_places(n) else n, tree, is_leaf=has_places)


def unstack_blocks(tree: Any) -> Any:
    """Returns a tree from stack_blocks with separate blocks; trees without stacks are unchanged."""
    unit = 1 + max(_numbers_in(tree, r"blocks/block_(\d+)"), default=-1)
    is_stack = lambda node: isinstance(node, dict) and "blocks" in node  # noqa: E731

    def unstacked(node: Any) -> Any:
        if not is_stack(node):
            return node
        blocks = {}
        for place in range(unit):
            part = node["blocks"].get(f"block_{place}", {})
            leaves = jax.tree.leaves(part)
            for repeat in range(len(leaves[0]) if leaves else 0):
                take = lambda leaf, repeat=repeat: leaf[repeat]  # noqa: E731
                blocks[f"block_{repeat * unit + place}"] = jax.tree.map(take, part)
        rest = {name: part for name, part in node.items() if name != "blocks"}
        return {**jax.tree.map(unstacked, rest, is_leaf=is_stack), **blocks}

    return jax.tree.map(unstacked, tree, is_leaf=is_stack)


def _numbers_in(tree: Any, pattern: str) -> list[int]:
    """Returns the numbers that a pattern finds in the paths of a tree."""
    return [int(number) for path in by_path(tree) for number in re.findall(pattern, path)]

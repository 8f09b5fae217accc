"""Two layouts of parameters: separate blocks, and stacks of blocks for a scan."""

from typing import Any

import jax
import jax.numpy as jnp


def stack_blocks(tree: Any, unit: int) -> Any:
    """Returns parameters in the layout of a scan: `blocks/block_0`, ..., with a leading axis.

    Args:
      tree: Parameters with `block_0`, `block_1`, ..., or a tree that contains such dicts, e.g.
        the state of an optimizer.
      unit: Number of blocks in a repeated unit; blocks of an incomplete last unit stay separate.
    """

    def stacked(node: Any) -> Any:
        if not _has_blocks(node):
            return node
        count = sum(name.startswith("block_") for name in node)
        whole = count - count % unit
        if whole < 2 * unit:
            return node
        rest = {k: v for k, v in node.items() if k not in {f"block_{n}" for n in range(whole)}}
        units = {}
        for index in range(unit):
            blocks = [node[f"block_{number}"] for number in range(index, whole, unit)]
            units[f"block_{index}"] = jax.tree.map(lambda *leaves: jnp.stack(leaves), *blocks)
        return {**rest, "blocks": units}

    return jax.tree.map(stacked, tree, is_leaf=_has_blocks)


def unstack_blocks(tree: Any) -> Any:
    """Returns a tree from stack_blocks with separate blocks; trees without stacks are unchanged."""

    def unstacked(node: Any) -> Any:
        if not (isinstance(node, dict) and "blocks" in node):
            return node
        unit, blocks = len(node["blocks"]), {}
        for index in range(unit):
            part = node["blocks"][f"block_{index}"]
            for repeat in range(len(jax.tree.leaves(part)[0])):
                take = lambda leaf, repeat=repeat: leaf[repeat]  # noqa: E731
                blocks[f"block_{repeat * unit + index}"] = jax.tree.map(take, part)
        return {**{k: unstack_blocks(v) for k, v in node.items() if k != "blocks"}, **blocks}

    is_stack = lambda node: isinstance(node, dict) and "blocks" in node  # noqa: E731
    return jax.tree.map(unstacked, tree, is_leaf=is_stack)


def _has_blocks(node: Any) -> bool:
    return isinstance(node, dict) and "block_0" in node and "block_1" in node

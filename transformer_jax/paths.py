"""Paths of parameters: names joined by /, such as block_0/attention/query/kernel."""

from typing import Any

import jax


def path_text(path: tuple) -> str:
    """Returns the path of a leaf as a string, with / between names."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def by_path(tree: Any) -> dict[str, Any]:
    """Returns a dict from path to leaf, in the tree's order."""
    return {path_text(path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


def begins(path: str, prefix: str) -> bool:
    """Returns whether a path begins with the names in `prefix`: block_1 does not begin block_11."""
    return f"{path}/".startswith(f"{prefix}/")


def with_state(params: Any, state: Any) -> Any:
    """Returns parameters that hold the collection `state` of a model too, if it has one."""
    return {**params, "state": state} if state else params


def variables_of(params: Any) -> dict[str, Any]:
    """Returns the variables of a model for `apply`, given the result of `with_state`."""
    if "state" not in params:
        return {"params": params}
    return {"params": {k: v for k, v in params.items() if k != "state"}, "state": params["state"]}

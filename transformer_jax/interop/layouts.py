"""Array layouts of this package (ours) and Hugging Face (theirs), as pairs of inverse functions."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

Convert = Callable[[np.ndarray], np.ndarray]


class Layout(NamedTuple):
    """A change of layout of a numpy array, and its inverse."""

    to_ours: Convert
    to_theirs: Convert


SAME = Layout(np.asarray, np.asarray)
TRANSPOSED = Layout(np.transpose, np.transpose)  # torch.nn.Linear keeps [out, in]


def leading_ones(count: int) -> Layout:
    """Returns the layout for arrays of theirs with `count` additional leading axes of size 1."""
    axes = tuple(range(count))
    return Layout(lambda array: np.squeeze(array, axes), lambda array: np.expand_dims(array, axes))


def rows_from(first: int) -> Layout:
    """Returns the layout for arrays of theirs with `first` unused leading rows, written as 0."""
    return Layout(
        lambda array: array[first:],
        lambda array: np.concatenate([np.zeros_like(array[:1]).repeat(first, 0), array]),
    )


def patches(patch_size: int, channels: int) -> Layout:
    """Returns the layout for a convolution [D, C, p, p]; ours maps flat patches, [p * p * C, D]."""
    shape = (patch_size, patch_size, channels, -1)
    return Layout(
        lambda array: array.transpose(2, 3, 1, 0).reshape(-1, array.shape[0]),
        lambda array: array.reshape(shape).transpose(3, 2, 0, 1),
    )


def interleaved_heads(num_heads: int) -> Layout:
    """Returns the layout for [H * 3 * K, D], query, key and value per head; ours is [D, 3 * H * K].

    Biases have the same layouts without D.
    """

    def to_ours(array: np.ndarray) -> np.ndarray:
        split = array.reshape(num_heads, 3, -1, *array.shape[1:])
        return np.moveaxis(split, 1, 0).reshape(array.shape).T

    def to_theirs(array: np.ndarray) -> np.ndarray:
        split = array.T.reshape(3, num_heads, -1, *array.T.shape[1:])
        return np.moveaxis(split, 0, 1).reshape(array.T.shape)

    return Layout(to_ours, to_theirs)


def paired_features(num_heads: int, rotated: int) -> Layout:
    """Returns the layout for [H * K, D] whose first `rotated` features of a head turn in pairs.

    Theirs turns features 2i and 2i + 1 together, ours [D, H * K] features i and i + rotated / 2.
    """
    order = [*range(0, rotated, 2), *range(1, rotated, 2)]  # theirs, in the order of ours

    def to_ours(array: np.ndarray) -> np.ndarray:
        heads = array.reshape(num_heads, -1, *array.shape[1:]).copy()
        heads[:, :rotated] = heads[:, order]
        return heads.reshape(array.shape).T

    def to_theirs(array: np.ndarray) -> np.ndarray:
        heads = array.T.reshape(num_heads, -1, *array.T.shape[1:]).copy()
        heads[:, order] = heads[:, :rotated].copy()
        return heads.reshape(array.T.shape)

    return Layout(to_ours, to_theirs)


class Entry(NamedTuple):
    """An array in their file, and the parameters of ours that it contains.

    Several parameters of ours are concatenated along the last axis.
    """

    our_paths: tuple[str, ...]
    their_name: str
    layout: Layout = SAME


# Our path -> their name, and the layout unless it is the usual one. A path ends with a parameter
# or, more often, with a module, which stands for all its parameters; their name then lacks .weight
# and .bias. # stands for the number of a block; modules joined by + are one array of theirs.
Table = dict[str, str | tuple[str, Layout]]
_PARAMETERS = {"kernel": "weight", "scale": "weight", "embedding": "weight", "bias": "bias"}
_ALONE = (*_PARAMETERS, "logits_bias")  # parameters, not modules


def within(our_prefix: str, their_prefix: str, table: Table) -> Table:
    """Returns the table with the given prefixes before our paths and before their names."""
    return {
        f"{our_prefix}/{path}": f"{their_prefix}.{theirs}"
        if isinstance(theirs, str)
        else (f"{their_prefix}.{theirs[0]}", theirs[1])
        for path, theirs in table.items()
    }


def entries_of(table: Table, depth: int, has_bias: bool) -> list[Entry]:
    """Returns the entries of all arrays of a table; affine maps and norms may have a bias."""
    entries = []
    for our_path, theirs in table.items():
        their_name, layout = (theirs, None) if isinstance(theirs, str) else theirs
        for layer in map(str, range(depth if "#" in our_path else 1)):
            path, name = our_path.replace("#", layer), their_name.replace("#", layer)
            entries += _entries_for(path, name, layout, has_bias)
    return entries


def _entries_for(path: str, name: str, layout: Layout | None, has_bias: bool) -> list[Entry]:
    last = path.rpartition("/")[2]
    if last in _ALONE:
        return [Entry((path,), name, layout or SAME)]
    if last.endswith(("embedding", "positions")):
        parameters = ["embedding"]
    else:
        parameters = ["scale" if last.endswith("norm") else "kernel", *["bias"] * has_bias]
    modules = [path.removesuffix(last) + module for module in last.split("+")]
    return [
        Entry(
            tuple(f"{module}/{parameter}" for module in modules),
            f"{name}.{_PARAMETERS[parameter]}",
            layout or (TRANSPOSED if parameter == "kernel" else SAME),
        )
        for parameter in parameters
    ]

"""Array layouts of ours and theirs: pairs of inverse functions on numpy arrays."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Convert = Callable[[np.ndarray], np.ndarray]


class Layout(NamedTuple):
    """A change of layout and its inverse."""

    to_ours: Convert
    to_theirs: Convert


def _same(array: np.ndarray) -> np.ndarray:
    return array


SAME = Layout(_same, _same)
TRANSPOSED = Layout(np.transpose, np.transpose)  # torch.nn.Linear keeps [out, in]


def leading_ones(count: int) -> Layout:
    """Their array has `count` more leading axes, of size 1."""
    axes = tuple(range(count))
    return Layout(lambda array: np.squeeze(array, axes), lambda array: np.expand_dims(array, axes))


def rows_from(first: int) -> Layout:
    """Their array has `first` more leading rows that are not used; they are written as zeros."""
    return Layout(
        lambda array: array[first:],
        lambda array: np.concatenate([np.zeros_like(array[:1]).repeat(first, 0), array]),
    )


def patches(patch_size: int, channels: int) -> Layout:
    """Theirs is a convolution [D, C, p, p]; ours multiplies flattened patches, [p * p * C, D]."""
    shape = (patch_size, patch_size, channels, -1)
    return Layout(
        lambda array: array.transpose(2, 3, 1, 0).reshape(-1, array.shape[0]),
        lambda array: array.reshape(shape).transpose(3, 2, 0, 1),
    )


def interleaved_heads(num_heads: int) -> Layout:
    """Theirs is [H * 3 * K, D], query, key and value per head; ours is [D, 3 * H * K].

    Biases are the same without D.
    """

    def to_ours(array: np.ndarray) -> np.ndarray:
        split = array.reshape(num_heads, 3, -1, *array.shape[1:])
        return np.moveaxis(split, 1, 0).reshape(array.shape).T

    def to_theirs(array: np.ndarray) -> np.ndarray:
        split = array.T.reshape(3, num_heads, -1, *array.T.shape[1:])
        return np.moveaxis(split, 0, 1).reshape(array.T.shape)

    return Layout(to_ours, to_theirs)


class Entry(NamedTuple):
    """Paths of an array in our parameters and in their file.

    Attributes:
      our_paths: Paths of parameters; several are concatenated along the last axis.
      their_name: Name in their state.
      layout: Conversion between the two.
    """

    our_paths: tuple[str, ...]
    their_name: str
    layout: Layout = SAME


def affine(
    our_path: str | tuple[str, ...], their_name: str, layout: Layout = TRANSPOSED
) -> list[Entry]:
    """Returns kernel and bias of an affine map, or of several concatenated ones."""
    names = (our_path,) if isinstance(our_path, str) else our_path
    kernels = tuple(f"{name}/kernel" for name in names)
    biases = tuple(f"{name}/bias" for name in names)
    return [Entry(kernels, f"{their_name}.weight", layout), Entry(biases, f"{their_name}.bias")]


def norm(our_path: str, their_name: str) -> list[Entry]:
    """Returns scale and bias of a layer norm."""
    return [*scale(our_path, their_name), Entry((f"{our_path}/bias",), f"{their_name}.bias")]


def embedding(our_path: str, their_name: str, layout: Layout = SAME) -> list[Entry]:
    """Returns an embedding table."""
    return [Entry((f"{our_path}/embedding",), their_name, layout)]


def kernel(our_path: str, their_name: str) -> list[Entry]:
    """Returns the kernel of a map without a bias."""
    return [Entry((f"{our_path}/kernel",), f"{their_name}.weight", TRANSPOSED)]


def scale(our_path: str, their_name: str) -> list[Entry]:
    """Returns the scale of a norm without a bias."""
    return [Entry((f"{our_path}/scale",), f"{their_name}.weight")]


def output_layer(model: Any) -> list[Entry]:
    """Returns the output layer of a language model, if it is not the embedding."""
    return [] if model.tie_embeddings else kernel("output", "lm_head")

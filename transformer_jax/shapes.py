"""Legend of dimension letters, LETTERS, a checker of shapes, and small helpers for arrays.

The names of activations, and of local arrays in an einsum or a mask, end in the letters of their
last axes (`query_HLK`); other leading axes, such as the batch, are written `...`.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array

LETTERS = {
    "B": "batch",
    "L": "length",
    "M": "memory length",
    "D": "width",
    "H": "heads",
    "K": "head size",
    "F": "feed-forward size",
    "V": "vocabulary, or value head size",
    "C": "classes, channels, tokens of a chunk or block, or steps of one call",
    "P": "patches",
    "G": "key and value heads",
    "E": "experts",
    "R": "rotated features, or a table's rows",
    "N": "examples, or blocks of tokens",
}


def check_shapes(**arguments: tuple[Array, str]) -> dict[str, int]:
    """Checks the shapes of arguments against shared letters, and returns the letters' sizes.

    Args:
      **arguments: Pairs (array, letters) by argument name, the letters in order and separated by
        spaces; a leading `...` stands for any number of axes.
    Returns:
      Sizes by letter.
    Raises:
      ValueError: An argument has the wrong number of axes, or a letter has two sizes.
    """
    sizes: dict[str, tuple[int, str]] = {}
    for name, (array, letters) in arguments.items():
        is_open, axes = letters.startswith("..."), letters.removeprefix("...").split()
        named = [f"{a}={sizes[a][0]}" if a in sizes else a for a in letters.split()]
        expected = f"[{', '.join(named)}]"
        if len(array.shape) < len(axes) or (not is_open and len(array.shape) != len(axes)):
            raise ValueError(f"{name}: expected {expected}, got {array.shape}")
        for letter, size in zip(axes, array.shape[len(array.shape) - len(axes) :], strict=True):
            size_before, owner = sizes.setdefault(letter, (size, name))
            if size_before != size:
                raise ValueError(
                    f"{name}: expected {expected}, got {array.shape}: "
                    f"{letter} ({LETTERS[letter]}) is {size_before} in {owner} and {size} here"
                )
    return {letter: size for letter, (size, _) in sizes.items()}


def check_tokens(max_length: int, tokens: Array, **alike: Array | None) -> None:
    """Raises ValueError, naming the argument, if an input is too long or arrays do not match it.

    Args:
      max_length: Maximum input length.
      tokens: [..., L]; for vectors [..., L, F], one of their features.
      **alike: Arrays [..., L], or None, by name.
    """
    length = tokens.shape[-1]
    if length > max_length:
        raise ValueError(f"tokens: length {length} is beyond max_length {max_length}")
    for name, array in alike.items():
        if array is not None:
            check_shapes(tokens=(tokens, "... L"), **{name: (array, "... L")})
            axes = zip(reversed(array.shape), reversed(tokens.shape), strict=False)
            if array.ndim > tokens.ndim or any(size not in (1, of) for size, of in axes):
                raise ValueError(
                    f"{name}: expected a shape that broadcasts to {tokens.shape}, got {array.shape}"
                )


def as_int32(numbers: Array) -> Array:
    """Returns unsigned and narrow integers, which wrap, as int32; other numbers unchanged."""
    wraps = jnp.issubdtype(numbers.dtype, jnp.integer) and numbers.dtype != jnp.int64
    return numbers.astype(jnp.int32) if wraps else numbers


def in_blocks(array: Array, size: int, axis: int) -> Array:
    """Splits an axis, given as a negative index, into [blocks, size]; zeros fill the last block."""
    length = array.shape[axis]
    blocks = -(-length // size)
    padding = [(0, 0)] * array.ndim
    padding[axis] = (0, blocks * size - length)
    first = array.ndim + axis
    shape = (*array.shape[:first], blocks, size, *array.shape[first + 1 :])
    return jnp.pad(array, padding).reshape(shape)


def as_float(inputs: Array) -> Array:
    """Returns integers and bools as float32; floats unchanged."""
    return inputs if jnp.issubdtype(inputs.dtype, jnp.inexact) else widen(inputs)


def widen(inputs: Array) -> Array:
    """Returns the inputs as float32, or unchanged if their dtype is wider."""
    return inputs.astype(jnp.promote_types(inputs.dtype, jnp.float32))


def recomputed(function: Callable[..., Array], first: Array, *others: Array | None) -> Array:
    """Returns function(first, *others), computed again in the backward pass if the dtype is narrow.

    In bfloat16, on accelerators, reading the inputs takes less time than storing derivatives, which
    a scan over blocks would keep in float32.
    """
    is_narrow = first.dtype.itemsize < 4
    return jax.checkpoint(function)(first, *others) if is_narrow else function(first, *others)

"""Blocks that differ: of which type each is, whose parameters it has, what it reads beside."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.config import LAYER_FIELDS


class Layer(NamedTuple):
    """One block of a stack.

    Attributes:
      type: its letter; empty where all blocks are alike.
      fields: of the model, as this type has them otherwise.
      owner: the block whose parameters it has; its own number, unless some are shared.
      reads: streams that are added to its input: 0 is what is embedded, n that behind block n - 1.
    """

    type: str
    fields: Mapping[str, Any]
    owner: int
    reads: tuple[int, ...]


def layer_list(
    depth: int,
    pattern: str,
    types: Mapping[str, Mapping[str, Any]],
    distinct_blocks: int | None,
    sharing: str,
    reads: Callable[[int], tuple[int, ...]],
) -> tuple[Layer, ...]:
    """Returns every block of a stack.

    Args:
      depth: number of blocks.
      pattern: a letter for each block, repeated over the depth; empty where all are alike.
      types: letter -> fields that it changes; a letter without any is the model as it is.
      distinct_blocks: how many have parameters of their own; None: all.
      sharing: cycle or sequence.
      reads: block -> the streams that it reads beside its own.
    Raises:
      ValueError: a type is not in the pattern, has a field that no type may have, blocks of two
        types would share parameters, or a block would read a stream that is not before it.
    """
    if not isinstance(pattern, str) or (pattern and not (pattern.isalpha() and pattern.isascii())):
        raise ValueError(f"layers: expected letters such as LLLG, got {pattern!r}")
    letters = [pattern[block % len(pattern)] if pattern else "" for block in range(depth)]
    _check_types(pattern, types)
    owners = [_owner(block, depth, distinct_blocks, sharing) for block in range(depth)]
    for block, owner in enumerate(owners):
        if letters[block] != letters[owner]:
            raise ValueError(
                f"distinct_blocks: block {block} of type {letters[block]} would have the "
                f"parameters of block {owner}, of type {letters[owner]}, in layers={pattern}"
            )
    layers = tuple(
        Layer(letter, types.get(letter, {}), owner, tuple(reads(block)))
        for block, (letter, owner) in enumerate(zip(letters, owners, strict=True))
    )
    for block, layer in enumerate(layers):
        for stream in layer.reads:
            if not 0 <= stream < block:
                raise ValueError(f"skips: block {block} reads stream {stream}, not one before it")
    return layers


def _owner(block: int, depth: int, distinct: int | None, sharing: str) -> int:
    if distinct is None:
        return block
    if not 1 <= distinct <= depth:
        raise ValueError(f"distinct_blocks: expected 1 to depth {depth}, got {distinct}")
    if sharing not in ("cycle", "sequence"):
        raise ValueError(f"sharing: expected cycle or sequence, got {sharing!r}")
    if sharing == "cycle":
        return block % distinct
    return -(-(block * distinct // depth) * depth // distinct)  # first block of its run


def _check_types(pattern: str, types: Mapping[str, Any]) -> None:
    for letter, fields in types.items():
        if letter not in set(pattern):
            raise ValueError(
                f"layer_types: no block is {letter!r} in layers={pattern!r}; expected one of "
                f"{', '.join(sorted(set(pattern))) or 'none'}"
            )
        if not isinstance(fields, Mapping):
            raise ValueError(f"layer_types: {letter}: expected fields by name, got {fields!r}")
        for field in fields:
            if field not in LAYER_FIELDS:
                raise ValueError(
                    f"layer_types: {letter}.{field}: expected one of {', '.join(LAYER_FIELDS)}"
                )

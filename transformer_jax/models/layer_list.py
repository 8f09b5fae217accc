"""Specifications of blocks that differ: layer types, shared parameters and skips."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.model_options import LAYER_FIELDS, ModelOptions
from transformer_jax.options import FrozenOptions


def layer_list(
    options: ModelOptions, skips: Any
) -> Iterator[tuple[str, ModelOptions, int, tuple[int, ...]]]:
    """Yields the fields of each block's BlockSpec.

    Args:
      options: Options of the model.
      skips: An instance of an entry of SKIPS, or None.

    Raises:
      ValueError: A type is not in the pattern or has a field that no type may have, blocks of
        different types would share parameters, or a block would read a stream that is not earlier.
    """
    pattern, depth = options.layers, options.depth
    for letter in options.layer_types:
        if letter not in set(pattern):
            raise ValueError(
                f"layer_types: no block has type {letter!r} in layers={pattern!r}; expected one of "
                f"{', '.join(sorted(set(pattern))) or 'none'}"
            )
    letters = [pattern[block % len(pattern)] if pattern else "" for block in range(depth)]
    by_letter = {letter: _options_of_type(options, letter) for letter in {"", *pattern}}
    for block, letter in enumerate(letters):
        owner = _owner(options, block)
        if letter != letters[owner]:
            raise ValueError(
                f"distinct_blocks: block {block} of type {letter} would share the parameters of "
                f"block {owner}, of type {letters[owner]}, in layers={pattern}"
            )
        reads = () if skips is None else tuple(skips.reads(block, depth))
        for stream in reads:
            if not 0 <= stream < block:
                raise ValueError(
                    f"skips: block {block} reads stream {stream}; expected streams below {block}"
                )
        yield letter, by_letter[letter], owner, reads


def _options_of_type(options: ModelOptions, letter: str) -> ModelOptions:
    """Returns the options of a model in which all blocks have the given layer type."""
    changes = options.layer_types.get(letter, {})
    if not isinstance(changes, Mapping):
        raise ValueError(f"layer_types: {letter}: expected a dict of fields, got {changes!r}")
    for field in changes:
        if field not in LAYER_FIELDS:
            raise ValueError(
                f"layer_types: {letter}.{field}: expected one of {', '.join(LAYER_FIELDS)}"
            )
    if not changes:
        return options
    merged = {
        name: FrozenOptions(getattr(options, name) | value) if name.endswith("_options") else value
        for name, value in changes.items()
    }
    return dataclasses.replace(options, layers="", layer_types=FrozenOptions(), **merged)


def _owner(options: ModelOptions, block: int) -> int:
    """Returns the index of the block whose parameters the given block uses."""
    depth, distinct = options.depth, options.distinct_blocks
    if distinct is None:
        return block
    if distinct > depth:
        raise ValueError(f"distinct_blocks: expected 1 to depth {depth}, got {distinct}")
    if options.sharing == "cycle":
        return block % distinct
    return -(-(block * distinct // depth) * depth // distinct)  # first block of a run

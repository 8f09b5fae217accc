"""Options of a type of layer: `model.layer_types.L.mask` is `model.mask` in blocks marked L."""

from collections.abc import Mapping
from typing import Any

# The fields of a model that a type of layer may have otherwise; options of rows with their rows.
LAYER_FIELDS = (
    *("mask", "mask_options", "position", "position_options", "mixer", "mixer_options"),
    *("attention", "attention_options", "attention_scale", "attention_dropout_rate"),
    "attention_chunk",
    *("query_key_norm", "num_heads", "num_kv_heads", "head_dim", "value_dim"),
    *("feed_forward", "feed_forward_options", "activation", "mlp_dim"),
)
_PREFIX = "model.layer_types."


def letter_of(key: str) -> str | None:
    """Returns the letter of the type that a key belongs to; None if it belongs to none."""
    letter, dot, _ = key.removeprefix(_PREFIX).partition(".")
    is_one = key.startswith(_PREFIX) and dot and len(letter) == 1
    return letter if is_one and letter.isalpha() else None


def plain_key(key: str) -> str:
    """Returns the option of the model that a key of a type stands for; of any other key, itself.

    A key that no type may have stands for nothing: it is given back as it is.
    """
    letter = letter_of(key)
    rest = key.removeprefix(f"{_PREFIX}{letter}.")
    may_be = letter is not None and rest.partition(".")[0] in LAYER_FIELDS
    return f"model.{rest}" if may_be else key


def letters_of(flat: Mapping[str, Any]) -> list[str]:
    """Returns the letters of the types that a flattened config describes."""
    return sorted({letter for key in flat if (letter := letter_of(key)) is not None})


def of_type(flat: Mapping[str, Any], letter: str | None) -> dict[str, Any]:
    """Returns the flattened config of a model whose blocks are all of one type."""
    if letter is None:
        return dict(flat)
    own = {plain_key(key): value for key, value in flat.items() if letter_of(key) == letter}
    # Another class has other options than the model's own.
    others = tuple(f"{key}_options.own." for key in own if "_options." not in key)
    return {key: value for key, value in flat.items() if not key.startswith(others)} | own

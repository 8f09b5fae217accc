"""Further evaluations of finished cells: other windows of the same text."""

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import InvalidInput

_EVALUATED = ("data.length", "evaluation.stride")


def read_also(where: str, asked: Mapping[str, Any] | None) -> dict[str, dict[str, int]]:
    """Returns `also` of get_study(): name -> changed data.length and evaluation.stride.

    Args:
      where: of the file, for messages.
      asked: what stands there.
    Raises:
      InvalidInput: another option, or no integers above 0.
    """
    for name, changes in (asked or {}).items():
        if not isinstance(changes, dict) or not changes.keys() <= set(_EVALUATED):
            raise InvalidInput(f"{where}: also: {name!r}: expected {', '.join(_EVALUATED)}")
        if any(not isinstance(value, int) or value < 1 for value in changes.values()):
            raise InvalidInput(f"{where}: also: {name!r}: {changes}: expected integers >= 1")
    return dict(asked or {})


def refuse_impossible_evaluations(
    path: str, also: Mapping[str, Mapping[str, int]], arm: str, config: ConfigDict
) -> None:
    """Raises InvalidInput where an arm of the study in a file cannot be evaluated so."""
    where = f"--config={path}: get_study(): also"
    if also and config.data.task != "language_modelling":
        raise InvalidInput(f"{where}: windows are those of language_modelling")
    for name, changes in also.items():
        length = changes.get("data.length", config.data.length)
        stride = changes.get("evaluation.stride", config.evaluation.stride or length)
        if not stride <= length <= config.model.max_length:
            got = f"{stride}, {length}, {config.model.max_length}"
            raise InvalidInput(
                f"{where}: {name!r}: expected evaluation.stride <= data.length <= "
                f"model.max_length, got {got} in arm {arm!r}"
            )

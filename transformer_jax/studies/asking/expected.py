"""What an author expects of each arm, as a range, so that it can be said whether it came true."""

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.options import is_number
from transformer_jax.suggestions import suggest

Range = tuple[float | None, float | None]  # None: no end on that side


def read_expected(
    where: str,
    asked: Mapping[str, Any] | None,
    others: Collection[str],
    target: float | None,
) -> dict[str, Range]:
    """Returns `expected` of get_study(): arm -> lowest and highest effect.

    Args:
      where: of the file, for messages.
      asked: what stands there.
      others: arms beside the base.
      target: of the study.
    Raises:
      InvalidInput: an arm is unknown, its range is no pair of numbers in order (None is no end), or
        there is a target.
    """
    if asked and target is not None:
        raise InvalidInput(
            f"{where}: expected: a study with a target judges no mean; predict in words"
        )
    ranges = {}
    for name, ends in (asked or {}).items():
        if name not in others:
            raise InvalidInput(
                f"{where}: expected: {name!r}: no arm beside the base{suggest(str(name), others)}"
            )
        is_pair = isinstance(ends, Sequence) and len(ends) == 2
        numbers = [end for end in ends if end is not None] if is_pair else []
        if not numbers or not all(map(is_number, numbers)) or numbers != sorted(numbers):
            raise InvalidInput(
                f"{where}: expected: {name!r}: {ends!r}: give the lowest and the highest effect, "
                "(-0.03, -0.01) say, None for no end"
            )
        ranges[name] = (ends[0], ends[1])
    return ranges


def how_it_came(ends: Range, interval: Sequence[float | None] | None) -> str:
    """Returns whether an effect is where it was expected, by its interval; None is no end."""
    if interval is None:
        return "not known"
    (low, high), (least, most) = _numbers(ends), _numbers(interval)
    if low <= least and most <= high:
        return "as expected"
    return "not as expected" if most < low or high < least else "open"


def _numbers(ends: Sequence[float | None]) -> tuple[float, float]:
    low, high = ends
    return -math.inf if low is None else low, math.inf if high is None else high

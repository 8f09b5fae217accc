"""Tuning: the option that each arm chooses for itself, declared in get_study().

Every arm tries the same grid with the same seeds on the validation split, and takes the optimum of
a parabola through its best points, see running/tuning.
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.options import is_integer, is_number
from transformer_jax.resolve import option_for, unknown_key
from transformer_jax.suggestions import suggest

_SEEDS = (1000, 1001)
_LARGEST_STEP = 3.5
_UNEVEN = 1.35  # largest factor over the smallest: 1, 3, 10 is even enough
_MOST_VALUES = 32


@dataclasses.dataclass(frozen=True)
class Tuning:
    """The option that each arm tunes.

    Attributes:
      key: Of the config.
      grid: Values that every arm tries, > 0, ascending in about equal factors.
      seeds: Of the trials; no verdict uses them.
    """

    key: str
    grid: tuple[float, ...]
    seeds: tuple[int, ...] = _SEEDS

    @property
    def runs_of_an_arm(self) -> int:
        """Number of trials of each arm."""
        return len(self.grid) * len(self.seeds)

    def told(self) -> str:
        """Describes the grid, for the plan."""
        values = ", ".join(f"{value:g}" for value in self.grid)
        return f"{self.key} {values} with {len(self.seeds)} seeds, then a parabola"


def read_tuning(where: str, asked: dict | None, flat: Mapping[str, Any]) -> Tuning | None:
    """Returns the `tuning` of a get_study().

    Args:
      where: Place in the file, for messages.
      asked: What stands there.
      flat: Values of the baseline.

    Raises:
      InvalidInput: Any of it is wrong.
    """
    if not asked:
        return None
    where, allowed = f"{where}: tuning", [field.name for field in dataclasses.fields(Tuning)]
    for name in asked:
        if name not in allowed:
            raise InvalidInput(f"{where}: {name!r} is unknown{suggest(str(name), allowed)}")
    key, seeds = asked.get("key"), asked.get("seeds", _SEEDS)
    grid: Any = asked.get("grid")
    if not isinstance(key, str):
        raise InvalidInput(f"{where}: key={key!r}: expected the name of an option")
    if not all(isinstance(values, list | tuple) and values for values in (grid, seeds)):
        raise InvalidInput(f"{where}: grid and seeds: expected lists of numbers, not empty")
    if len(seeds) < 2 or not all(is_integer(s) and s >= 0 for s in seeds) or _repeats(seeds):
        raise InvalidInput(f"{where}: seeds={list(seeds)}: expected 2 or more integers >= 0")
    option = option_for(key, flat)
    if option is None:
        raise InvalidInput(f"{where}: {unknown_key(key, flat)}")
    if not all(map(is_number, grid)) or not 3 <= len(grid) <= _MOST_VALUES or not min(grid) > 0:
        raise InvalidInput(f"{where}: grid={grid}: expected 3 to {_MOST_VALUES} numbers > 0")
    factors = [after / before for before, after in itertools.pairwise(grid)]
    if not 1 < min(factors) <= max(factors) <= min(_LARGEST_STEP, _UNEVEN * min(factors)):
        raise InvalidInput(
            f"{where}: grid={grid}: expected each value to be 1 to {_LARGEST_STEP} times the one "
            "before, by about the same factor"
        )
    if wrong := [value for value in grid if not option.accepts(value)]:
        raise InvalidInput(f"{where}: grid: {key}={wrong[0]!r}: expected {option.allowed}")
    return Tuning(key, tuple(grid), tuple(seeds))


def _repeats(values: Any) -> bool:
    return len(set(values)) < len(values)


def refuse_impossible_settings(design: Any) -> None:
    """Raises InvalidInput where an arm cannot be trained with one of the values."""
    tuning = design.tuning
    if tuning is None:
        return
    for name, changes in design.arms.items():
        if tuning.key in changes:
            raise InvalidInput(f"{design.path}: arm {name!r} sets {tuning.key}, which is tuned")
        for value in tuning.grid:
            design.config_of(name, {tuning.key: value})

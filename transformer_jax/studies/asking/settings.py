"""What a tuning tries: settings, and how they grow where the best lies at an edge. No jax."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.options.rule import is_number
from transformer_jax.options.schema import rule_for

Setting = dict[str, Any]  # key of the config -> value

UNEVEN = 1.35  # largest step over smallest of even ones: 1, 3, 10 is even enough
_GROWTH = 3  # a range grows by one of so many parts of itself


class Space(NamedTuple):
    """What is tried.

    Attributes:
      values: key -> numbers in even steps or choices; of a random search the two ends of a range in
        place of numbers.
      trials: settings that a random search begins with; 0: a grid.
      settings: that are tried, a value of each option.
    """

    values: dict[str, tuple]
    trials: int
    settings: tuple[Setting, ...]


def first_space(options: Mapping[str, tuple], trials: int) -> Space:
    """Returns what is tried at first, of options and so many random settings or a grid."""
    settings = _drawn(options, trials, 0) if trials else _combinations(options)
    return Space(dict(options), trials, settings)


def grown(space: Space, key: str, side: int, growth: int) -> Space:
    """Returns a space that holds more of an option's values.

    Args:
      space: before.
      key: of an option of numbers.
      side: -1 below, 1 above.
      growth: how often it has grown.
    """
    settings, ends = space.settings, space.values[key]
    value = beyond(space, key, side)
    if space.trials:
        added = (value, ends[0]) if side < 0 else (ends[1], value)
        count = -(-space.trials // _GROWTH)
        more = _drawn({**space.values, key: added}, count, growth)
        ends = (min(*ends, value), max(*ends, value))
        return Space({**space.values, key: ends}, space.trials, (*settings, *more))
    values = {**space.values, key: (value, *ends) if side < 0 else (*ends, value)}
    more = tuple(setting for setting in _combinations(values) if setting not in settings)
    return Space(values, 0, (*settings, *more))


def beyond(space: Space, key: str, side: int) -> float:
    """Returns the next value beyond an end: one step of a grid, or a part of a range."""
    values, parts = space.values[key], _GROWTH if space.trials else 1
    inner, end = (values[1], values[0]) if side < 0 else (values[-2], values[-1])
    by_factors = grows_by_factors(values)
    value = end * (end / inner) ** (1 / parts) if by_factors else end + (end - inner) / parts
    if not _are_whole(values):
        return value
    return max(1, round(value)) if by_factors else round(value)


def edge_of(best: Setting, key: str, space: Space, flat: Mapping[str, Any]) -> int:
    """-1 or 1 where a best value is the first or last of an option's; 0 where none lies beyond.

    Args:
      best: setting.
      key: of an option of numbers.
      space: what was tried.
      flat: values of the base, for the option's rule.
    """
    values = sorted({setting[key] for setting in space.settings})
    side = -1 if best[key] == values[0] else 1 if best[key] == values[-1] else 0
    # The first of random values is none of a range's ends, beyond which more would be tried.
    end = space.values[key][0 if side < 0 else -1]
    rule, step = rule_for(key, flat), 1 if isinstance(end, int) else 1e-9
    is_limit = rule is not None and not rule.accepts(end + side * step)
    return 0 if is_limit else side


def neighbours(
    space: Space, key: str, value: float, accepts: Callable[[float], bool]
) -> tuple[float, ...]:
    """Returns the values on both sides of one; () where there is none beyond it.

    Args:
      space: what was tried.
      key: of an option of numbers.
      value: one of its.
      accepts: whether arms can be trained with a value; steps of random trials shrink until so.
    """
    values = space.values[key]
    if not space.trials:
        index = values.index(value)
        return (values[index - 1], values[index + 1]) if 0 < index < len(values) - 1 else ()
    for share in (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32):
        step, factor = share * (values[1] - values[0]) / 10, 2.0**share
        around = (value / factor, value * factor)
        if not values[0] > 0:
            around = (value - step, value + step)
        around = tuple(map(round, around)) if _are_whole(values) else around
        if around[0] < value < around[1] and all(map(accepts, around)):
            return around
    return ()


def with_middles(values: Sequence[float]) -> tuple[float, ...]:
    """Returns values with one between each two, by factors or in steps; () where none fits."""
    means = []
    for before, after in itertools.pairwise(values):
        mean = math.sqrt(before * after) if grows_by_factors(values) else (before + after) / 2
        means.append(round(mean) if _are_whole(values) else float(f"{mean:.4g}"))
    finer = tuple(sorted((*values, *means)))
    return finer if len(set(finer)) == len(finer) else ()


def _combinations(values: Mapping[str, Sequence[Any]]) -> tuple[Setting, ...]:
    points = itertools.product(*values.values())
    return tuple(dict(zip(values, point, strict=True)) for point in points)


def _drawn(values: Mapping[str, Sequence[Any]], count: int, stream: int) -> tuple[Setting, ...]:
    """Settings drawn evenly; the same for every arm and study."""
    random = np.random.default_rng(stream)
    drawn = [{key: _draw(of, random.random()) for key, of in values.items()} for _ in range(count)]
    return tuple(setting for i, setting in enumerate(drawn) if setting not in drawn[:i])


def _draw(values: Sequence[Any], share: float) -> Any:
    """A choice; of a range a number, evenly by its logarithm where both ends are above 0."""
    if not are_numbers(values):
        return values[int(share * len(values))]
    first, last = values
    value = first * (last / first) ** share if first > 0 else first + (last - first) * share
    return round(value) if _are_whole(values) else float(f"{value:.4g}")


# ---------------------------------------------------------------- numbers, and how they are told


def are_numbers(values: Sequence[Any]) -> bool:
    """Whether an option is one of numbers, whose best value may be at an edge."""
    return all(is_number(value) for value in values)


def _are_whole(values: Sequence[float]) -> bool:
    return all(isinstance(value, int) for value in values)


def grows_by_factors(values: Sequence[float]) -> bool:
    """Whether the values of an option are even steps of a factor, and not of a difference."""
    if not values[0] > 0:
        return False
    factors = [after / before for before, after in itertools.pairwise(values)]
    steps = [after - before for before, after in itertools.pairwise(values)]
    is_even = max(factors) <= UNEVEN * min(factors) and min(factors) > 1
    return is_even and (len(values) == 2 or max(steps) > 1.01 * min(steps))


def spell_value(value: Any) -> str:
    """A value as short as it can be."""
    return f"{value:g}" if is_number(value) else str(value)


def spell_setting(setting: Setting) -> str:
    """KEY=VALUE of each option."""
    return " ".join(f"{key}={spell_value(value)}" for key, value in setting.items())

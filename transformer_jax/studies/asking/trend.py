"""A trend that a study declares: whether more of one option is better, over all of its arms.

One contrast that was named beforehand finds what no pair of neighbours shows, and nobody chooses
the best of several arms after the fact.
"""

import math
from collections.abc import Mapping
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import flatten
from transformer_jax.options.rule import is_number, suggest
from transformer_jax.options.schema import completed

_FEWEST = 3  # values of the option


def read_trend(
    where: str,
    asked: str | None,
    flat: Mapping[str, Any],
    arms: Mapping[str, Mapping[str, Any]],
    base: str,
    study: Mapping[str, Any],
) -> str:
    """Returns the option of a `trend` in get_study(); "" where there is none.

    Args:
      where: of the file, for messages.
      asked: what stands there.
      flat: values of the base's config.
      arms: name -> changed values.
      base: name of the arm that need not say it.
      study: what else get_study() gave.
    Raises:
      InvalidInput: it is no option, an arm does not set it, its values are no three numbers above
        0, they are not what arms have in the end (match, tuning), or there is a target.
    """
    if not asked:
        return ""
    if asked not in flat:
        raise InvalidInput(f"{where}: trend={asked!r}: no option{suggest(asked, flat)}")
    if study.get("target") is not None:
        raise InvalidInput(f"{where}: trend: a study with a target counts the runs that reach it")
    tuning, fields = study.get("tuning") or {}, (study.get("match") or {}).get("field", ())
    chosen = {
        *tuning.get("options", ()),
        tuning.get("key"),
        *([fields] if isinstance(fields, str) else fields),
    }
    if asked in chosen:
        raise InvalidInput(f"{where}: trend={asked!r}: arms are tuned or matched by it")
    for name, changes in arms.items():
        if name != base and asked not in changes:
            raise InvalidInput(f"{where}: trend={asked!r}: arm {name!r} does not set it")
    values = [changes.get(asked, flat[asked]) for changes in arms.values()]
    are_numbers = all(is_number(value) and value > 0 for value in values)
    if not are_numbers or len(set(values)) < _FEWEST:
        raise InvalidInput(
            f"{where}: trend={asked!r}: expected {_FEWEST} or more numbers > 0 in the arms, got "
            f"{', '.join(map(str, values))}"
        )
    return asked


def weights_of(key: str, sealed: Mapping[str, Any]) -> dict[str, float]:
    """Returns arm -> weight of its score in the trend.

    The weighted sum is what a least-squares line through the scores, over the logarithm of the
    option, gains from its smallest value to its largest.

    Args:
      key: of the option.
      sealed: what was asked.
    """
    base = completed(flatten(sealed["base_config"]))[key]
    values = {arm: changes.get(key, base) for arm, changes in sealed["arms"].items()}
    x = {arm: math.log(value) for arm, value in values.items()}
    center = sum(x.values()) / len(x)
    spread = sum((value - center) ** 2 for value in x.values())
    reach = max(x.values()) - min(x.values())
    return {arm: reach * (value - center) / spread for arm, value in x.items()}

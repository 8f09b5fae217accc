"""The same question at several scales: one option of the base at ascending values.

Each rung is a study of its own, with the same arms and seeds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import flatten, load_config
from transformer_jax.studies.asking.arms import parse_arm
from transformer_jax.studies.asking.design import Design, load_design
from transformer_jax.studies.inference.scales import FEWEST


class Ladder(NamedTuple):
    """Designs by the value of one option.

    Attributes:
      key: of the config.
      rungs: value -> design, ascending.
    """

    key: str
    rungs: dict[float, Design]


def load_ladder(
    text: str,
    path: str,
    overrides: Mapping[str, str],
    arms: Sequence[str] = (),
    drops: Sequence[str] = (),
) -> Ladder:
    """Reads `KEY=VALUE,VALUE,VALUE`: numbers, ascending, three or more.

    Args:
      text: of `--ladder`.
      path: of the study's config file.
      overrides: of the base, full key -> text.
      arms: texts of `--arm`.
      drops: names of `--drop`.
    Raises:
      InvalidInput: it is something else, or an arm sets the key itself.
    """
    points = parse_arm(text, flatten(load_config(path, overrides)), whole_keys=True)
    keys = {key for point in points.values() for key in point}
    values = [value for point in points.values() for value in point.values()]
    if len(keys) != 1 or any(isinstance(v, bool) or not isinstance(v, int | float) for v in values):
        raise InvalidInput(f"--ladder={text}: expected one KEY=NUMBER,NUMBER,NUMBER")
    if len(values) < FEWEST or sorted(set(values)) != values or not values[0] > 0:
        raise InvalidInput(
            f"--ladder={text}: expected {FEWEST} or more numbers > 0, ascending: the smaller ones "
            "forecast the largest"
        )
    (key,) = keys
    rungs = {v: load_design(path, {**overrides, key: str(v)}, arms, drops) for v in values}
    for name, changes in rungs[values[0]].arms.items():
        if key in changes:
            raise InvalidInput(f"--ladder={text}: arm {name!r} sets {key} itself")
    return Ladder(key, rungs)


def rung_path(workdir: str | Path, key: str, value: float) -> Path:
    """Returns the directory of a rung's study."""
    return Path(workdir) / f"{key}={value:g}"

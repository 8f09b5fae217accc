"""The same question at several scales: one option of the baseline at ascending values.

Each rung is a study of its own, with the same arms and seeds.
"""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config_files import changed, flatten
from transformer_jax.errors import InvalidInput
from transformer_jax.options import is_number, split_values
from transformer_jax.runs.files import inside, read_json, write_json
from transformer_jax.studies.asking.arms import parse_arm
from transformer_jax.studies.asking.design import Design, checked_arms

FILE = "ladder.json"


class Ladder(NamedTuple):
    """Designs by the value of an option.

    Attributes:
      key: Of the config.
      rungs: Value -> design, ascending.
    """

    key: str
    rungs: dict[float, Design]


def ladder_of(text: str, design: Design) -> Ladder:
    """Reads `KEY=VALUE,VALUE`: two or more numbers, ascending.

    Args:
      text: Of `--ladder`.
      design: Of the study, whose baseline gets these values.

    Raises:
      InvalidInput: It is something else, or an arm sets the option itself.
    """
    points = parse_arm(text, flatten(design.config), whole_keys=True, flag="--ladder")
    keys = {key for point in points.values() for key in point}
    values = [value for point in points.values() for value in point.values()]
    count = len(split_values(text.partition("=")[2]))  # a value that stands twice is one point
    if len(keys) != 1 or not all(map(is_number, values)):
        raise InvalidInput(f"--ladder={text}: expected one KEY=NUMBER,NUMBER,...")
    if not len(values) == count >= 2 or sorted(values) != values:
        raise InvalidInput(f"--ladder={text}: expected 2 or more numbers, ascending")
    (key,) = keys
    if key == "seed" or key.startswith("seeds."):
        raise InvalidInput(f"--ladder={text}: seeds are no scale: --seeds=5")
    for name, changes in design.arms.items():
        if key in changes:
            raise InvalidInput(f"--ladder={text}: arm {name!r} sets {key} itself")
    return Ladder(key, {value: _rung(design, key, value) for value in values})


def _rung(design: Design, key: str, value: float) -> Design:
    overrides = {**design.overrides, key: str(value)}
    config = changed(design.config, {key: value})
    return checked_arms(dataclasses.replace(design, config=config, overrides=overrides))


def begin_ladder(workdir: Path, ladder: Ladder, write: bool = True) -> None:
    """Notes what a ladder asks, before its first cell.

    Args:
      workdir: Of the ladder.
      ladder: Its designs.
      write: False: another ladder is refused, and nothing is written.

    Raises:
      InvalidInput: Another ladder was begun there.
    """
    now: dict[str, Any] = {"key": ladder.key, "values": list(ladder.rungs)}
    file = inside(workdir, FILE)
    if not file.exists():
        if write:
            workdir.mkdir(parents=True, exist_ok=True)
            write_json(workdir, FILE, now)
        return
    stored = read_json(file)
    if {key: stored.get(key) for key in now} != now:
        asked = f"{stored.get('key')}={','.join(f'{v:g}' for v in stored.get('values', ()))}"
        raise InvalidInput(
            f"--workdir={workdir}: its ladder is {asked}; choose another --workdir for another"
        )


def rung_path(workdir: Path, key: str, value: float) -> Path:
    """Returns the directory of a rung's study."""
    return inside(workdir, rung_name(key, value))


def rung_name(key: str, value: float) -> str:
    """Returns KEY=VALUE, as a rung's directory is named."""
    return f"{key}={value}"

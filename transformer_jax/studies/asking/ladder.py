"""The same question at several scales or splits: options of the base at ascending values.

Each rung is a study of its own, with the same arms and seeds.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import changed, flatten
from transformer_jax.options.rule import is_number, split_values
from transformer_jax.runs.files import inside, read_json, write_json
from transformer_jax.studies.asking.arms import parse_arm
from transformer_jax.studies.asking.design import Design, checked_arms
from transformer_jax.studies.inference.scales import FEWEST

FILE = "ladder.json"
SPLITS = "data.split_seed"  # its values are draws, and no scale
_MASKED = "masked_language_modelling"


class Ladder(NamedTuple):
    """Designs by the value of an option.

    Attributes:
      key: of the config.
      rungs: value -> design, ascending.
      together: other options that grow with it, key -> their values.
    """

    key: str
    rungs: dict[float, Design]
    together: dict[str, list[float]]


def ladder_of(texts: Sequence[str], design: Design) -> Ladder:
    """Reads `KEY=VALUE,VALUE,VALUE`: numbers, ascending, three or more; of several, as many each.

    Args:
      texts: of `--ladder`; the first names the rungs.
      design: of the study, whose base gets these values.
    Raises:
      InvalidInput: one is something else, or an arm sets its key itself.
    """
    (key, values), *others = by_key = [_values(text, design) for text in texts]
    for (other, its), text in zip(by_key, texts, strict=True):
        if len(its) != len(values) or [k for k, _ in by_key].count(other) > 1:
            raise InvalidInput(
                f"--ladder={text}: options that grow together: each once, {len(values)} values"
            )
    rungs = {
        value: _rung(design, {key: value} | {other: its[index] for other, its in others})
        for index, value in enumerate(values)
    }
    return Ladder(key, rungs, dict(others))


def begin_ladder(workdir: str | Path, ladder: Ladder, write: bool = True) -> None:
    """Notes what a ladder asks, before its first cell.

    Args:
      workdir: of the ladder.
      ladder: its designs.
      write: False: another ladder is refused, and nothing is written.
    Raises:
      InvalidInput: there is another one, whose forecast and rungs would be taken for this one's.
    """
    now: dict[str, Any] = {"key": ladder.key, "values": list(ladder.rungs)}
    now |= {"together": ladder.together} if ladder.together else {}
    file = inside(Path(workdir), FILE)
    if not file.exists():
        if write:
            Path(workdir).mkdir(parents=True, exist_ok=True)
            write_json(Path(workdir), FILE, now)
        return
    stored = read_json(file)
    before = {key: stored[key] for key in ("key", "values", "together") if key in stored}
    if before != now:
        asked = f"{before.get('key')}={','.join(f'{v:g}' for v in before.get('values', ()))}"
        others = stored.get("together", {}).items()
        asked += "".join(f" with {key}={','.join(f'{v:g}' for v in its)}" for key, its in others)
        raise InvalidInput(
            f"--workdir={workdir}: its ladder is {asked}; choose another --workdir for another"
        )


def _values(text: str, design: Design) -> tuple[str, list[float]]:
    points = parse_arm(text, flatten(design.config), whole_keys=True, flag="--ladder")
    keys = {key for point in points.values() for key in point}
    values = [value for point in points.values() for value in point.values()]
    if len(keys) != 1 or not all(map(is_number, values)):
        raise InvalidInput(f"--ladder={text}: expected one KEY=NUMBER,NUMBER,NUMBER")
    count = len(split_values(text.partition("=")[2]))  # a value that is there twice is one point
    names = {f"{value:g}" for value in values}
    is_whole = len(values) == count == len(names)
    if not is_whole or count < FEWEST or sorted(values) != values or not values[0] > 0:
        raise InvalidInput(
            f"--ladder={text}: expected {FEWEST} or more numbers > 0, ascending: the smaller ones "
            "forecast the largest"
        )
    (key,) = keys
    if key == SPLITS and design.config.data.task in ("language_modelling", _MASKED):
        raise InvalidInput(
            f"--ladder={text}: a text is cut in its order, so no seed draws its splits; "
            "rows, images and sentence pairs are drawn"
        )
    if key == "seed" or key.startswith("seeds."):
        raise InvalidInput(f"--ladder={text}: seeds are no scale: --seeds=5")
    for name, changes in design.arms.items():
        if key in changes:
            raise InvalidInput(f"--ladder={text}: arm {name!r} sets {key} itself")
    return key, values


def _rung(design: Design, changes: Mapping[str, float]) -> Design:
    overrides = {**design.overrides, **{key: str(value) for key, value in changes.items()}}
    config = changed(design.config, changes)
    return checked_arms(dataclasses.replace(design, config=config, overrides=overrides))


def rung_path(workdir: str | Path, key: str, value: float) -> Path:
    """Returns the directory of a rung's study."""
    return inside(Path(workdir), rung_name(key, value))


def rung_name(key: str, value: float) -> str:
    """Returns KEY=VALUE, as a rung's directory is named."""
    return f"{key}={value if isinstance(value, int) else f'{value:g}'}"

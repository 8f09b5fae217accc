"""Public API for judging scores that other code produced; see docs/comparing.md."""

import contextlib
import math
import numbers
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.studies.outcomes import Outcome, Word
from transformer_jax.studies.statistics import Count, compare, level_of_look

_COLUMNS = ("arm", "seed", "value")


class Result(NamedTuple):
    """The verdict on one arm.

    Attributes:
      arm: Name of the arm.
      word: Better, worse, no different within the margin, unresolved, unstable, identical, refused
        or no verdict; empty for an arm that is not primary.
      reason: The verdict in full, or why there is none.
      estimate: Mean difference from the base; positive is better.
      interval: Simultaneous interval; for an arm that is not primary, an individual interval.
      p: p value of `word` (equivalence or a difference), adjusted for the number of primary arms.
      seeds: Seeds for which arm and base both have a value.
      differences: Differences from the base for these seeds; positive is better.
      seeds_needed: Number of seeds for 80 % power at the margin, or None if unknown.
      level: Level of this look; in a share 1 - 0.8 level of studies, all intervals hold the truth.
      solved: With a target: (runs that reach it, all runs), for arm and base.
      updates: With a target: the update by which half of the runs reach it, or None; arm and base.
    """

    arm: str
    word: str
    reason: str
    estimate: float
    interval: tuple[float, float]
    p: float
    seeds: tuple[int, ...]
    differences: tuple[float, ...]
    seeds_needed: int | None
    level: float
    solved: tuple[Count, Count] | None = None
    updates: tuple[float | None, float | None] | None = None


def judge(
    rows: Any,
    *,
    base: str,
    margin: float,
    larger_is_better: bool,
    primary: Collection[str] | None = None,
    planned: Sequence[int] = (),
    earlier_looks: Sequence[int] = (),
    target: float | None = None,
    family: int = 0,
) -> list[Result]:
    """Compares every arm with a base, paired by seed.

    Args:
      rows: Mappings with `arm`, `seed` and `value`, one per run, or a pandas DataFrame of them. A
        value that is not finite, or a true `diverged`, marks a diverged run. Rows of several
        `data_set`s are refused: judge one at a time.
      base: The baseline.
      margin: The smallest difference that matters, > 0, in the same units as the values.
      larger_is_better: True if larger values are better.
      primary: Arms of the question, declared beforehand (None: all); others get no verdict.
      planned: Number of seeds at each planned look, if several are planned; this look is
        recognised by its own number of seeds.
      earlier_looks: Number of seeds at each earlier look.
      target: Value at which a run counts as solved, if a mean would describe no run. Arms are then
        compared by the number of runs that reach it and by `step`, the updates until then (the
        last update for a run that never does).
      family: Number of comparisons at an earlier look, used if it is larger than the present one:
        an arm chosen from ten still counts as one of ten.
    Returns:
      One result per arm, in the order of the rows.
    Raises:
      InvalidInput: A column is missing, a row occurs twice, or an argument is not valid.
    """
    looks = "numbers of seeds, 1 or more", lambda counts: all(count >= 1 for count in counts)
    names = "a collection of names", lambda names: names is None or not isinstance(names, str)
    units = "in the units of the scores"
    _check("margin", margin, f"a number > 0, {units}", lambda x: 0 < x < math.inf)
    _check("target", target, f"a number {units}", lambda x: x is None or math.isfinite(x))
    _check("larger_is_better", larger_is_better, "True or False", lambda x: x in (True, False))
    _check("primary", primary, *names)
    _check("planned", planned, *looks)
    _check("earlier_looks", earlier_looks, *looks)
    _check("family", family, "a number >= 0", lambda count: count >= 0)
    outcomes, base = outcomes_of(rows, with_steps=target is not None), str(base)
    arms = {arm: by_seed for arm, by_seed in outcomes.items() if arm != base}
    if not arms:
        raise InvalidInput(f"scores: expected at least one arm besides base={base}")
    for name, arm in [("base", base), *(("primary", arm) for arm in primary or ())]:
        if arm not in outcomes:
            has = ", ".join(list(outcomes)[:6])
            near = suggest(arm, outcomes)
            raise InvalidInput(f"{name}={arm}: no such arm in the scores, which has {has}{near}")
    count = len(outcomes[base])
    level = level_of_look(count, planned or (() if earlier_looks else (count,)), earlier_looks)
    contrasts = compare(
        outcomes[base], arms, margin, larger_is_better, level, family,
        primary=primary, target=target,
    )  # fmt: skip
    return [
        Result(
            word="" if contrast.verdict == Word.NOT_PRIMARY else contrast.verdict,
            reason=contrast.words,
            estimate=contrast.mean,
            level=level,
            p=contrast.p_equivalence if contrast.verdict == Word.SAME else contrast.p,
            **{k: v for k, v in contrast._asdict().items() if k in Result._fields and k != "p"},
        )
        for contrast in contrasts
    ]


def unpaired(outcomes: Mapping[str, Collection[int]]) -> Iterator[str]:
    """Yields a remark on each arm that lacks seeds of other arms, from the seeds of each arm."""
    everywhere = set().union(*outcomes.values())
    for arm, own in outcomes.items():
        if missing := sorted(everywhere.difference(own)):
            told = ", ".join(map(str, missing))
            yield f"{arm} has no seed {told}: runs are compared by equal numbers of seeds"


def _check(name: str, value: Any, expected: str, is_right: Callable[[Any], bool]) -> None:
    with contextlib.suppress(TypeError):  # of a value of another type
        if is_right(value):
            return
    raise InvalidInput(f"{name}={value!r}: expected {expected}")


def _is_true(value: Any, row: int) -> bool:
    """Returns whether a value of `diverged`, such as text, a boolean or nan, means true."""
    text = "" if value is None else str(value).strip().lower()
    if text in ("true", "yes", "t", "y"):
        return True
    if text in ("", "false", "no", "f", "n", "nan"):
        return False
    return _number(value, "diverged", row, "true or false") != 0


def _number(value: Any, column: str, row: int, expected: str = "a number") -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"scores: row {row}: {column}={value}: expected {expected}") from error


def _integer(value: Any, column: str, row: int) -> int:
    """Returns a value as an integer; a DataFrame may hold it as a float such as 1.0."""
    if isinstance(value, numbers.Integral) or str(value).strip().isdecimal():
        return int(value)
    number = _number(value, column, row, "an integer")
    if not abs(number) < 2**53 or number != int(number):  # above, a float has lost digits
        raise InvalidInput(f"scores: row {row}: {column}={value}: expected an integer")
    return int(number)


def outcomes_of(rows: Any, with_steps: bool = False) -> dict[str, dict[int, Outcome]]:
    """Returns outcomes by arm and seed, in the order of the rows; reads `step` if `with_steps`."""
    records: list[Mapping[str, Any]]
    records = rows.to_dict("records") if hasattr(rows, "to_dict") else list(rows)
    if wrong := [row for row in records if not isinstance(row, Mapping)]:
        raise InvalidInput(f"scores: expected rows with {', '.join(_COLUMNS)}, got {wrong[0]!r}")
    sets = list(dict.fromkeys(str(row["data_set"]) for row in records if "data_set" in row))
    if len(sets) > 1:
        raise InvalidInput(f"scores: rows of data sets {', '.join(sets)}; judge one set at a time")
    outcomes: dict[str, dict[int, Outcome]] = {}
    for number, row in enumerate(records, start=1):
        for column in _COLUMNS:
            if column not in row:
                raise InvalidInput(
                    f"scores: row {number} has no {column!r}{suggest(column, map(str, row))}; "
                    f"expected {', '.join(_COLUMNS)}, and optionally diverged"
                )
        if row["arm"] is None or row["arm"] != row["arm"] or not str(row["arm"]).strip():
            raise InvalidInput(f"scores: row {number}: the arm is empty")
        arm, seed = str(row["arm"]), _integer(row["seed"], "seed", number)
        if seed in outcomes.setdefault(arm, {}):
            raise InvalidInput(f"scores: row {number}: arm {arm!r} has seed {seed} twice")
        value = math.nan if row["value"] is None else _number(row["value"], "value", number)
        gone = _is_true(row.get("diverged"), number) or not math.isfinite(value)
        last = row.get("step") if with_steps else None
        is_told = last not in (None, "") and last == last  # a DataFrame has nan if there is none
        if with_steps and not is_told and not gone:
            raise InvalidInput(
                f"scores: row {number} has no step; with a target, expected the number of updates "
                "until the run reached it or, if it never did, of all updates"
            )
        step = _integer(last, "step", number) if is_told else 0
        outcomes[arm][seed] = Outcome(None if gone else value, gone, step, step)
    return outcomes

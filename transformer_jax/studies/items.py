"""Benchmarks compared item by item: intervals over the items, and over items and seeds."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from transformer_jax.data.sources.disk import json_rows
from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.studies.other_runs import RULE, arm_and_seed
from transformer_jax.studies.statistics import ALPHA, beyond_this_text, paired_interval
from transformer_jax.studies.tables import signed, spell_interval

_NUMBERS = ("item", "task", "doc_id")  # the last as lm-evaluation-harness logs it
_SAME = (*_NUMBERS, "context", "bytes", "answer", "target", "doc_hash", "filter")  # of an item


class Answers(NamedTuple):
    """A run's scores of the items of a benchmark.

    Attributes:
      values: [N] float64, e.g. 1 where the answer was right.
      items: What identifies each item.
      chance: Expected share of right answers by guessing, or None if unknown.
      source: The file.
    """

    values: np.ndarray
    items: list[tuple]
    chance: float | None
    source: Path


class Compared(NamedTuple):
    """An arm's scores, and its differences from the first arm.

    Attributes:
      arm: Name of the arm.
      seeds: Seeds of the arm; in differences, those that the first arm has too.
      mean: Mean score over items and seeds.
      difference: Mean difference over items and common seeds; None for the first arm.
      interval: 95 % interval of the difference, for all arms together.
      gained, lost: Items whose mean score over the seeds is larger or smaller than the first arm's.
      ties: Items with equal scores.
    """

    arm: str
    seeds: list[int]
    mean: float
    difference: float | None = None
    interval: tuple[float, float] | None = None
    gained: int = 0
    lost: int = 0
    ties: int = 0


def read_answers(
    paths: Iterable[Path], metric: str = "accuracy", rule: str = RULE
) -> dict[str, dict[int, Answers]]:
    """Returns the answers in files that `evaluate` wrote, by arm and seed.

    A run is named as its file, or as the folder of a file that is named after the benchmark. The
    rule finds an arm and a seed in the name; a name without a seed is an arm of one run.

    Raises:
      InvalidInput: A file cannot be read or lacks the metric, or two files have different items.
    """
    arms: dict[str, dict[int, Answers]] = {}
    first: Answers | None = None
    for path in paths:
        name = path.stem
        if re.match("(choices|tasks|core)-", name):
            name = path.resolve().parent.name
        arm, seed = arm_and_seed(name, rule) or (name, 0)
        answers = _read(path, metric)
        first = first or answers
        if answers.items != first.items:
            raise InvalidInput(f"{path}: other items than {first.source}{_apart(answers, first)}")
        if seed in arms.setdefault(arm, {}):
            raise InvalidInput(
                f"{path} and {arms[arm][seed].source}: both are arm {arm}, seed {seed} (--rule)"
            )
        arms[arm][seed] = answers
    return arms


def _read(path: Path, metric: str) -> Answers:
    if not path.is_file():
        raise InvalidInput(f"{path}: no such file")
    values, items, guesses, seen = [], [], [], set()
    for number, row in json_rows(path):
        row = row if isinstance(row, dict) else {}
        scores = [k for k, v in row.items() if isinstance(v, bool | int | float) and k not in _SAME]
        if metric not in scores or row[metric] != row[metric]:
            told = f"{suggest(metric, scores)}; it has {', '.join(scores) or 'none'}"
            raise InvalidInput(f"{path}: row {number}: --metric={metric}: no such score{told}")
        values.append(float(row[metric]))
        items.append(tuple(json.dumps(row.get(field)) for field in _SAME))
        if (known := items[-1][: len(_NUMBERS)]) in seen and {"item", "doc_id"} & row.keys():
            told = ", ".join(f"{k}={row[k]}" for k in (*_NUMBERS, "filter") if k in row)
            raise InvalidInput(f"{path}: row {number}: the item is there twice ({told})")
        seen.add(known)
        guesses.append(1 / len(row.get("log_probabilities") or [1]))
    if len(values) < 2:
        raise InvalidInput(f"{path}: expected at least two items, found {len(values)}")
    is_share = "accuracy" in metric and max(guesses) < 1
    return Answers(np.array(values), items, float(np.mean(guesses)) if is_share else None, path)


def _apart(one: Answers, other: Answers) -> str:
    if len(one.items) != len(other.items):
        return f": {len(one.items)} and {len(other.items)}"
    pairs = enumerate(zip(one.items, other.items, strict=True), start=1)
    number, fields = next((number, pair) for number, pair in pairs if pair[0] != pair[1])
    name = next(n for n, a, b in zip(_SAME, *fields, strict=True) if a != b)
    return f": they differ in {name} in row {number}"


def compare_items(arms: Mapping[str, Mapping[int, Answers]]) -> tuple[list[Compared], list[str]]:
    """Compares every arm with the first one; returns the comparisons, and notes on them.

    With one common seed, an interval is that of the paired t test over the items, and holds for
    these runs; with several, items and seeds are crossed (see statistics.beyond_this_text), and it
    holds for new items and new seeds. Bonferroni's level is used for several arms.

    Raises:
      InvalidInput: There is one arm only, or an arm has no seed of the first one.
    """
    (base, of_base), *others = arms.items()
    if not others:
        raise InvalidInput(f"expected files of at least two arms; all are of {base} (--rule)")
    found, notes = [Compared(base, sorted(of_base), _mean(of_base))], []
    items = len(next(iter(of_base.values())).values)
    for arm, own in others:
        seeds = sorted(own.keys() & of_base.keys())
        if not seeds:
            raise InvalidInput(f"{arm} has no seed of {base}: {sorted(own)} and {sorted(of_base)}")
        if own.keys() ^ of_base.keys():
            missing = ", ".join(map(str, sorted(own.keys() ^ of_base.keys())))
            notes.append(f"{arm} and {base} do not share the seeds {missing}")
        d = np.array([own[seed].values - of_base[seed].values for seed in seeds])
        interval, by_item = _interval(d, ALPHA / len(others)), d.mean(0)
        if own[seeds[0]].chance is not None:  # shares, which differ by at most 1
            interval = (max(interval[0], -1.0), min(interval[1], 1.0))
        counts = (int((by_item > 0).sum()), int((by_item < 0).sum()), int((by_item == 0).sum()))
        found.append(Compared(arm, seeds, _mean(own), float(d.mean()), interval, *counts))
        what = "new seeds may differ" if len(seeds) == 1 else "crossed"
        of_seeds = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
        notes.append(f"{arm}: interval over {items:,} items and {of_seeds} ({what})")
    for arm, own in arms.items():
        values = np.mean([answers.values for answers in own.values()], 0)
        low, high = paired_interval(values, ALPHA).interval
        chance = next(iter(own.values())).chance
        if chance is not None and high >= 1 and values.mean() > (1 + chance) / 2:
            notes.append(f"{arm} is at the ceiling: {values.mean():.4f} of the items are right")
        if chance is not None and low <= chance:
            notes.append(f"{arm} may be no better than guessing, {chance:.4f}")
    return found, notes


def _mean(answers: Mapping[int, Answers]) -> float:
    return float(np.mean([own.values for own in answers.values()]))


def _interval(values: np.ndarray, level: float) -> tuple[float, float]:
    if len(values) == 1:
        return paired_interval(values[0], level).interval
    return beyond_this_text(values, level)


HEADS = ("arm", "seeds", "mean", "difference", "95 % interval", "gained", "lost", "ties")


def rows_of(compared: Iterable[Compared]) -> list[list[str]]:
    """Returns the rows of a table with HEADS."""
    return [
        [own.arm, ", ".join(map(str, own.seeds)), f"{own.mean:.4f}"]
        + ([signed(own.difference), spell_interval(own.interval)] if own.interval else ["", ""])
        + ([str(n) for n in (own.gained, own.lost, own.ties)] if own.interval else 3 * [""])
        for own in compared
    ]

"""What arms may choose for themselves, and among what; declared in get_study(), without jax.

Every arm tries the same settings with the same seeds, by the validation split.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import flatten
from transformer_jax.options.rule import is_integer, suggest
from transformer_jax.options.schema import rule_for, unknown_key
from transformer_jax.studies.asking.settings import (
    UNEVEN,
    Setting,
    Space,
    are_numbers,
    first_space,
    grows_by_factors,
    spell_value,
)

_SEEDS = (1000, 1001)
_LARGEST_STEP = 3.5
_MOST_SETTINGS = 256


@dataclasses.dataclass(frozen=True)
class Tuning:
    """Options that each arm chooses for itself.

    Attributes:
      options: key of the config -> what is tried: numbers in even steps or choices; in a random
        search the two ends of a range in place of numbers.
      trials: settings of a random search (Bergstra and Bengio 2012, JMLR 13, 281-305); 0: a grid of
        all combinations.
      seeds: of the trials; none of them decides the verdict.
      rungs: (share of an arm's updates, number of seeds), ascending. The better half of the
        settings goes on to the next (successive halving, Jamieson and Talwalkar 2016,
        arXiv:1502.07943).
      refine: option whose best value is read off a parabola; "": none is.
      halve: whether the parabola's steps are halved, once, for an arm that may miss its optimum by
        more than a quarter of the margin, or to which a step costs more than five margins. Where
        twice the best rate diverges, that trial bends the parabola and hides all else.
      extensions: how often what is tried may grow, for all arms, where an optimum is at its edge.
    """

    options: Mapping[str, tuple]
    trials: int = 0
    seeds: tuple[int, ...] = _SEEDS
    rungs: tuple[tuple[float, int], ...] = ()
    refine: str = ""
    halve: bool = False
    extensions: int = 2

    def sealed(self) -> dict[str, Any]:
        """As plain JSON; one grid alone in the words of studies that knew nothing else."""
        fields = dataclasses.asdict(self)
        if not self.halve:
            del fields["halve"]  # as studies are sealed that are older than it
        (key, grid), *more = self.options.items()
        if more or self.trials or self.refine or self.rungs != ((1.0, len(self.seeds)),):
            return fields
        return {"key": key, "grid": grid, "seeds": self.seeds, "extensions": self.extensions}

    def space(self) -> Space:
        """What is tried before anything grows."""
        return first_space(self.options, self.trials)

    def runs_of_an_arm(self) -> float:
        """What the trials of an arm cost before anything grows, in whole runs of it."""
        count, total = len(self.space().settings), 0.0
        for share, seeds in self.rungs:
            total, count = total + count * share * seeds, -(-count // 2)
        share, seeds = self.rungs[-1]
        has_neighbours = self.refine and (self.trials or len(self.rungs) > 1)
        more = (2 if has_neighbours else 0) + 2 * self.halve
        return total + more * share * seeds

    def told(self) -> str:
        """What is tried, for the plan."""
        options = ", ".join(
            f"{key} {_joined(values, ' to ' if self.trials and are_numbers(values) else ', ')}"
            for key, values in self.options.items()
        )
        count, steps = len(self.space().settings), []
        for share, seeds in self.rungs:
            of = "" if share == 1 else f" at {share:.0%} of the updates"
            steps.append(f"{count}{of} with {seeds} seed{'s' * (seeds != 1)}")
            count = -(-count // 2)
        search = "random settings" if self.trials else "settings"
        refined = ", then a parabola" if self.refine else ""
        refined += ", its steps halved where they are coarse" * self.halve
        return f"{options}; {search}: {', then '.join(steps)}{refined}"


def _joined(values: Sequence[Any], by: str) -> str:
    return by.join(spell_value(value) for value in values)


# ---------------------------------------------------------------- shorter runs


def shortened(flat: Mapping[str, Any], share: float) -> dict[str, Any]:
    """Returns what makes a run of a share of its updates; its warm-up is as much shorter."""
    if share == 1:
        return {}
    warmup = f"schedule.{flat['schedule.name']}.warmup_steps"
    keys = ["training.steps", *([warmup] if flat.get(warmup) else [])]
    return {key: max(1, round(share * flat[key])) for key in keys}


# ---------------------------------------------------------------- reading it


def read_tuning(where: str, asked: dict | None, flat: Mapping[str, Any]) -> Tuning | None:
    """Returns the `tuning` of a get_study(); `key` and `grid` are short for one of `options`.

    Args:
      where: of the file, for messages.
      asked: what stands there.
      flat: values of the base.
    Raises:
      InvalidInput: any of it is wrong.
    """
    if not asked:
        return None
    fields = [field.name for field in dataclasses.fields(Tuning)]
    where, allowed = f"{where}: tuning", (*fields, "key", "grid")
    unknown = [name for name in asked if name not in allowed]
    if unknown:
        raise InvalidInput(f"{where}: {unknown[0]!r} is unknown{suggest(unknown[0], allowed)}")
    options = asked.get("options")
    named = options if isinstance(options, dict) else ()
    texts = [asked.get("key", ""), asked.get("refine") or "", *named]
    if not all(isinstance(text, str) for text in texts):
        raise InvalidInput(f"{where}: key, options and refine: expected names of options")
    asked = dict(asked)
    if "options" in asked and asked.keys() & {"key", "grid"}:
        raise InvalidInput(f"{where}: key and grid are short for options of one; give either")
    if "options" not in asked:
        asked["options"] = {asked.pop("key", ""): asked.pop("grid", ())}
    options, seeds = asked["options"], asked.get("seeds", _SEEDS)
    lists = [*options.values(), seeds] if isinstance(options, dict) and options else [()]
    if not all(isinstance(values, list | tuple) and values for values in lists):
        raise InvalidInput(f"{where}: grid and seeds: expected lists of numbers, not empty")
    if not all(is_integer(seed) and seed >= 0 for seed in seeds) or len(set(seeds)) < len(seeds):
        raise InvalidInput(f"{where}: seeds={list(seeds)}: expected integers >= 0, each once")
    whole = {"trials": 0, "extensions": 2}
    numbers = {name: asked.get(name, value) for name, value in whole.items()}
    for name, value in numbers.items():
        if not isinstance(value, int) or value < 0:
            raise InvalidInput(f"{where}: {name}={value!r}: expected an integer >= 0")
    for key, values in options.items():
        _refuse_values(where, key, tuple(values), numbers["trials"] > 0, flat)
    tuning = Tuning(
        options={key: _as_declared(key, values, flat) for key, values in options.items()},
        seeds=tuple(seeds),
        rungs=_rungs(where, asked.get("rungs"), len(seeds)),
        refine=asked.get("refine") or "",
        halve=asked.get("halve", False),
        **numbers,
    )
    count = len(tuning.space().settings)
    if not 2 <= count <= _MOST_SETTINGS:
        raise InvalidInput(f"{where}: {count} settings: expected 2 to {_MOST_SETTINGS}")
    refine, (_, last) = tuning.refine, tuning.rungs[-1]
    if refine and not are_numbers(tuning.options.get(refine, ("",))):
        raise InvalidInput(f"{where}: refine={refine!r}: expected one of its options of numbers")
    if refine and last < 2:
        raise InvalidInput(f"{where}: refine: its error needs 2 or more seeds in the last rung")
    if not isinstance(tuning.halve, bool) or (tuning.halve and not refine):
        raise InvalidInput(
            f"{where}: halve={tuning.halve!r}: expected True or False, and True beside refine alone"
        )
    return tuning


def _as_declared(key: str, values: Sequence[Any], flat: Mapping[str, Any]) -> tuple[Any, ...]:
    """1 of an option of numbers is 1.0: its next value is no integer, nor a parabola's middle."""
    rule = rule_for(key, flat)
    if rule is None or not are_numbers(values) or not rule.accepts((values[0] + values[1]) / 2):
        return tuple(values)
    return tuple(map(float, values))


def _refuse_values(
    where: str, key: str, values: tuple, is_random: bool, flat: Mapping[str, Any]
) -> None:
    rule, at = rule_for(key, flat), f"{where}: grid={values}" if values else where
    if rule is None:
        raise InvalidInput(f"{where}: {unknown_key(key, flat)}")
    wrong = [value for value in values if not rule.accepts(value)]
    if wrong:
        raise InvalidInput(f"{at}: {key}={wrong[0]!r}: expected {rule.allowed}")
    if not are_numbers(values):
        if len(set(values)) < max(len(values), 2):
            raise InvalidInput(f"{at}: {key}: expected 2 or more choices, each once")
        return
    if is_random:
        if len(values) != 2 or not values[0] < values[1]:
            raise InvalidInput(f"{at}: {key}: expected the two ends of a range, for random trials")
        return
    if len(values) < 3:
        raise InvalidInput(f"{at}: {key}: expected 3 or more of {rule.allowed}")
    steps = [after - before for before, after in itertools.pairwise(values)]
    is_even = min(steps) > 0 and max(steps) <= UNEVEN * min(steps)
    by_factors = grows_by_factors(values)
    is_far = by_factors and values[-1] / values[-2] > _LARGEST_STEP
    if is_far or not (is_even or by_factors):
        raise InvalidInput(f"{at}: each value 1 to 3 times the last, evenly, or in equal steps")


def _rungs(where: str, asked: Any, count: int) -> tuple[tuple[float, int], ...]:
    if not asked:
        return ((1.0, count),)
    try:
        rungs = tuple((float(share), int(seeds)) for share, seeds in asked)
        is_right = all(0 < share <= 1 and 1 <= seeds <= count for share, seeds in rungs)
        is_right &= list(rungs) == sorted(set(rungs)) and rungs[-1][1] == count
        is_right &= all(a[1] <= b[1] for a, b in itertools.pairwise(rungs))
    except (TypeError, ValueError):
        is_right, rungs = False, ()
    if not is_right:
        raise InvalidInput(
            f"{where}: rungs={asked!r}: expected (share of the updates, number of seeds), both "
            f"ascending, the last with all {count} seeds: ((0.25, 1), (0.5, {count}))"
        )
    return rungs


def refuse_impossible_settings(design: Any) -> None:
    """Raises InvalidInput where an arm cannot be trained with one of the values, or so briefly."""
    tuning = design.tuning
    if tuning is None:
        return
    for name in design.arms:
        set_there = [key for key in tuning.options if key in design.arms[name]]
        if set_there:
            raise InvalidInput(f"{design.path}: arm {name!r} sets {set_there[0]}, which is tuned")
        for key, values in tuning.options.items():
            for value in values:
                flat = flatten(design.config_of(name, {key: value}))
                for share, _ in tuning.rungs:
                    design.config_of(name, {key: value, **shortened(flat, share)})


# ---------------------------------------------------------------- what it gave


class Tuned(NamedTuple):
    """What an arm's tuning gave.

    Attributes:
      chosen: the best setting.
      tried: of each setting: itself, and its mean on the validation split at each rung that it
        came to; not a number where one seed diverged.
      runs: that this arm had.
      refused: why the arm gets no verdict; "" if it may.
      sensitivity: where one option of numbers was tuned, see inference.tuned.
      refined: where a parabola chose: see inference.tuned.
    """

    chosen: Setting
    tried: Sequence[tuple[Setting, Sequence[float]]]
    runs: int
    refused: str = ""
    sensitivity: float | None = None
    refined: Mapping[str, Any] | None = None

    @property
    def first_scores(self) -> list[float]:
        """Of every setting, at the first rung."""
        return [math.nan if scores[0] is None else scores[0] for _, scores in self.tried]


def tuned_of(arm: Mapping[str, Any]) -> Tuned | None:
    """Returns what study.json says of an arm's tuning; None where there was none.

    Args:
      arm: its entry. Studies of one grid knew `key`, `values` and `scores`.
    """
    stored = arm.get("tuning")
    if not stored:
        return None
    if "values" not in stored:
        tuned = Tuned(**{name: stored[name] for name in Tuned._fields if name in stored})
        chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in tuned.chosen.items()}
        return tuned._replace(chosen=chosen)  # JSON has lists alone, options have tuples
    key, values = stored["key"], stored["values"]
    tried = [({key: v}, [s]) for v, s in zip(values, stored["scores"], strict=True)]
    chosen, sensitivity = {key: stored["chosen"]}, stored["sensitivity"]
    return Tuned(chosen, tried, stored["trials"], stored["refused"], sensitivity)

"""What came of every row: checks are run, claims are looked up in the verdicts of the studies."""

import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from experiments.course.checks import WORKED
from experiments.course.errata import ERRATA, Erratum
from experiments.course.statements import STATEMENTS, Claim, Statement
from transformer_jax.studies.inference import statistics
from transformer_jax.studies.judging.adequacy import CANNOT_TELL

FORECAST, FORGETS, KEEPS, FALLS = "forecast", "forgets", "keeps", "falls"
SHRINKS = "shrinks"
FASTER, SLOWER = "faster", "slower"
PERFECT = "perfect"  # both arms answered everything rightly, so neither could be better
# What a wanted kind is met by, if not by itself alone.
_MEETS = {
    "same": ("same", PERFECT),
    "no better": ("same", "worse", PERFECT),
    "different": ("better", "worse"),
}
RESULTS = Path(__file__).parents[1] / "results"
HOLDS, PARTLY, NOT, OPEN, UNTESTED = (
    "held",
    "held in part",
    "did not hold here",
    "unresolved",
    "not tested",
)
_KINDS = {
    statistics.BETTER: "better",
    statistics.WORSE: "worse",
    statistics.SAME: "same",
}


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a check came to.

    Attributes:
      holds: whether it did.
      told: what was seen, or what was wrong.
      seconds: that it took.
    """

    holds: bool
    told: str
    seconds: float


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of a statement.

    Attributes:
      statement: the row.
      word: of its claims, or of its check where it has none.
      seen: of its check, if it has one.
      verdicts: a line for each study, with the words of its verdicts.
    """

    statement: Statement
    word: str
    seen: Seen | None
    verdicts: tuple[str, ...]


@functools.cache
def run_check(check: Callable[[], str]) -> Seen:
    """Runs a check once, whoever asks."""
    started = time.monotonic()
    try:
        holds, told = True, check()
    except AssertionError as error:
        holds, told = False, f"failed: {(str(error) or str(check.__doc__)).splitlines()[0]}"
    return Seen(holds, told, time.monotonic() - started)


def outcome_of(statement: Statement) -> Outcome:
    """Decides a statement."""
    seen = run_check(statement.check) if statement.check else None
    kinds = [kind_of(claim) for claim in statement.claims]
    names = dict.fromkeys([*(claim.study for claim in statement.claims), *statement.studies])
    lines = tuple(line for name in names if (line := words_of(name)))
    if statement.claims:
        word = _word(
            [(claim.wants, kind) for claim, kind in zip(statement.claims, kinds, strict=True)]
        )
    elif seen:
        word = HOLDS
    else:
        word = "see the verdicts" if lines else UNTESTED
    if seen and not seen.holds:
        word = NOT
    return Outcome(statement, word, seen, lines)


def _word(pairs: Iterable[tuple[str, str | None]]) -> str:
    """Of wanted and found kinds; None is a study that has not been run."""
    pairs = list(pairs)
    if any(kind is None for _, kind in pairs):
        return UNTESTED
    right = sum(kind in _MEETS.get(wants, (wants,)) for wants, kind in pairs)
    unknown = sum(kind in (OPEN, PERFECT) for _, kind in pairs)
    if right == len(pairs):
        return HOLDS
    if right:
        return PARTLY
    return OPEN if unknown == len(pairs) else NOT


@functools.cache
def verdicts_of(study: str) -> dict[str, Any] | None:
    """What a study's verdicts.json holds; None if it has not been run."""
    path = RESULTS / study / "verdicts.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def kind_of(claim: Claim) -> str | None:
    """What a study found of an arm: better, worse, same or unresolved; None: it was not run."""
    if claim.wants == FORECAST:
        return _forecast(claim.study)
    if claim.wants == SHRINKS:
        return _over_scales(claim.study, claim.arm)
    if claim.wants == FASTER:
        return _speed(claim.study, claim.arm)
    verdicts = verdicts_of(claim.study)
    if verdicts is None:
        return None
    if claim.wants == FORGETS:
        return _forgets(verdicts, claim.arm)
    if claim.also:
        far = verdicts["also"][claim.also][claim.arm]["mean"]
        loss = abs(far - verdicts["values"][claim.arm]["mean"])
        return KEEPS if loss <= verdicts["margin"] else FALLS
    arm = verdicts["arms"][claim.arm]
    if arm["verdict"] == statistics.UNSTABLE:
        (ours, _), (bases, _) = arm["diverged"]
        return "worse" if ours > bases else "better"
    if arm["verdict"] == statistics.IDENTICAL:
        return PERFECT
    if "negligible" in arm["words"]:
        return "same"
    return _KINDS.get(arm["verdict"], OPEN)


def _forgets(verdicts: dict[str, Any], arm: str) -> str:
    """Whether answers that stand furthest back are wrong more often than the nearest ones."""
    by_distance = verdicts["by_distance"][arm]
    near, *_, far = sorted(by_distance, key=int)
    lost = [a - b for a, b in zip(by_distance[near], by_distance[far], strict=True)]
    low, high = statistics.paired_interval(lost, 0.05).interval
    margin = verdicts["margin"]
    return FORGETS if low > margin else "remembers" if high < margin else OPEN


def _ladder_of(name: str) -> dict[str, Any] | None:
    path = RESULTS / name / "ladder.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _over_scales(ladder: str, arm: str) -> str | None:
    """What a ladder says of an arm's effect: shrinks, grows, holds, flips; or it is unresolved."""
    found = _ladder_of(ladder)
    if found is None:
        return None
    word = found["arms"][arm]["word"]
    return OPEN if word.startswith((OPEN, CANNOT_TELL)) else word


def _forecast(ladder: str) -> str | None:
    """Whether a ladder forecast its base's score at the largest rung to within the margin."""
    found = _ladder_of(ladder)
    if found is None:
        return None
    if not found["forecast_of_score"]:
        return OPEN
    low, high = found["forecast_of_score"]["missed_interval"]
    margin = found["margin"]
    if -margin < low and high < margin:
        return FORECAST
    return "missed" if low > margin or high < -margin else OPEN


@functools.cache
def _times_of(study: str) -> dict[str, Any] | None:
    """What experiments.speed wrote; None if this is no measurement of times."""
    path = RESULTS / study / "speed.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def _speed(study: str, name: str) -> str | None:
    """Whether a ratio of times was above 1 in every round at the greatest length."""
    found = _times_of(study)
    if found is None:
        return None
    by_length = found["ratios"][name]
    ratios = by_length[max(by_length, key=int)]
    return FASTER if min(ratios) > 1 else SLOWER if max(ratios) < 1 else OPEN


def words_of(study: str) -> str:
    """A line on a study: what each arm was beside its base, with the difference."""
    times = _times_of(study)
    if times is not None:
        told = []
        for name, by_length in times["ratios"].items():
            medians = [f"{median(r):.2g} at {n}" for n, r in by_length.items()]
            told.append(f"{name} {', '.join(medians)}")
        return f"{study}, how many times as fast by length in tokens: {'; '.join(told)}"
    if (RESULTS / study / "ladder.md").exists():
        lines = (RESULTS / study / "ladder.md").read_text(encoding="utf-8").splitlines()
        told = [
            line.strip("- ").replace("**", "") for line in lines if line.startswith(("- ", "The "))
        ]
        return f"{study}: {' '.join(told)}"
    verdicts = verdicts_of(study)
    if verdicts is None:
        return ""
    limit = ", at the base's hyper-parameters"
    arms = [
        f"{arm} {found['words'].removesuffix(limit)}"
        + (f" ({found['mean']:+.3f})" if found.get("mean") is not None else "")
        for arm, found in verdicts["arms"].items()
    ]
    untuned = any(found["words"].endswith(limit) for found in verdicts["arms"].values())
    tuned = "; at the base's hyper-parameters" if untuned else ""
    metric = verdicts["metric"].removeprefix("test/").replace("_", " ")
    return f"{study}, {metric}, beside {verdicts['base']}: {'; '.join(arms)}{tuned}"


def all_outcomes() -> list[Outcome]:
    """Decides every statement."""
    return [outcome_of(statement) for statement in STATEMENTS]


def worked_numbers() -> dict[str, Seen]:
    """Runs the worked numbers."""
    return {says: run_check(check) for says, check in WORKED.items()}


def demonstrations() -> list[tuple[Erratum, Seen | None]]:
    """Runs the demonstrations of the errata."""
    return [(row, run_check(row.demonstrate) if row.demonstrate else None) for row in ERRATA]

"""What came of every row: checks are run, claims are looked up in the verdicts of the studies."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

from experiments import answers
from experiments.course.checks import NotInstalled
from experiments.course.statements import Claim, Statement
from transformer_jax.runs.files import read_json
from transformer_jax.studies.inference import statistics
from transformer_jax.studies.inference.words import CANNOT_TELL, UNTUNED

FORECAST, KEEPS = "forecast", "keeps"
SHRINKS = "shrinks"
FASTER, SLOWER = "faster", "slower"
# What a wanted kind is met by, if not by itself alone.
_MEETS = {"no better": ("same", "worse"), "different": ("better", "worse")}
HOLDS, PARTLY, REST_OPEN, NOT, OPEN, UNTESTED = (
    "held",
    "held in part",
    "held in part, the rest is open",
    "did not hold here",
    "unresolved",
    "not tested",
)  # beside these: CANNOT_TELL
_KINDS = {
    statistics.BETTER: "better",
    statistics.WORSE: "worse",
    statistics.SAME: "same",
}


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a check came to.

    Attributes:
      holds: whether it did; None: what it needs is not here.
      told: what was seen, what was wrong, or what is needed.
    """

    holds: bool | None
    told: str


@dataclasses.dataclass(frozen=True)
class StatementOutcome:
    """What came of a statement.

    Attributes:
      statement: the row.
      word: of its check and its claims.
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
    try:
        holds, sentence = True, check()
        assert sentence, "it says nothing of what it saw"
    except NotInstalled as error:
        holds, sentence = None, str(error)
    except AssertionError as error:
        holds, sentence = False, f"failed: {(str(error) or str(check.__doc__)).splitlines()[0]}"
    return Seen(holds, sentence)


def outcome_of(statement: Statement) -> StatementOutcome:
    """Decides a statement."""
    seen = run_check(statement.check) if statement.check else None
    names = dict.fromkeys([*(claim.study for claim in statement.claims), *statement.studies])
    lines = tuple(line for name in names if (line := _line_on(name)))
    pairs = [(HOLDS, HOLDS if seen.holds else None)] if seen else []
    pairs += [(claim.wants, kind_of(claim)) for claim in statement.claims]
    word = NOT if seen and seen.holds is False else _word(pairs)
    return StatementOutcome(statement, word, seen, lines)


def _word(pairs: Iterable[tuple[str, str | None]]) -> str:
    """Of wanted and found kinds; None is what has not been run."""
    pairs = list(pairs)
    if not pairs or any(kind is None for _, kind in pairs):
        return UNTESTED
    right = sum(kind in _MEETS.get(wants, (wants,)) for wants, kind in pairs)
    if right == len(pairs):
        return HOLDS
    undecided = [kind for _, kind in pairs if kind in (CANNOT_TELL, OPEN)]
    if right:
        return PARTLY if right + len(undecided) < len(pairs) else REST_OPEN
    return next((word for word in (CANNOT_TELL, OPEN) if word in undecided), NOT)


def kind_of(claim: Claim) -> str | None:
    """What a study found of an arm: better, worse, same or unresolved; None: it was not run.

    Of a study that does not bear on its question nobody can tell, whatever it found.
    """
    if claim.wants in (FORECAST, SHRINKS):
        ladder = _stored(claim.study, "ladder.json")
        if ladder is None:
            return None
        if claim.study in answers.WITHDRAWN:
            return CANNOT_TELL
        return _forecast(ladder) if claim.wants == FORECAST else _over_scales(ladder, claim.arm)
    if claim.wants == FASTER:
        return _speed(claim.study, claim.arm)
    study = answers.read_study(claim.study)
    if study is None:
        return None
    if answers.withheld(study):
        return CANNOT_TELL
    if claim.also:
        return _elsewhere(study.verdicts, claim)
    arm = study.verdicts["arms"][claim.arm]
    if arm["verdict"] == statistics.UNSTABLE:
        (ours, _), (bases, _) = arm["diverged"]
        return "worse" if ours > bases else "better"
    kind = "same" if "negligible" in arm["words"] else _KINDS.get(arm["verdict"], OPEN)
    if kind == "same" and answers.margin_of(study):
        return CANNOT_TELL
    # A word by a procedure that changed after the scores were seen decides no statement.
    return OPEN if claim.study in answers.SAID_FIRST else kind


def _elsewhere(verdicts: dict[str, Any], claim: Claim) -> str:
    """Whether an arm keeps its score in a further evaluation, or is better there than the base."""
    there = verdicts["also"][claim.also]
    ours = there[claim.arm].get("by_seed", {})  # older verdicts have means alone
    keeps = claim.wants == KEEPS
    others = verdicts["values"][claim.arm] if keeps else there[verdicts["base"]]
    others = others.get("by_seed", {})
    sign = 1 if verdicts["larger_is_better"] else -1
    both = [seed for seed in ours if None not in (ours[seed], others.get(seed))]
    gained = [sign * (ours[seed] - others[seed]) for seed in both]
    if len(gained) < 2:
        return OPEN
    its = verdicts["arms"][claim.arm]
    level = statistics.FOR_MEANS * its["level"] / max(verdicts["contrasts"], its.get("family", 0))
    low, high = statistics.paired_interval(gained, level).interval
    if keeps:
        low, high = low + verdicts["margin"], high + verdicts["margin"]
    return (KEEPS if keeps else "better") if low > 0 else "worse" if high < 0 else OPEN


def _stored(study: str, file: str) -> dict[str, Any] | None:
    """What a file of a committed study holds; None where there is none."""
    path = answers.RESULTS / study / file
    return read_json(path) if path.exists() else None


def _over_scales(ladder: dict[str, Any], arm: str) -> str:
    """What a ladder says of an arm's effect: shrinks, grows, holds, flips; or it is unresolved."""
    word = ladder["arms"][arm]["word"]
    return OPEN if word.startswith((OPEN, CANNOT_TELL)) else word


def _forecast(ladder: dict[str, Any]) -> str:
    """Whether a ladder forecast its base's score at the largest rung to within the margin."""
    if not ladder["forecast_of_score"]:
        return OPEN
    low, high = ladder["forecast_of_score"]["missed_interval"]
    margin = ladder["margin"]
    if -margin < low and high < margin:
        return FORECAST
    return "missed" if low > margin or high < -margin else OPEN


def _speed(study: str, name: str) -> str | None:
    """Whether a ratio of times was above 1 in every round at the greatest length."""
    times = _stored(study, "speed.json")
    if times is None:
        return None
    by_length = times["ratios"][name]
    ratios = by_length[max(by_length, key=int)]
    return FASTER if min(ratios) > 1 else SLOWER if max(ratios) < 1 else OPEN


def _line_on(study: str) -> str:
    """A line on a study: what each arm was beside its base, with the difference."""
    times = _stored(study, "speed.json")
    if times is not None:
        sentences = []
        for name, by_length in times["ratios"].items():
            medians = [
                f"{median(r):.3g} ({min(r):.3g} to {max(r):.3g}) at {n}"
                for n, r in by_length.items()
            ]
            sentences.append(f"{name} {', '.join(medians)}")
        return f"{study}, how many times as fast by length in tokens: {'; '.join(sentences)}"
    ladder = answers.RESULTS / study / "ladder.md"
    if ladder.exists():
        if study in answers.WITHDRAWN:
            return f"{study}: not decided: {answers.WITHDRAWN[study]}"
        lines = ladder.read_text(encoding="utf-8").splitlines()
        sentences = [
            line.strip("- ").replace("**", "") for line in lines if line.startswith(("- ", "The "))
        ]
        return f"{study}: {' '.join(sentences)}"
    read = answers.read_study(study)
    if read is None:
        return ""
    why_not = answers.withheld(read)
    if why_not:
        return f"{study}: not decided: {why_not}"
    verdicts = read.verdicts
    arms = [
        f"{arm} {its['words'].removesuffix(UNTUNED)}"
        + (f" ({its['mean']:+.3f})" if its.get("mean") is not None else "")
        for arm, its in verdicts["arms"].items()
    ]
    metric = verdicts["metric"].removeprefix("test/").replace("_", " ")
    found = f"{metric}, beside {verdicts['base']}: {'; '.join(arms)}"
    for name, arms in verdicts["also"].items():
        scores = ", ".join(f"{arm} {its['mean']:.3f}" for arm, its in arms.items())
        found += f"; at {name}: {scores}"
    return f"{study}, {found}; {answers.domain_of(read)}"

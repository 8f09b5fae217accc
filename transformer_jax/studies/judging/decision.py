"""The words of every arm, from its scores alone: no file and no cell is read here."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.runs.files import as_plain
from transformer_jax.studies.inference import statistics
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.words import (
    BETTER,
    IDENTICAL,
    REFUSED,
    SAME,
    UNRESOLVED,
    UNSTABLE,
    UNTUNED,
    WORSE,
)

_RATE = "optimizer.learning_rate"


class Evidence(NamedTuple):
    """What an arm is judged by.

    Attributes:
      base: seed -> outcome.
      arm: the same of the arm.
      level: of this look at it.
      computes_the_same: whether both give every test example the same loss; None: not known.
      family: contrasts that were asked together with this one in earlier studies, the most.
    """

    base: Mapping[int, Outcome]
    arm: Mapping[int, Outcome]
    level: float
    computes_the_same: bool | None = None
    family: int = 0


def family_of(sealed: Mapping[str, Any], arms: Sequence[str]) -> int:
    """Returns how many contrasts share a level: primary arms, or all that were asked."""
    sealed_arms = [name for name in sealed["arms"] if name != sealed["base"]]
    return len(sealed["primary"]) or max(len(sealed_arms), len(arms))


def level_of_contrast(sealed: Mapping[str, Any], counts: Sequence[int]) -> float:
    """Returns the level of an arm's interval at the last of the looks that had so many seeds."""
    level = statistics.level_of_look(counts[-1], sealed["looks"], counts[:-1])
    return statistics.FOR_MEANS * level / max(family_of(sealed, []), 1)


def decide(
    sealed: Mapping[str, Any],
    evidence: Mapping[str, Evidence],
    refusals: Mapping[str, list[str]],
) -> dict[str, dict[str, Any]]:
    """Returns what is said of each arm, from its scores alone.

    Args:
      sealed: what was asked.
      evidence: arm -> what it is judged by.
      refusals: arm -> why it gets no verdict.
    """
    family, verdicts = family_of(sealed, [*evidence]), {}
    for name, (base, arm, level, computes_the_same, before) in evidence.items():
        if refusals[name]:
            words = f"refused: {refusals[name][0]}"
            verdicts[name] = {"arm": name, "verdict": REFUSED, "words": words}
        else:
            (contrast,) = statistics.compare(
                base, {name: arm}, sealed["margin"], sealed["larger_is_better"], level,
                max(family, before), primary=sealed["primary"] or None, target=sealed["target"],
            )  # fmt: skip
            verdicts[name] = as_plain(contrast)
            if contrast.verdict == IDENTICAL:
                if _is_perfect(arm, sealed["metric"]):
                    verdicts[name]["words"] = "identical: every answer of both is right"
                elif computes_the_same is False:
                    words = "refused: the same score in every seed, though the losses differ: the "
                    words += "metric does not tell them apart"
                    verdicts[name] |= {"verdict": REFUSED, "words": words}
            verdicts[name]["words"] += (
                ""
                if sealed["tuning"]
                or _RATE in sealed["arms"].get(name, {})  # an arm may be younger than the seal
                else untuned(verdicts[name]["verdict"])
            )
        verdicts[name] |= {"refusals": refusals[name], "level": level}
        verdicts[name] |= {"family": before} if before > family else {}
    return verdicts


def _is_perfect(outcomes: Mapping[int, Outcome], metric: str) -> bool:
    """Whether no score could be better, so that equal ones say nothing against the change."""
    return metric.endswith("accuracy") and all(o.value == 1 for o in outcomes.values())


def untuned(verdict: str) -> str:
    """What limits a verdict between arms that were not tuned."""
    gives_one = verdict in (BETTER, WORSE, SAME)
    limited = gives_one or verdict in (UNRESOLVED, UNSTABLE)
    return UNTUNED if limited else ""

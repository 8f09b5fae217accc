"""Whether a verdict holds under other choices: a specification curve of single runs.

It is a description and no test: one seed of base and arm for each combination of choices.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.words import BETTER, SAME, WORSE


class Curve(NamedTuple):
    """An arm under all specifications.

    Attributes:
      differences: of arm and base, larger is better; None where a run is missing or both diverged,
        an infinity where one diverged.
      held: how many have the sign of the study, or lie within the margin where it says so.
      known: how many of them there are.
      words: what may be said.
    """

    differences: list[float | None]
    held: int
    known: int
    words: str


def curve(
    arm: Mapping[str, Any],
    pairs: Sequence[tuple[Outcome | None, Outcome | None]],
    margin: float,
    larger_is_better: bool,
) -> Curve:
    """Returns what became of an arm under each specification.

    Args:
      arm: what verdicts.json says of it.
      pairs: outcomes of arm and base, by specification, the first as the study has it.
      margin: the smallest difference that matters.
      larger_is_better: direction of the metric.
    """
    sign = 1.0 if larger_is_better else -1.0
    differences = [_difference(*pair, sign) for pair in pairs]
    finite = [d for d in differences if d is not None]
    if arm["verdict"] == SAME:
        held, what = sum(abs(d) < margin for d in finite), f"the difference is within {margin:g}"
    elif arm["verdict"] in (BETTER, WORSE):
        direction = 1 if arm["verdict"] == BETTER else -1
        held, what = sum(direction * d > 0 for d in finite), "the sign holds"
    else:
        mean = arm.get("mean") or (finite[0] if finite else 0.0)
        held = sum(math.copysign(1, mean) * d > 0 for d in finite)
        what = f"no verdict ({arm['verdict']}); the sign of its mean is seen"
    return Curve(differences, held, len(finite), f"{what} in {held} of {len(finite)}")


def _difference(ours: Outcome | None, theirs: Outcome | None, sign: float) -> float | None:
    if ours is None or theirs is None or (ours.diverged and theirs.diverged):
        return None
    if ours.diverged or theirs.diverged:
        return -math.inf if ours.diverged else math.inf
    if ours.value is None or theirs.value is None:
        return None
    return sign * (ours.value - theirs.value)

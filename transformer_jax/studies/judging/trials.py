"""What tuning adds to a verdict: the error of an optimum, and from how many trials it holds."""

import math
from typing import Any

from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.asking.tuning import tuned_of
from transformer_jax.studies.inference.tuned import holds_from


def errors_of(study: Study, *arms: str) -> tuple[tuple[float, float], ...]:
    """Returns (error of the score, degrees of freedom) of arms, where parabolas chose."""
    errors = []
    for name in arms:
        tuned = tuned_of(study.arms[name])
        if tuned is not None and tuned.refined:
            errors.append((tuned.refined["missed"], tuned.refined["freedom"]))
    return tuple(errors)


def domain_of(study: Study, arm: str, mean: float | None) -> dict[str, Any]:
    """Returns for how many trials a mean difference speaks, as `tuned`; {} where an arm had none.

    Args:
      study: with its tuning.
      arm: its name.
      mean: difference from the base, larger is better.
    Returns:
      `trials`, the settings that both tried, and `holds_from`, of how many of them on the best of
      arm and base differ in that direction; None where not even of all.
    """
    ours, theirs = (tuned_of(study.arms[name]) for name in (arm, study.base))
    if ours is None or theirs is None or not ours.tried or not theirs.tried:
        return {}
    larger, first = study.sealed["larger_is_better"], (ours.first_scores, theirs.first_scores)
    has_mean = mean is not None and math.isfinite(mean)
    start = holds_from(*first, larger, math.copysign(1, mean or 0)) if has_mean else None
    return {"tuned": {"trials": len(ours.tried), "holds_from": start}}

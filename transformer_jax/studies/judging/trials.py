"""What tuning adds to a verdict: the regret of a choice, and from how many trials it holds."""

import math
from typing import Any

from transformer_jax.studies.asking.settings import grows_by_factors
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.asking.tuning import tuned_of
from transformer_jax.studies.inference.tuned import Regret, holds_from

_DUST = 1e-9  # of a score: what rounding leaves of trials that differ equally in all seeds


def regret_of(study: Study, arm: str) -> tuple[Regret, ...]:
    """Returns the regret of what an arm's parabola chose; () where none did."""
    tuned = tuned_of(study.arms[arm])
    if tuned is None or not tuned.refined:
        return ()
    its = tuned.refined
    if its["missed"] < _DUST:
        return ()
    if not its["is_inside"]:  # by so much its three values may come apart
        return (Regret(its["missed"], its["freedom"]),)
    ends, mean = its["between"][::2], its["missed"] / math.sqrt(3)  # see parabola
    first, last = map(math.log, ends) if grows_by_factors(its["between"]) else ends
    farthest = max(its["at"] - first, last - its["at"])
    return (Regret(mean, its["freedom"], mean * (farthest / its["deviation"]) ** 2),)


def trials_behind(study: Study, arm: str, mean: float | None) -> dict[str, Any]:
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

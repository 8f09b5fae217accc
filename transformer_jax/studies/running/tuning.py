"""Per-arm tuning under an equal budget: the same grid and seeds for every arm.

Trials are ordinary cells, scored on the validation split with seeds that no verdict uses. Each arm
takes the optimum of a parabola over the logarithm. An arm whose best value is the first or the last
of the grid gets no verdict: its optimum may lie beyond.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.studies.asking.design import Design
from transformer_jax.studies.inference.parabola import lowest_point
from transformer_jax.studies.running.planning import Arm, ArmBuilder

# (trials, seeds) -> validation means of each seed: {} where it diverged, None without an outcome.
RunTrials = Callable[[Mapping[str, Arm], Sequence[int]], dict[str, list[dict | None]]]


def tune(
    design: Design, builder: ArmBuilder, arms: Mapping[str, Arm], run_trials: RunTrials
) -> dict[str, dict[str, Any]]:
    """Runs the trials of all arms and returns what each of them chose.

    Args:
      design: With its tuning.
      builder: Makes trials.
      arms: Name -> arm, already made equal in cost.
      run_trials: Trains them and returns the validation split's means of each seed.

    Returns:
      Arm -> `key`, `grid` and `seeds`, `chosen` value, `scores` of each seed at each grid value
      (None: diverged), number of `runs`, and `refused`: why the arm gets no verdict, "" if it may
      get one.
    """
    assert design.tuning is not None
    key, grid, seeds = design.tuning.key, design.tuning.grid, design.tuning.seeds
    trials = {
        f"{name} | {key}={value:g}": builder.make(
            f"{name} | {key}={value:g}", name, {**arm.matched, key: value}
        )
        for name, arm in arms.items()
        for value in grid
    }
    means = run_trials(trials, seeds)
    sign = -1.0 if design.larger_is_better else 1.0
    chosen = {}
    for name in arms:
        rows = [means[f"{name} | {key}={value:g}"] for value in grid]
        # A metric may have no value, such as the updates to a target that was never reached.
        scores = [[(row or {}).get(design.metric) for row in of_value] for of_value in rows]
        losses = [sign * _mean(of_value, math.inf * sign) for of_value in scores]
        best = lowest_point(grid, losses)
        refused = f"its best {key} is at the edge of the grid" if best is None else ""
        if any(row is None for of_value in rows for row in of_value):
            refused = "some trials of its tuning have no outcome"
        tried = grid[min(range(len(grid)), key=losses.__getitem__)]
        near = (float(f"{best if best is not None else tried:.3g}"), round(best or tried), tried)
        changes = arms[name].matched
        chosen[name] = {
            "key": key,
            "grid": list(grid),
            "seeds": list(seeds),
            "chosen": _possible(
                near, lambda v, n=name, c=changes: builder.make(n, n, {**c, key: v})
            ),
            "scores": scores,
            "runs": design.tuning.runs_of_an_arm,
            "refused": refused,
        }
    return chosen


def _possible(values: Sequence[float], make: Callable[[float], Any]) -> float:
    """Returns the first value with which an arm can be made; the last one was trained."""
    for value in values[:-1]:
        try:
            make(value)
        except (InvalidInput, ValueError):  # no integer, or no width for these heads
            continue
        return value
    return values[-1]


def _mean(scores: Sequence[float | None], worst: float) -> float:
    """Mean over seeds; the worst there is where one diverged or has no score."""
    known = [score for score in scores if score is not None and math.isfinite(score)]
    return sum(known) / len(scores) if len(known) == len(scores) else worst

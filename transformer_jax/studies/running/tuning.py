"""Per-arm tuning under an equal budget: the same grid, trials and seeds for every arm.

Trials are scored on the validation split with seeds that no verdict uses. Where an arm's optimum is
at the edge, the grid grows for all arms; where it stays there, the arm gets no verdict.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from transformer_jax.studies.asking.design import Design
from transformer_jax.studies.running.planning import Arm, ArmBuilder

# Trials -> the validation means of each seed: {} where it diverged, None without an outcome.
RunTrials = Callable[[Mapping[str, Arm]], dict[str, list[dict | None]]]


class Tuned(NamedTuple):
    """What an arm's tuning gave.

    Attributes:
      key: of the config.
      values: of the grid, ascending.
      scores: mean over the tuning seeds, on the validation split; not a number where one diverged.
      chosen: the best value.
      sensitivity: see statistics.sensitivity.
      trials: that this arm had.
      refused: why the arm gets no verdict; "" if it may.
    """

    key: str
    values: tuple[float, ...]
    scores: tuple[float, ...]
    chosen: float
    sensitivity: float
    trials: int
    refused: str


def count(design: Design) -> int:
    """Returns how many trials a design plans, before any grid grows."""
    if design.tuning is None:
        return 0
    return len(design.arms) * len(design.tuning.grid) * len(design.tuning.seeds)


def tune(
    design: Design, builder: ArmBuilder, arms: Mapping[str, Arm], run_trials: RunTrials
) -> dict[str, Tuned]:
    """Runs the trials of all arms.

    Args:
      design: with its tuning.
      builder: makes trials.
      arms: name -> arm, made equal already.
      run_trials: trains them and returns the validation split's means of each seed.
    """
    assert design.tuning is not None
    key, grid = design.tuning.key, list(design.tuning.grid)
    scores: dict[str, dict[float, float]] = {name: {} for name in arms}
    starts: dict[str, float] = {}
    lost: set[str] = set()
    for growth in range(design.tuning.extensions + 1):
        trials = {
            f"{name} | {key}={value:g}": builder.make(
                f"{name} | {key}={value:g}", name, {**arm.matched, key: value}
            )
            for name, arm in arms.items()
            for value in grid
            if value not in scores[name]
        }
        results = run_trials(trials)
        for name in arms:
            for value in grid:
                means = results.get(f"{name} | {key}={value:g}")
                if means is not None:
                    lost |= {name} if None in means else set()
                    scores[name][value] = _mean(means, design.metric)
                    starts[name] = math.log(_classes(trials[f"{name} | {key}={value:g}"]))
        edges = {_edge(grid, scores[name], design.larger_is_better) for name in arms}
        if growth < design.tuning.extensions:
            is_whole = all(isinstance(value, int) for value in grid)
            if -1 in edges:
                below = grid[0] ** 2 / grid[1]
                grid.insert(0, max(1, round(below)) if is_whole else below)
            if 1 in edges:
                above = grid[-1] ** 2 / grid[-2]
                grid.append(round(above) if is_whole else above)
        if edges <= {0}:
            break
    return {name: _tuned(design, grid, scores[name], starts[name], name in lost) for name in arms}


def _tuned(
    design: Design, grid: list[float], scores: dict[float, float], start: float, is_lost: bool
) -> Tuned:
    assert design.tuning is not None
    values = tuple(value for value in grid if value in scores)
    found = tuple(scores[value] for value in values)
    best = _best(values, scores, design.larger_is_better)
    losses = [-s if design.larger_is_better else s for s in found]
    initial = 0.0 if design.larger_is_better else start
    at_edge = _edge(list(values), scores, design.larger_is_better) != 0
    refused = f"its best {design.tuning.key} is at the edge of the grid" if at_edge else ""
    refused = "some trials of its tuning have no outcome" if is_lost else refused
    trials = len(values) * len(design.tuning.seeds)
    sensitivity = learning_rate_sensitivity(losses, initial)
    return Tuned(design.tuning.key, values, found, best, sensitivity, trials, refused)


def _best(values: tuple[float, ...], scores: dict[float, float], larger: bool) -> float:
    sign = 1.0 if larger else -1.0

    def merit(value: float) -> float:
        return sign * scores[value] if math.isfinite(scores[value]) else -math.inf

    return max(values, key=merit)


def _edge(grid: list[float], scores: dict[float, float], larger: bool) -> int:
    """-1 or 1 where the best value is the first or the last of the grid."""
    values = tuple(value for value in grid if value in scores)
    best = _best(values, scores, larger)
    return -1 if best == values[0] else 1 if best == values[-1] else 0


def _mean(means: list[dict | None], metric: str) -> float:
    found = [(row or {}).get(metric, math.nan) for row in means]
    return sum(found) / len(found) if found else math.nan


def _classes(trial: Arm) -> int:
    """How many answers a uniform guess has."""
    sizes = trial.prepared.task.sizes
    return sizes.get("num_classes") or sizes.get("vocab_size") or 2


def learning_rate_sensitivity(losses: Sequence[float], initial: float) -> float:
    """Returns the mean over a grid of min(loss, initial loss) - best loss.

    Wortsman et al. 2023, arXiv:2309.14322, section 2.2. A loss that is no number counts as the
    initial one.
    """
    capped = [min(loss, initial) if math.isfinite(loss) else initial for loss in losses]
    return sum(capped) / len(capped) - min(capped)

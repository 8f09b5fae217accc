"""Solved or not: how many runs reach a target, and after how many updates.

Scores that are right in some runs and a guess in others have no mean that describes a run. So an
arm and the base are compared by how many of their runs reach the target (Boschloo 1970), and by the
updates until then, where a run that never did is censored at its last one (the log-rank test of
Mantel 1966 and Peto and Peto 1972, by permutation). Each has half of what means have of a level.
"""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.power import ALPHA

_MOST_PARTITIONS = 20_000  # of all runs into two groups; beyond, so many are drawn


class Reached(NamedTuple):
    """The runs of an arm, or of the base, by seed.

    Attributes:
      solved: [n] bool, whether the final score reaches the target.
      updates: [n], until it was first reached in training; the last one where it never was, and
        infinitely many of a run that diverged.
    """

    solved: np.ndarray
    updates: np.ndarray

    @property
    def share(self) -> tuple[int, int]:
        """How many of how many."""
        return int(self.solved.sum()), len(self.solved)

    @property
    def median(self) -> float | None:
        """Updates by which half of the runs have solved it; None where half never do."""
        waited = np.sort(np.where(self.solved, self.updates, np.inf))
        middle = waited[(len(waited) - 1) // 2] if len(waited) else np.inf
        return float(middle) if np.isfinite(middle) else None


def reached_by(outcomes: Mapping[int, Outcome], target: float, larger_is_better: bool) -> Reached:
    """Returns which runs reach a target and when; one that diverged does not."""
    solved, updates = [], []
    for _, (value, diverged, first, last) in sorted(outcomes.items()):
        if value is None and not diverged:
            continue
        beyond = value is not None and (value >= target if larger_is_better else value <= target)
        solved.append(beyond and not diverged)
        reached = first if solved[-1] and first is not None else last
        updates.append(np.inf if diverged else reached)
    return Reached(np.array(solved, bool), np.array(updates, float))


@functools.lru_cache(maxsize=1024)
def boschloo_p(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Returns Boschloo's exact p that the first (count, trials) has no larger probability.

    More powerful than Fisher's test (Boschloo 1970, Statistica Neerlandica 24, 1-35).
    """
    if one[0] <= other[0]:
        return 1.0
    table = [[one[0], other[0]], [one[1] - one[0], other[1] - other[0]]]
    return float(stats.boschloo_exact(table, alternative="greater").pvalue)


def difference_of_counts_p(ours: tuple[int, int], theirs: tuple[int, int]) -> float:
    """Returns the two-sided p of Boschloo's exact test that both are as likely to solve it."""
    if ours[0] * theirs[1] == theirs[0] * ours[1]:
        return 1.0
    table = [[ours[0], theirs[0]], [ours[1] - ours[0], theirs[1] - theirs[0]]]
    return float(stats.boschloo_exact(table).pvalue)


def log_rank_scores(updates: Any, solved: Any) -> np.ndarray:
    """Returns each run's score, [n], whose sum over a group is its log-rank statistic.

    That is 1 if it is solved, less the hazard of all runs up to its time (Nelson and Aalen's
    estimate): positive is sooner than usual.
    """
    updates, solved = np.asarray(updates, float), np.asarray(solved, bool)
    times = np.unique(updates[solved])
    hazards = [(solved & (updates == t)).sum() / (updates >= t).sum() for t in times]
    until = np.array(
        [sum(h for t, h in zip(times, hazards, strict=True) if t <= u) for u in updates]
    )
    return solved - until


def permutation_p(ours: Any, theirs: Any) -> float:
    """Returns the two-sided p that which run belongs to which group says nothing of its score.

    Exact where there are few ways to part them; 1 where a group has less than two runs.
    """
    if min(len(ours), len(theirs)) < 2 or np.ptp([*ours, *theirs]) == 0:
        return 1.0
    result = stats.permutation_test(
        (np.asarray(ours, float), np.asarray(theirs, float)),
        lambda one, other, axis: one.mean(axis) - other.mean(axis),
        n_resamples=_MOST_PARTITIONS,
        rng=np.random.default_rng(0),
    )
    return min(1.0, float(result.pvalue))


def ranks_p(ours: Any, theirs: Any) -> float:
    """Returns the p of a permutation test of ranks; -inf is the worst of all, and tied."""
    ranks = stats.rankdata([*ours, *theirs])
    return permutation_p(ranks[: len(ours)], ranks[len(ours) :])


def sooner_p(ours: Reached, theirs: Reached) -> tuple[float, float]:
    """Returns the p of the log-rank test, and the mean score of ours: positive is sooner."""
    both = Reached(*(np.concatenate(parts) for parts in zip(ours, theirs, strict=True)))
    scores = log_rank_scores(both.updates, both.solved)
    split = len(ours.solved)
    mean = float(scores[:split].mean()) if split else 0.0
    return permutation_p(scores[:split], scores[split:]), mean


def clopper_pearson(count: int, trials: int) -> tuple[float, float]:
    """Returns the exact interval of a probability from `count` of `trials`."""
    bounds = stats.binomtest(count, trials).proportion_ci(1 - ALPHA, method="exact")
    return float(bounds.low), float(bounds.high)

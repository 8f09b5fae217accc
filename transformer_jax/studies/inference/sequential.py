"""Looks at more and more seeds: what is still worth waiting for, and what it is expected to cost.

Stopping an arm because it is unlikely to be decided can add no false word: it takes words away
(futility that binds nobody, Jennison and Turnbull 2000, section 10). So only looks spend a level.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

FUTILE = 0.1  # an arm that is decided at the last look with less probability is given up


def chance_of_a_word(
    mean: float, error: float, count: int, final: int, margin: float, level: float
) -> float:
    """Returns how likely the interval of more seeds is to allow a word, by those that are there.

    The predictive probability: the mean of all seeds is t distributed about the mean so far, with
    the error of the seeds to come and of those that are there.

    Args:
      mean: of the differences so far.
      error: its standard error, > 0.
      count: seeds so far, 2 or more.
      final: seeds at the last look, more than that.
      margin: the smallest difference that matters.
      level: of the interval at the last look.
    """
    deviation = error * math.sqrt(count)
    half = float(stats.t.ppf(1 - level / 2, final - 1)) * deviation / math.sqrt(final)
    spread = deviation * math.sqrt((final - count) / (final * count))
    at_most = lambda value: float(stats.t.cdf((value - mean) / spread, count - 1))  # noqa: E731
    beyond = at_most(-half) + 1 - at_most(half)
    within = max(at_most(margin - half) - at_most(half - margin), 0.0) if margin > half else 0.0
    return min(beyond + within, 1.0)


class Expected(NamedTuple):
    """What looks at an arm come to: mean number of seeds, and share of studies with a word."""

    seeds: float
    decided: float


def expected_seeds(
    effect: float, looks: Sequence[int], margin: float, level: float, repeats: int = 500
) -> Expected:
    """Returns what an arm is expected to take, by simulation with normal differences.

    Args:
      effect: mean difference, in deviations of a difference.
      looks: seeds at each look, ascending.
      margin: the smallest difference that matters, in the same; 0: not known.
      level: of an interval at any look.
      repeats: simulated arms.
    """
    random = np.random.default_rng(0)
    taken, decided = [], 0
    for differences in random.normal(effect, 1, (repeats, looks[-1])):
        for count in looks:
            seen = differences[:count]
            mean, error = float(seen.mean()), float(seen.std(ddof=1)) / math.sqrt(count)
            half = float(stats.t.ppf(1 - level / 2, count - 1)) * error
            has_word = abs(mean) > half or abs(mean) + half < margin
            is_last = count == looks[-1]
            if has_word or is_last:
                break
            if chance_of_a_word(mean, error, count, looks[-1], margin, level) < FUTILE:
                break
        taken.append(count)
        decided += has_word
    return Expected(float(np.mean(taken)), decided / repeats)

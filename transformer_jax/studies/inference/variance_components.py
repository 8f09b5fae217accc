"""Where the differences between runs of one config come from, and how many seeds a margin needs.

A small crossed design: some seeds of the initial values, by some of the data order, by some of
dropout, each cell twice, as it is and with the initial values changed by 1e-7, a rounding error.
Variance components come from its mean squares (Searle, Casella and McCulloch 1992, section 4.4).
"""

import itertools
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.studies.inference.power import seeds_needed
from transformer_jax.studies.inference.statistics import FOR_MEANS, level_of_look

FACTORS = ("initial", "order", "dropout")
PERTURBATION = 1e-7
MARGINS = (0.005, 0.01, 0.02, 0.05)


class Components(NamedTuple):
    """Variance of a run's score by where it comes from, and degrees of freedom of their sum."""

    variances: dict[str, float]
    freedom: float


def components(scores: np.ndarray) -> Components:
    """Returns the variance of a run's score by where it comes from.

    All factors are random and crossed, what is left of the cells is their interactions, pooled, and
    the two runs of a cell tell rounding apart. With three factors an interaction of two of them is
    partly given to both. An estimate below 0 is given as 0. The degrees of freedom of the sum are
    Satterthwaite's (1946): few levels of a factor that matters leave few.

    Args:
      scores: [initial, order, dropout, 2].
    """
    repeats, cells = scores.shape[-1], scores.mean(-1)
    levels = dict(zip(FACTORS, cells.shape, strict=True))
    varied = [name for name in FACTORS if levels[name] > 1]
    # name -> mean square, its degrees of freedom, runs behind each level
    square = {"rounding": (float(scores.var(-1, ddof=1).mean()), cells.size * (repeats - 1), 1.0)}
    left, freedom = cells - cells.mean(), cells.size - 1
    for name in varied:
        others = tuple(axis for axis, factor in enumerate(FACTORS) if factor != name)
        effect = cells.mean(others, keepdims=True) - cells.mean()
        runs = repeats * cells.size / levels[name]
        square[name] = (float(runs * effect.var(ddof=1)), levels[name] - 1, runs)
        left, freedom = left - effect, freedom - (levels[name] - 1)
    below = "rounding"
    if freedom > 0 and len(varied) > 1:
        below = "interactions"
        square[below] = (float(repeats * (left**2).sum() / freedom), freedom, float(repeats))
    # Each variance is (its square - the one below) / runs, so that the sum of those above 0 is
    # linear in the squares.
    variances, weight = {}, dict.fromkeys(square, 0.0)
    for name in (*varied, *(["interactions"] if below == "interactions" else []), "rounding"):
        mean_square, _, runs = square[name]
        under = {"rounding": None, "interactions": "rounding"}.get(name, below)
        variances[name] = max(0.0, (mean_square - (square[under][0] if under else 0.0)) / runs)
        if variances[name]:
            weight[name] += 1 / runs
            if under:
                weight[under] -= 1 / runs
    total = sum(variances.values())
    spread = sum((weight[n] * square[n][0]) ** 2 / square[n][1] for n in square)
    return Components(variances, total**2 / spread if spread else 1.0)


def ledger(
    scores: np.ndarray, sequences: np.ndarray, metric: str, what: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what is kept of a design, as plain JSON.

    Args:
      scores: [initial, order, dropout, 2].
      sequences: [runs, q], what each test sequence adds to the run's score, whose means are these.
      metric: of the scores.
      what: identifies the config: its path and its hash, device, versions.
    """
    parts, freedom = components(scores)
    total = sum(parts.values())
    of_sequence = sequences.mean(0)
    text = float(of_sequence.var(ddof=1) / of_sequence.size)
    deviation = math.sqrt(2 * total)  # of a difference of two runs that share nothing
    level = FOR_MEANS * level_of_look(1, (1,), ())  # of the interval of one arm at one look
    return {
        **what,
        "metric": metric,
        "design": dict(zip((*FACTORS, "perturbation"), scores.shape, strict=True)),
        "mean": float(scores.mean()),
        "deviation": math.sqrt(total),
        "degrees_of_freedom": freedom,
        "shares": {name: variance / total if total else 0.0 for name, variance in parts.items()},
        "deviation_of_text": math.sqrt(text),
        "sequences": int(of_sequence.size),
        "seeds_by_margin": {
            f"{margin:g}": seeds_needed(deviation, max(2, round(freedom) + 1), margin, level)
            for margin in MARGINS
        },
        "scores": scores.tolist(),
    }


def cells_of(levels: tuple[int, int, int]) -> list[tuple[int, int, int, float]]:
    """Returns seeds and perturbation of each run, in the order of `scores`."""
    initial, order, dropout = (range(500, 500 + count) for count in levels)
    return list(itertools.product(initial, order, dropout, (0.0, PERTURBATION)))

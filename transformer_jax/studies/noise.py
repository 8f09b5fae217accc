"""Where the differences between runs of one config come from, and how many seeds a margin needs.

A small crossed design: some seeds of the initial values, by some of the data order, by some of
dropout, each cell twice, as it is and with the initial values changed by 1e-7, a rounding error.
Variance components come from its mean squares (Searle, Casella and McCulloch 1992, section 4.4).
"""

import hashlib
import itertools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.studies.power import seeds_needed
from transformer_jax.training.config import flatten

FACTORS = ("initial", "order", "dropout")
PERTURBATION = 1e-7
MARGINS = (0.005, 0.01, 0.02, 0.05)
_CADENCE = ("logging.", "checkpoint.", "sample.", "evaluation.every")


def components(scores: np.ndarray) -> dict[str, float]:
    """Returns the variance of a run's score by where it comes from.

    All factors are random and crossed, what is left of the cells is their interaction, and the two
    runs of a cell tell rounding apart. An estimate below 0 is given as 0.

    Args:
      scores: [initial, order, dropout, 2].
    Returns:
      Variance by name: the factors with more than one level, interactions, rounding.
    """
    repeats = scores.shape[-1]
    cells = scores.mean(-1)
    rounding = float(scores.var(-1, ddof=1).mean())
    levels = dict(zip(FACTORS, cells.shape, strict=True))
    varied = [name for name in FACTORS if levels[name] > 1]
    left, freedom = cells - cells.mean(), cells.size - 1
    squares = {}
    for name in varied:
        others = tuple(axis for axis, factor in enumerate(FACTORS) if factor != name)
        effect = cells.mean(others, keepdims=True) - cells.mean()
        squares[name] = repeats * (cells.size / levels[name]) * effect.var() * levels[name]
        squares[name] /= levels[name] - 1
        left, freedom = left - effect, freedom - (levels[name] - 1)
    found = {}
    between = rounding
    if freedom > 0 and len(varied) > 1:
        between = float(repeats * (left**2).sum() / freedom)
        found["interactions"] = max(0.0, (between - rounding) / repeats)
    for name in varied:
        count = repeats * cells.size / levels[name]
        found[name] = max(0.0, float(squares[name] - between) / count)
    return {name: found[name] for name in (*varied, "interactions") if name in found} | {
        "rounding": rounding
    }


def ledger(
    scores: np.ndarray, sequences: np.ndarray, metric: str, what: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns what is kept of a design, as plain JSON.

    Args:
      scores: [initial, order, dropout, 2].
      sequences: [runs, q], scores of each test sequence, whose means are the scores.
      metric: of the scores.
      what: identifies the config: its path and its hash, device, versions.
    """
    parts = components(scores)
    total = sum(parts.values())
    of_sequence = sequences.mean(0)
    text = float(of_sequence.var(ddof=1) / of_sequence.size)
    deviation = math.sqrt(2 * total)  # of a difference of two runs that share nothing
    runs = int(np.prod(scores.shape))
    return {
        **what,
        "metric": metric,
        "design": dict(zip((*FACTORS, "perturbation"), scores.shape, strict=True)),
        "mean": float(scores.mean()),
        "deviation": math.sqrt(total),
        "shares": {name: variance / total if total else 0.0 for name, variance in parts.items()},
        "deviation_of_text": math.sqrt(text),
        "sequences": int(of_sequence.size),
        "seeds_by_margin": {
            f"{margin:g}": seeds_needed(deviation, runs // 2, margin, 1) for margin in MARGINS
        },
        "scores": scores.tolist(),
    }


def cells_of(levels: tuple[int, int, int]) -> list[tuple[int, int, int, float]]:
    """Returns seeds and perturbation of each run, in the order of `scores`."""
    initial, order, dropout = (range(500, 500 + count) for count in levels)
    return list(itertools.product(initial, order, dropout, (0.0, PERTURBATION)))


def hash_of(config: Any) -> str:
    """Returns the hash of all that decides a run of a config, but for its seeds and its cadence."""
    kept = {
        key: value
        for key, value in flatten(config).items()
        if not key.startswith(("seed", *_CADENCE))
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def known_noise(config: Any, folder: Path) -> dict[str, Any] | None:
    """Returns the ledger of a config, if a folder has one; those of other configs are passed by."""
    wanted = hash_of(config)
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.get("config_hash") == wanted:
            return found
    return None


def as_lines(found: Mapping[str, Any]) -> list[str]:
    """A ledger as text."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found["shares"].items())
    seeds = ", ".join(
        f"{margin}: {'more than 10,000' if count is None else count}"
        for margin, count in found["seeds_by_margin"].items()
    )
    return [
        f"{found['metric']} {found['mean']:.4f}, deviation {found['deviation']:.4f} between runs: "
        f"{shares}",
        f"deviation {found['deviation_of_text']:.4f} of the mean over {found['sequences']} test "
        "sequences, if they were drawn anew",
        f"seeds that a margin needs, if pairing helped nothing: {seeds}",
    ]

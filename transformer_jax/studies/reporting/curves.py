"""Learning curves of arms: mean and range over seeds, against updates, tokens, FLOPs and time."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.runs.directory import RunDirectory

_MOST_POINTS = 200
_MOST_METRICS = 40  # beside those that every run has
_METRICS = ("eval/loss", "train/loss", "eval/accuracy", "eval/bits_per_byte", "train/gradient_norm")


def curves_of(
    runs: Mapping[str, Sequence[Path]],
    costs: Mapping[str, Mapping[str, float]],
    counted: str,
    first: str = "eval/loss",
) -> dict[str, Any]:
    """Returns metrics -> arm -> step, mean, low, high; and what an update is on each axis.

    Metrics of which there is more than a point stand before the others.

    Args:
      runs: arm -> directories of its seeds.
      costs: arm -> parameters, flops, updates, counted; {} where they are not known.
      counted: what data is counted in, "tokens" say.
      first: the metric to be looked at first.
    """
    rows = {arm: [RunDirectory(path).metrics() for path in paths] for arm, paths in runs.items()}
    metrics = {}
    for metric in [*_METRICS, *_others(rows)]:
        bands = {arm: _band(seeds, metric) for arm, seeds in rows.items()}
        drawn = {arm: band for arm, band in bands.items() if band["step"]}
        if drawn:
            metrics[metric] = drawn

    def shown_later(metric: str) -> tuple[bool, bool]:
        has_curve = any(len(band["step"]) > 1 for band in metrics[metric].values())
        return not has_curve, metric != first

    metrics = {metric: metrics[metric] for metric in sorted(metrics, key=shown_later)}
    axes: dict[str, dict[str, float]] = {"updates": dict.fromkeys(runs, 1.0)}
    if all(costs.get(arm) for arm in runs):
        per_update = {arm: cost["counted"] / cost["updates"] for arm, cost in costs.items()}
        axes[counted] = {arm: per_update[arm] for arm in runs}
        axes["FLOPs"] = {arm: per_update[arm] * costs[arm]["flops"] for arm in runs}
    if all(RunDirectory(path).is_alone() for paths in runs.values() for path in paths):
        seconds = {arm: _seconds_per_update(seeds) for arm, seeds in rows.items()}
        axes["seconds of training"] = seconds
    return {"metrics": metrics, "axes": axes}


def _others(rows: Mapping[str, Sequence[list[dict]]]) -> list[str]:
    """Metrics that were asked for, and what hooks gave: all but times, rates and test scores."""
    names = {name: None for seeds in rows.values() for run in seeds for row in run for name in row}
    excluded = (*_METRICS, "step", "train/learning_rate")
    return [
        name for name in names if name not in excluded and not name.startswith(("time/", "test/"))
    ][:_MOST_METRICS]


def _band(seeds: Sequence[list[dict]], metric: str) -> dict[str, list]:
    by_step: dict[int, list[float]] = {}
    for rows in seeds:
        for row in rows:
            if isinstance(row.get(metric), int | float):
                by_step.setdefault(row["step"], []).append(row[metric])
    steps = sorted(by_step)
    kept = [steps[i] for i in _spread(len(steps))]
    return {
        "step": kept,
        "mean": [_number(np.mean(by_step[step])) for step in kept],
        "low": [_number(np.min(by_step[step])) for step in kept],
        "high": [_number(np.max(by_step[step])) for step in kept],
    }


def _spread(count: int) -> list[int]:
    """Places of at most so many points, the first and the last among them."""
    if count <= _MOST_POINTS:
        return list(range(count))
    return sorted(set(np.linspace(0, count - 1, _MOST_POINTS).round().astype(int).tolist()))


def _number(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _seconds_per_update(seeds: Sequence[list[dict]]) -> float:
    """Median over rows and seeds."""
    times = [row["time/step_ms"] for rows in seeds for row in rows if "time/step_ms" in row]
    return float(np.median(times)) / 1e3 if times else 0.0

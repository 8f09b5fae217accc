"""Learning curves of arms: mean and range over seeds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from transformer_jax.runs.directory import RunDirectory


def curves_of(runs: Mapping[str, Sequence[Path]], metric: str) -> dict[str, dict[str, list]]:
    """Returns arm -> `step`, `mean`, `low`, `high` over seeds; only arms that have the metric.

    Args:
      runs: Arm -> directories of its seeds.
      metric: Of metrics.jsonl.
    """
    curves = {}
    for arm, paths in runs.items():
        by_step: dict[int, list[float]] = {}
        for path in paths:
            for row in RunDirectory(path).metrics():
                if isinstance(row.get(metric), int | float):
                    by_step.setdefault(row["step"], []).append(row[metric])
        steps = sorted(by_step)
        if steps:
            bands = {"mean": np.mean, "low": np.min, "high": np.max}
            curves[arm] = {
                "step": steps,
                **{name: [float(f(by_step[s])) for s in steps] for name, f in bands.items()},
            }
    return curves

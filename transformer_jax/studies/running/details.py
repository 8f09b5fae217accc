"""Metrics of finished cells that were asked for later, kept in each cell as details.json."""

import json
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import InvalidInput
from transformer_jax.metrics import measured_by
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import replace
from transformer_jax.studies.asking.cells import Cell, read_details
from transformer_jax.training.evaluation import evaluate, score_of
from transformer_jax.training.measuring import Measured, facts_of_metrics, measured
from transformer_jax.training.optimizers import evaluated_params
from transformer_jax.training.prepared import Prepared
from transformer_jax.training.run import Run


def measure_later(cell: Cell, prepared: Prepared, run: Run | None = None) -> None:
    """Measures the metrics that a finished cell lacks, from its checkpoint.

    Args:
      cell: Done.
      prepared: Data, model and optimizer of its arm.
      run: What was trained; read from the cell if it is not at hand.
    """
    names = _unmeasured(cell, prepared.config.evaluation)
    if not names:
        return
    figures = _measured(cell, prepared, run or _load(cell, prepared), names)
    details = read_details(cell)  # another launch may have written meanwhile
    before = details.get("metrics", {})
    details["metrics"] = {part: {**before.get(part, {}), **figures[part]} for part in figures}
    replace(cell.path, "details.json", json.dumps(details) + "\n")


def _unmeasured(cell: Cell, evaluation: ConfigDict) -> list[str]:
    """The metrics that a finished cell lacks, or has by another file or target."""
    stored, now = cell.metric_facts(), _facts(evaluation.metrics, evaluation.target)
    return [name for name in now if stored.get(name, {}).get("code") != now[name]["code"]]


def _facts(names: Sequence[str], target: float | None) -> dict[str, Any]:
    """Facts of metrics, with the target in what measured those that take one."""
    found = facts_of_metrics(names)
    return {n: {**f, "code": measured_by(n, f["code"], target)} for n, f in found.items()}


def _measured(
    cell: Cell, prepared: Prepared, run: Run, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Metrics of a finished cell: their values by split, and what is known of them."""
    directory, figures = RunDirectory(cell.path), {}
    curve = prepared.curve(directory.metrics(), directory.is_alone())
    for split in ("validation", "test"):
        size = prepared.config.evaluation.batch_size
        scored = evaluate(score_of(run), run.params, prepared.task, split, size)
        # Scores of what the model wrote are in the cell; nothing is written again.
        generated = {key: v for key, v in cell.means(split).items() if isinstance(v, float)}
        scored = scored._replace(means={**generated, **scored.means})
        at = Measured(run, prepared.task, split, scored, curve)
        figures[split] = measured(names, at, prepared.allow, again=True)
    return {**figures, "facts": _facts(names, run.config.evaluation.target)}


def _load(cell: Cell, prepared: Prepared) -> Run:
    """The run as load_run gives it, with what is at hand already."""
    checkpoints = Checkpoints(RunDirectory(cell.path).file("checkpoints"))
    restored = checkpoints.restore(prepared.template, read_only=True)
    if restored is None:
        raise InvalidInput(
            f"{cell.path}: its checkpoints are gone (runs gc --checkpoints); remove the folder: "
            "ablate trains it again"
        )
    params = evaluated_params(restored.state.opt_state, restored.state.params)
    return prepared.run(params, restored.step)

"""Runs a ladder rung by rung; what the smaller rungs forecast is written before the largest."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.files import as_plain, inside, write_json
from transformer_jax.studies.asking.cells import MISSING
from transformer_jax.studies.asking.ladder import SPLITS, Ladder, begin_ladder, rung_name, rung_path
from transformer_jax.studies.asking.study import Study, now
from transformer_jax.studies.judging.ladder import forecast
from transformer_jax.studies.reporting.ladder import FORECAST, write_ladder
from transformer_jax.studies.running.launch import Launch
from transformer_jax.studies.running.together import run_all


def run_ladder(
    ladder: Ladder, workdir: str | Path, seeds: Sequence[int], **options: Any
) -> dict[str, Any]:
    """Runs and judges every rung, and compares them.

    Args:
      ladder: its designs.
      workdir: of the ladder.
      seeds: of every rung.
      options: of run_all.
    Returns:
      What ladder.json holds; {} of a dry run.
    Raises:
      InvalidInput, CellsLost: see run_all.
    """
    workdir = Path(workdir)
    largest = rung_name(ladder.key, max(ladder.rungs))
    rungs = {
        rung_name(ladder.key, value): (design, rung_path(workdir, ladder.key, value))
        for value, design in ladder.rungs.items()
    }

    def before(name: str, launch: Launch) -> None:
        if name == largest and ladder.key != SPLITS:
            _seal_forecast(workdir, ladder, launch)

    return run_all(
        rungs,
        workdir,
        seeds,
        each="rung",
        begin=lambda write: begin_ladder(workdir, ladder, write),
        judge=lambda: write_ladder(workdir, ladder),
        before=before,
        **options,
    )


def _seal_forecast(workdir: Path, ladder: Ladder, launch: Launch) -> None:
    """Writes what is forecast of the largest rung, once: later seeds change nothing in it."""
    if inside(workdir, FORECAST).exists():
        return
    smaller = list(ladder.rungs)[:-1]
    studies = [Study(rung_path(workdir, ladder.key, value)) for value in smaller]
    costs = {name: as_plain(arm.cost) for name, arm in launch.arms.items()}
    begun = sum(cell.state() != MISSING for cell in launch.states)
    forecasts = forecast(studies, costs, ladder.key, list(ladder.rungs))
    about = {"sealed_at": now(), "cells_that_were_there": begun}
    write_json(workdir, FORECAST, as_plain({**about, **forecasts}))

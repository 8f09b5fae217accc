"""Runs a ladder rung by rung; what the smaller rungs forecast is written before the largest."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.files import as_plain, inside, write_json
from transformer_jax.runs.progress import Progress
from transformer_jax.studies.asking.cells import MISSING
from transformer_jax.studies.asking.ladder import SPLITS, Ladder, begin_ladder, rung_name, rung_path
from transformer_jax.studies.asking.study import Study, now
from transformer_jax.studies.judging.ladder import forecast
from transformer_jax.studies.reporting.ladder import FORECAST, write_ladder
from transformer_jax.studies.running.launch import Launch
from transformer_jax.studies.running.together import planned_together, refuse_lost, run_one


def run_ladder(
    ladder: Ladder,
    workdir: str | Path,
    seeds: Sequence[int],
    *,
    dry_run: bool = False,
    retry: bool = False,
    adopt: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Runs and judges every rung, and compares them.

    Args:
      ladder: its designs.
      workdir: of the ladder; its parent's `cells` are shared if no other root is given.
      seeds: of every rung.
      dry_run: whether to stop after the plans.
      retry: whether cells that failed are tried again.
      adopt: whether cells that have another key are taken over; see launch.run.
      progress: where to tell how it goes; standard output if not given.
      options: of launch.planned.
    Returns:
      What ladder.json holds; {} of a dry run.
    Raises:
      InvalidInput: some data is not there, or an arm does not fit it; nothing ran.
      CellsLost: some cells failed; all others ran, and what can be said was written.
    """
    workdir = Path(workdir)
    progress = progress or Progress()
    rungs = {
        rung_name(ladder.key, value): (design, rung_path(workdir, ladder.key, value))
        for value, design in ladder.rungs.items()
    }
    begin_ladder(workdir, ladder, write=False)
    with planned_together(rungs, workdir, seeds, progress, dry_run=dry_run, **options) as launches:
        if dry_run:
            return {}
        begin_ladder(workdir, ladder)
        lost: list[str] = []
        for (name, launch), value in zip(launches.items(), ladder.rungs, strict=True):
            progress.say(f"rung   {name}")
            if value == max(ladder.rungs) and ladder.key != SPLITS:
                _seal_forecast(workdir, ladder, launch)
            lost += run_one(name, launch, retry, adopt)
    found = write_ladder(workdir, ladder)
    refuse_lost(lost)
    return found


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

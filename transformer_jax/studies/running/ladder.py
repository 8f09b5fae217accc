"""Runs a ladder rung by rung; what the smaller rungs forecast is written before the largest."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.files import inside, write_json
from transformer_jax.runs.progress import Progress
from transformer_jax.studies.asking.cells import MISSING
from transformer_jax.studies.asking.ladder import SPLITS, Ladder, begin_ladder, rung_path
from transformer_jax.studies.asking.study import Study, as_plain, now
from transformer_jax.studies.judging.ladder import forecast
from transformer_jax.studies.reporting.ladder import FORECAST, write_ladder
from transformer_jax.studies.running.launch import Launch, run
from transformer_jax.studies.running.planning import try_arms


def run_ladder(
    ladder: Ladder, workdir: str | Path, seeds: Sequence[int], dry_run: bool = False, **options: Any
) -> dict[str, Any]:
    """Runs and judges every rung, and compares them.

    Args:
      ladder: its designs.
      workdir: of the ladder; its parent's `cells` are shared if no other root is given.
      seeds: of every rung.
      dry_run: whether to stop after the plans.
      options: of launch.run.
    Returns:
      What ladder.json holds; {} of a dry run.
    """
    workdir = Path(workdir)
    options["root"] = options.get("root") or workdir.parent
    largest = max(ladder.rungs)
    progress = options.get("progress") or Progress()
    rungs = {f"{ladder.key}={value:g}": design for value, design in ladder.rungs.items()}
    try_arms(rungs, progress)
    if not dry_run:
        begin_ladder(workdir, ladder)

    def seal(launch: Launch) -> None:
        _seal_forecast(workdir, ladder, launch)

    for value, design in ladder.rungs.items():
        progress.say(f"rung   {ladder.key}={value:g}")
        path = rung_path(workdir, ladder.key, value)
        when_planned = seal if value == largest and ladder.key != SPLITS else None
        run(design, path, seeds, dry_run=dry_run, when_planned=when_planned, **options)
    return {} if dry_run else write_ladder(workdir, ladder)


def _seal_forecast(workdir: Path, ladder: Ladder, launch: Launch) -> None:
    """Writes what is forecast of the largest rung, once: later seeds change nothing in it."""
    if inside(workdir, FORECAST).exists():
        return
    smaller = list(ladder.rungs)[:-1]
    studies = [Study(rung_path(workdir, ladder.key, value)) for value in smaller]
    costs = {name: as_plain(arm.cost) for name, arm in launch.arms.items()}
    begun = sum(state != MISSING for state in launch.states.values())
    forecasts = forecast(studies, costs, ladder.key, list(ladder.rungs))
    about = {"sealed_at": now(), "cells_that_were_there": begun}
    write_json(workdir, FORECAST, as_plain({**about, **forecasts}))

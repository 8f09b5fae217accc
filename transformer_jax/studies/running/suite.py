"""Runs the same question on several data sets, one after the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.progress import Progress
from transformer_jax.studies.asking.design import Design
from transformer_jax.studies.asking.suite import begin_suite, study_path
from transformer_jax.studies.reporting.suite import write_suite
from transformer_jax.studies.running.together import planned_together, refuse_lost, run_one


def run_suite(
    designs: Mapping[str, Design],
    workdir: str | Path,
    seeds: Sequence[int],
    *,
    dry_run: bool = False,
    retry: bool = False,
    adopt: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Runs and judges the study of each data set, and what they say together.

    Args:
      designs: by the name of the data set.
      workdir: of the suite; its parent's `cells` are shared if no other root is given.
      seeds: of every study.
      dry_run: whether to stop after the plans.
      retry: whether cells that failed are tried again.
      adopt: whether cells that have another key are taken over; see launch.run.
      progress: where to tell how it goes; standard output if not given.
      options: of launch.planned.
    Returns:
      What suite.json holds; {} of a dry run.
    Raises:
      InvalidInput: some data is not there, or an arm does not fit it; nothing ran.
      CellsLost: some cells failed; all others ran, and what can be said was written.
    """
    workdir, progress = Path(workdir), progress or Progress()
    studies = {name: (design, study_path(workdir, name)) for name, design in designs.items()}
    begin_suite(workdir, designs, write=False)
    with planned_together(
        studies, workdir, seeds, progress, dry_run=dry_run, **options
    ) as launches:
        if dry_run:
            return {}
        begin_suite(workdir, designs)
        lost: list[str] = []
        for name, launch in launches.items():
            progress.say(f"data   {name}")
            lost += run_one(name, launch, retry, adopt)
    found = write_suite(workdir, list(designs))
    refuse_lost(lost)
    return found

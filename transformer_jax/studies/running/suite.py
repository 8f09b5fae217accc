"""Runs the same question on several data sets, one after the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.progress import Progress
from transformer_jax.studies.asking.design import Design
from transformer_jax.studies.asking.suite import begin_suite, study_path
from transformer_jax.studies.reporting.suite import write_suite
from transformer_jax.studies.running.launch import run
from transformer_jax.studies.running.planning import try_arms


def run_suite(
    designs: Mapping[str, Design],
    workdir: str | Path,
    seeds: Sequence[int],
    dry_run: bool = False,
    **options: Any,
) -> dict[str, Any]:
    """Runs and judges the study of each data set, and what they say together.

    Args:
      designs: by the name of the data set.
      workdir: of the suite; its parent's `cells` are shared if no other root is given.
      seeds: of every study.
      dry_run: whether to stop after the plans.
      options: of launch.run.
    Returns:
      What suite.json holds; {} of a dry run.
    Raises:
      InvalidInput: some data is not there, or an arm does not fit it; nothing ran.
    """
    options["root"] = options.get("root") or Path(workdir).parent
    progress = options.get("progress") or Progress()
    try_arms(designs, progress)
    if not dry_run:
        begin_suite(workdir, designs)
    for name, design in designs.items():
        progress.say(f"data   {name}: {design.path}, compared with {design.base}")
        run(design, study_path(workdir, name), seeds, dry_run=dry_run, **options)
    return {} if dry_run else write_suite(workdir, list(designs))

"""Runs the same question on several data sets, one after the other."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.files import inside
from transformer_jax.studies.asking.design import Design
from transformer_jax.studies.asking.suite import begin_suite
from transformer_jax.studies.reporting.suite import write_suite
from transformer_jax.studies.running.together import run_all


def run_suite(
    designs: Mapping[str, Design], workdir: str | Path, seeds: Sequence[int], **options: Any
) -> dict[str, Any]:
    """Runs and judges the study of each data set, and what they say together.

    Args:
      designs: by the name of the data set.
      workdir: of the suite.
      seeds: of every study.
      options: of run_all.
    Returns:
      What suite.json holds; {} of a dry run.
    Raises:
      InvalidInput, CellsLost: see run_all.
    """
    workdir = Path(workdir)
    return run_all(
        {name: (design, inside(workdir, name)) for name, design in designs.items()},
        workdir,
        seeds,
        each="data",
        begin=lambda write: begin_suite(workdir, designs, write),
        judge=lambda: write_suite(workdir, list(designs)),
        **options,
    )

"""Studies: arms by seeds, compiled together, compared in pairs.

    from transformer_jax.studies import load_design, load_study, run
    study = run(load_design("configs/ablations/positions.py"), "runs/positions", range(20, 25))
    load_study("runs/positions").frame()

Rooms, each building on those before it; only the last needs jax:
  inference   tests, intervals, power and variance of arrays of scores
  asking      a question as a value: design, arms, cells, the study's directory
  judging     from finished cells to a verdict
  reporting   tables, figures, pages, comparisons, archives
  running     planning and training cells: costs, batches of runs, jobs of a cluster
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformer_jax.studies.asking.design import Design, load_design
    from transformer_jax.studies.asking.study import Study, load_study

__all__ = ["Design", "Study", "load_design", "load_study", "run"]
_HOMES = {"Design": "design", "load_design": "design", "Study": "study", "load_study": "study"}


def __getattr__(name: str) -> Any:
    # Not at once, so that inference, the public judge, needs nothing but scipy.
    if name not in _HOMES:
        raise AttributeError(f"transformer_jax.studies has no name {name!r}; it has {__all__}")
    return getattr(importlib.import_module(f"{__name__}.asking.{_HOMES[name]}"), name)


def run(design: "Design", workdir: str | Path, seeds: Sequence[int], **options: Any) -> "Study":
    """Runs what is missing of a study and judges it, see `running.launch.run`; needs jax."""
    from transformer_jax.studies.running import launch

    return launch.run(design, workdir, seeds, **options)

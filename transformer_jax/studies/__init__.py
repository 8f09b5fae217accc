"""Studies: arms by seeds, compiled together, compared in pairs.

    from transformer_jax.studies import load_design, load_study, run
    study = run(load_design("configs/ablations/positions.py"), "runs/positions", range(5))
    load_study("runs/positions").frame()

Reading order: design (what is asked), cells (the runs), execution and workers (how they are
trained), fairness (what arms cost, and whether their change took), statistics and judging (the
verdict), report.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformer_jax.studies.design import Design, load_design
from transformer_jax.studies.study import Study, load_study

__all__ = ["Design", "Study", "load_design", "load_study", "run"]


def run(design: Design, workdir: str | Path, seeds: Sequence[int], **options: Any) -> Study:
    """Runs what is missing of a study and judges it, see `running.run`; imports jax only now."""
    from transformer_jax.studies import running

    return running.run(design, workdir, seeds, **options)

"""Cells as jobs: several in a job, on a Slurm cluster or as processes of this machine.

Through submitit (the extra `slurm`). Cells are run directories with locks, so the next launch makes
good what a job lost, and two jobs never train one cell.
"""

import dataclasses
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import InvalidInput, Stop

KINDS = ("slurm", "local")
_POLL = 2.0  # seconds between looks at the cells


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Where jobs go.

    Attributes:
      kind: slurm, or local: processes of this machine.
      cells_per_job: at most so many cells in one job, all of one structure where that is possible.
      parameters: of submitit's executor: timeout_min, slurm_partition, gpus_per_node, ...
    """

    kind: str
    cells_per_job: int = 4
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def executor(self, folder: Path) -> Any:
        """Makes submitit's executor.

        Raises:
          InvalidInput: submitit or Slurm is not there, or a parameter is unknown.
        """
        try:
            import submitit
        except ImportError as error:
            message = f"--executor={self.kind} needs submitit: pip install 'transformer_jax[slurm]'"
            raise InvalidInput(message) from error
        try:
            made = submitit.AutoExecutor(folder=str(folder), cluster=self.kind)
            made.update_parameters(name="cells", timeout_min=24 * 60)
            made.update_parameters(**self.parameters)
        except (RuntimeError, NameError, ValueError, TypeError) as error:
            told = str(error).splitlines()[0]
            raise InvalidInput(f"--executor={self.kind}: {told}") from error
        return made


def parse_cluster(kind: str, cells_per_job: int, parameters: Sequence[str]) -> Cluster:
    """Reads `--executor`, `--cells_per_job` and each `--job KEY=VALUE`.

    Raises:
      InvalidInput: a parameter is no KEY=VALUE, or there are no cells in a job.
    """
    if cells_per_job < 1:
        raise InvalidInput(f"--cells_per_job={cells_per_job}: expected an integer >= 1")
    given: dict[str, Any] = {}
    for text in parameters:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise InvalidInput(f"--job={text}: expected KEY=VALUE, slurm_partition=gpu say")
        given[key] = int(value) if value.isdigit() else value
    return Cluster(kind, cells_per_job, given)


def run_jobs(
    cluster: Cluster,
    folder: Path,
    what: tuple,
    batches: Sequence[Sequence[tuple[str, dict, str, int]]],
    is_stopped: Callable[[], bool],
    look: Callable[[], None],
) -> None:
    """Submits jobs, and waits until each has ended.

    Args:
      cluster: where to.
      folder: for the jobs' logs.
      what: design, root and estimate, as `run_some` takes them.
      batches: of (arm, changes of it, its cells' folder, seed).
      is_stopped: tells that the user wants to end; jobs are then cancelled.
      look: is called now and then, to show what became of the cells.
    Raises:
      Stop: a job could not be submitted.
    """
    folder.mkdir(parents=True, exist_ok=True)
    executor = cluster.executor(folder)
    try:
        jobs = [executor.submit(run_batch, os.getcwd(), *what, list(batch)) for batch in batches]
    except Exception as error:
        raise Stop(f"--executor={cluster.kind}: {str(error).splitlines()[0]}") from error
    while not all(job.done() for job in jobs):
        if is_stopped():
            for job in jobs:
                job.cancel()
            break
        look()
        time.sleep(_POLL)
    look()


def run_batch(cwd: str, *arguments: Any) -> list[str]:
    """What a job does: trains its cells, from where the study was started."""
    os.chdir(cwd)
    from transformer_jax.studies.workers import run_some

    return run_some(*arguments)

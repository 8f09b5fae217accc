"""Jobs with cells, on a Slurm cluster or in processes of this machine, through submitit."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import InvalidInput, require

KINDS = ("slurm", "local")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Target of the jobs.

    Attributes:
      kind: Slurm, or local: processes of this machine.
      cells_per_job: At most so many cells in one job, all of one structure where that is possible.
      parameters: Of submitit's executor: timeout_min, slurm_partition, gpus_per_node, ...
    """

    kind: str
    cells_per_job: int = 4
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def executor(self, folder: Path) -> Any:
        """Makes submitit's executor.

        Raises:
          InvalidInput: Submitit or Slurm is not there, or a parameter is unknown.
        """
        require("submitit", f"--executor={self.kind}", "slurm")
        import submitit

        try:
            made = submitit.AutoExecutor(folder=str(folder), cluster=self.kind)
            made.update_parameters(name="cells", timeout_min=24 * 60)
            made.update_parameters(**self.parameters)
        except (RuntimeError, NameError, ValueError, TypeError) as error:
            first_line = str(error).splitlines()[0]
            raise InvalidInput(f"--executor={self.kind}: {first_line}") from error
        return made


def parse_cluster(
    kind: str | None, cells_per_job: int | None, parameters: Sequence[str]
) -> Cluster | None:
    """Reads `--executor`, `--cells_per_job` and each `--job KEY=VALUE`; None: no cluster is used.

    Raises:
      InvalidInput: A parameter is no KEY=VALUE, there are no cells in a job, or something is said
        of jobs where there are none.
    """
    if kind is None:
        stated = [] if cells_per_job is None else [f"--cells_per_job={cells_per_job}"]
        for option in (*stated, *(f"--job={text}" for text in parameters)):
            raise InvalidInput(f"{option}: only with --executor, one of {', '.join(KINDS)}")
        return None
    if cells_per_job is None:
        cells_per_job = Cluster.cells_per_job
    if cells_per_job < 1:
        raise InvalidInput(f"--cells_per_job={cells_per_job}: expected an integer >= 1")
    options: dict[str, Any] = {}
    for text in parameters:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise InvalidInput(f"--job={text}: expected KEY=VALUE, slurm_partition=gpu say")
        options[key] = int(value) if value.isdigit() else value
    return Cluster(kind, cells_per_job, options)

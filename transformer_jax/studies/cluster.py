"""Jobs that train cells on a Slurm cluster or as local processes, submitted by submitit."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import InvalidInput, require

KINDS = ("slurm", "local")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """Destination of jobs, Slurm or local processes, with parameters for submitit's executor.

    A job trains at most `cells_per_job` cells, of one arm if possible.
    """

    kind: str
    cells_per_job: int = 4
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def executor(self, folder: Path) -> Any:
        """Returns submitit's executor, which keeps its logs in a folder.

        Raises:
          InvalidInput: Submitit or Slurm is missing, or a parameter is unknown.
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
    """Parses `--executor`, `--cells_per_job` and `--job=KEY=VALUE`; None without `--executor`.

    Raises:
      InvalidInput: An option is not valid, or is given without `--executor`.
    """
    if kind is None:
        stated = [f"--job={text}" for text in parameters]
        if cells_per_job is not None:
            stated.insert(0, f"--cells_per_job={cells_per_job}")
        if stated:
            raise InvalidInput(f"{stated[0]}: needs --executor, which is one of {', '.join(KINDS)}")
        return None
    cells_per_job = Cluster.cells_per_job if cells_per_job is None else cells_per_job
    if cells_per_job < 1:
        raise InvalidInput(f"--cells_per_job={cells_per_job}: expected an integer >= 1")
    options: dict[str, Any] = {}
    for text in parameters:
        key, equals, value = text.partition("=")
        if not equals or not key.isidentifier():
            raise InvalidInput(f"--job={text}: expected KEY=VALUE, e.g. slurm_partition=gpu")
        options[key] = int(value) if value.isdigit() else value
    return Cluster(kind, cells_per_job, options)

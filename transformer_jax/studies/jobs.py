"""Training of cells as jobs on a cluster: submission, and the function that a job runs.

Cells are run directories with locks, so the next launch completes the cells that a job lost, and
two jobs never train the same cell.
"""

import contextlib
import os
import signal
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import Stop
from transformer_jax.runs.files import inside
from transformer_jax.runs.interruption import StopSignal
from transformer_jax.runs.progress import Progress
from transformer_jax.studies.arms import Arm, ArmBuilder, Estimate
from transformer_jax.studies.cells import DONE, ENDED, OUTCOMES, Cell
from transformer_jax.studies.cluster import Cluster
from transformer_jax.studies.design import Design
from transformer_jax.studies.workers import Workers

_POLL = 2.0  # seconds between checks of the cells


def run_as_jobs(
    cluster: Cluster,
    workers: Workers,
    design: Design,
    workdir: Path,
    root: Path,
    arms: Mapping[str, Arm],
    waiting: Sequence[Cell],
    total: int,
) -> None:
    """Trains the waiting cells as jobs, whose logs go to `jobs` in workdir.

    Each job gets cells of one arm if possible, so that it compiles once. Cells that end without an
    outcome are added to `workers.lost`. `total` also counts the cells that have ended before.

    Raises:
      Stop: A job could not be submitted.
    """
    board, names = workers.board(waiting, total), list(arms)
    order = sorted(waiting, key=lambda cell: (names.index(cell.arm), cell.seed))
    cells = [(c.arm, arms[c.arm].changes, arms[c.arm].hash, c.seed) for c in order]
    size = cluster.cells_per_job
    batches = [cells[start : start + size] for start in range(0, len(cells), size)]
    unreported = dict.fromkeys(waiting)
    failed = {cell: cell.reason() for cell in waiting if cell.state() in ENDED}  # tried again

    def report_ended(is_last: bool = False) -> None:
        for cell in list(unreported):
            state, reason = cell.state(), cell.reason()
            has_begun = is_last or failed.get(cell) != reason
            if state in ENDED and has_begun:
                del unreported[cell]
                board.ended(cell, state, "" if state == DONE else reason)

    workers.progress.say(f"jobs   {len(batches)} with {len(cells)} cells ({cluster.kind})")
    what = (os.getcwd(), design, str(root.absolute()), workers.estimate)
    logs = inside(workdir, "jobs")
    logs.mkdir(parents=True, exist_ok=True)
    executor, submitted = cluster.executor(logs), []
    try:
        for batch in batches:
            if workers.stop.signal is None:
                with _interrupts_left_to_us(cluster):
                    submitted.append(executor.submit(train_cells, *what, batch))
    except Exception as error:
        _end(cluster, submitted)
        raise Stop(f"--executor={cluster.kind}: {str(error).partition(chr(10))[0]}") from error
    while not all(job.done() for job in submitted):
        if workers.stop.signal is not None:
            _end(cluster, submitted)
            if cluster.kind == "slurm":
                break  # Slurm makes running jobs save, and waits for them
        report_ended()
        time.sleep(_POLL)
    report_ended(is_last=True)
    for cell in waiting:
        if cell.state() not in OUTCOMES:
            reason = cell.reason() or f"its job did not finish; see {workdir}/jobs"
            workers.lost[cell.arm, cell.seed] = reason


@contextlib.contextmanager
def _interrupts_left_to_us(cluster: Cluster) -> Generator[None]:
    """Makes local jobs started inside the context ignore Ctrl-C until their StopSignal handles it.

    Ctrl-C also reaches these jobs' process group, and submitit's controller would kill them.
    """
    before = None
    with contextlib.suppress(ValueError):  # only the main thread may set handlers
        before = None if cluster.kind == "slurm" else signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _end(cluster: Cluster, submitted: Sequence[Any]) -> None:
    """Cancels waiting jobs, and makes running jobs save their state and end."""
    for job in submitted:
        if cluster.kind == "slurm":
            job.cancel()
        elif not job.done():  # submitit's controller kills at `cancel`, and passes SIGTERM on
            os.kill(int(job.job_id), signal.SIGTERM)


def train_cells(
    cwd: str,
    design: Design,
    root: str,
    estimate: Estimate,
    batch: Sequence[tuple[str, dict[str, Any], str, int]],
) -> list[str]:
    """Trains cells in a job, for a study that another process has sealed; returns their states.

    `cwd` is the directory where the study was started, and `root` holds `cells`. `batch` has a
    tuple for each cell: name of the arm or tuning trial, its changes, folder of its cells, seed.

    Raises:
      SystemExit: A signal was received under Slurm; the cells were saved.
      Stop: An arm has a different hash here, since code, jax or device differ.
    """
    os.chdir(cwd)
    with StopSignal() as stop:
        arms: dict[str, Arm] = {}
        for name, changes, folder, _ in batch:
            if name in arms:
                continue
            of_arm = design.model_copy(update={"arms": {**design.arms, name: changes}})
            arms[name] = ArmBuilder(of_arm).make(name, name, {})
            arms[name].find_folder(estimate.members)
            if arms[name].hash != folder:
                raise Stop(
                    f"{name}: code, jax or device differ from those where the study was launched; "
                    "launch it from a node like this one (local jobs see no GPU without "
                    "--job=gpus_per_node=N)"
                )
        cells = [arms[name].cell(Path(root), seed) for name, _, _, seed in batch]
        Workers(estimate, Progress(), stop).run(arms, cells, len(cells))
        if stop.signal is not None and "SLURM_JOB_ID" in os.environ:
            # No result is returned, since a requeued job has not ended; sacct shows its state.
            raise SystemExit(128 + stop.signal)
        return [cell.state() for cell in cells]

"""Runs a ladder: all rungs are planned before the first of them runs."""

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.runs.interruption import StopSignal
from transformer_jax.runs.progress import Progress
from transformer_jax.studies.asking.ladder import Ladder, begin_ladder, rung_name, rung_path
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.reporting.ladder import write_ladder
from transformer_jax.studies.reporting.plan import seconds_to_come
from transformer_jax.studies.reporting.tables import clock
from transformer_jax.studies.running.launch import planned
from transformer_jax.studies.running.workers import CellsLost


def run_ladder(
    ladder: Ladder,
    workdir: str | Path,
    seeds: Sequence[int],
    *,
    dry_run: bool = False,
    retry: bool = False,
    progress: Progress | None = None,
    root: str | Path | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Runs and judges every rung, and compares them.

    Args:
      ladder: Its designs.
      workdir: Of the ladder; its parent's `cells` are shared if no other root is given.
      seeds: Of every rung.
      dry_run: Whether to stop after the plans.
      retry: Whether cells that failed are tried again.
      progress: Where to report; standard output if not given.
      root: Holds `cells`.
      options: Of launch.planned.

    Returns:
      What ladder.json holds; {} of a dry run.

    Raises:
      InvalidInput: The data of a rung is not there, or an arm does not fit it; nothing ran.
      CellsLost: Some cells failed; all others ran, and what can be said was written.
    """
    workdir, progress = Path(workdir), progress or Progress()
    begin_ladder(workdir, ladder, write=False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(progress))
        stop, launches = stack.enter_context(StopSignal()), {}
        for value, design in ladder.rungs.items():
            name, path = rung_name(ladder.key, value), rung_path(workdir, ladder.key, value)
            progress.say(f"plan   {name}: {design.path}, compared with {design.base}")
            shared = root or (None if Study(path).record else workdir.absolute().parent)
            rung = planned(
                design, path, seeds, progress, stop, dry_run=dry_run, root=shared, **options
            )
            with _named(name):
                launches[name] = stack.enter_context(rung)
            stop.end("interrupted before anything was trained")
        seconds = sum(sum(seconds_to_come(launch).values()) for launch in launches.values())
        progress.say(f"total  {len(launches)} studies, in all about {clock(seconds)}")
        if dry_run:
            return {}
        begin_ladder(workdir, ladder)
        lost: list[str] = []
        for name, launch in launches.items():
            progress.say(f"rung   {name}")
            try:
                launch.run(retry)
            except CellsLost as error:  # the others go on
                lost.append(f"{name}: {str(error).splitlines()[0]}")
    judged = write_ladder(workdir, ladder)
    if lost:
        tried = "--retry tries them again; STATUS says why, and error.txt for a fault in code"
        raise CellsLost("\n".join([*lost[:5], tried]))
    return judged


@contextlib.contextmanager
def _named(name: str) -> Generator[None]:
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from error

"""Studies that belong together: all are planned before the first of them runs."""

import contextlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.runs.interruption import StopSignal
from transformer_jax.runs.progress import Progress
from transformer_jax.studies.asking.design import Design
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.reporting.plan import seconds_to_come
from transformer_jax.studies.reporting.tables import clock
from transformer_jax.studies.running.launch import Launch, planned, solved_before
from transformer_jax.studies.running.planning import ArmBuilder
from transformer_jax.studies.running.workers import CellsLost

_NAMED = 5  # studies whose cells failed


@contextlib.contextmanager
def planned_together(
    studies: Mapping[str, tuple[Design, Path]],
    workdir: Path,
    seeds: Sequence[int],
    progress: Progress,
    root: str | Path | None = None,
    **options: Any,
) -> Generator[dict[str, Launch]]:
    """Plans studies, shows each plan, and says how long all of them take.

    Args:
      studies: by what each is called, with its directory.
      workdir: in which they lie.
      seeds: of every study.
      progress: where to tell how it goes.
      root: that holds `cells`; that of an earlier launch, or workdir's parent, if not given.
      options: of launch.planned.
    Returns:
      The launches, of which none has begun.
    Raises:
      InvalidInput: the data of one is not there, or an arm does not fit it; nothing was trained.
      Interrupted: a signal came.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(progress))
        stop, launches = stack.enter_context(StopSignal()), {}
        for name, (design, path) in studies.items():
            with progress.busy(f"trying the arms of {name}"), _in_the_name_of(name):
                ArmBuilder(design, solved_before(Study(path), design)).arms()
            stop.end("interrupted before anything was trained")
        for name, (design, path) in studies.items():
            progress.say(f"plan   {name}: {design.path}, compared with {design.base}")
            shared = root or (None if Study(path).record else workdir.parent)
            one = planned(design, path, seeds, progress, stop, root=shared, **options)
            with _in_the_name_of(name):
                launches[name] = stack.enter_context(one)
            stop.end("interrupted before anything was trained")
        seconds = sum(sum(seconds_to_come(launch).values()) for launch in launches.values())
        progress.say(f"total  {len(launches)} studies, in all about {clock(seconds)}")
        yield launches


def run_one(name: str, launch: Launch, retry: bool, adopt: bool) -> list[str]:
    """Runs and judges one of them; returns a line about cells that failed: the others go on."""
    try:
        launch.run(retry, adopt)
    except CellsLost as error:
        return [f"{name}: {str(error).splitlines()[0]}"]
    return []


def refuse_lost(lost: Sequence[str]) -> None:
    """Raises CellsLost where cells of some of them failed."""
    if lost:
        more = [f"and in {len(lost) - _NAMED} more"] if len(lost) > _NAMED else []
        tried = "--retry tries them again; each directory has error.txt"
        raise CellsLost("\n".join([*lost[:_NAMED], *more, tried]))


@contextlib.contextmanager
def _in_the_name_of(name: str) -> Generator[None]:
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from error

"""Studies that belong together: all are planned before the first of them runs."""

import contextlib
from collections.abc import Callable, Generator, Mapping, Sequence
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


def run_all(
    studies: Mapping[str, tuple[Design, Path]],
    workdir: Path,
    seeds: Sequence[int],
    *,
    each: str,
    begin: Callable[[bool], None],
    judge: Callable[[], dict[str, Any]],
    before: Callable[[str, Launch], None] = lambda name, launch: None,
    dry_run: bool = False,
    retry: bool = False,
    adopt: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Runs and judges studies one after the other, and then what they say together.

    Args:
      studies: by what each is called, with its directory.
      workdir: in which they lie; its parent's `cells` are shared if no other root is given.
      seeds: of every study.
      each: what one of them is, on the terminal.
      begin: refuses a directory that another question was asked in; True: notes this one there.
      judge: writes what they say together, and returns it.
      before: called before each of them.
      dry_run: whether to stop after the plans.
      retry: whether cells that failed are tried again.
      adopt: whether cells that have another key are taken over; see launch.run.
      progress: where to tell how it goes; standard output if not given.
      options: of launch.planned.
    Returns:
      What `judge` returns; {} of a dry run.
    Raises:
      InvalidInput: some data is not there, or an arm does not fit it; nothing ran.
      CellsLost: some cells failed; all others ran, and what can be said was written.
    """
    progress = progress or Progress()
    begin(False)
    with planned_together(
        studies, workdir, seeds, progress, dry_run=dry_run, **options
    ) as launches:
        if dry_run:
            return {}
        begin(True)
        lost: list[str] = []
        for name, launch in launches.items():
            progress.say(f"{each:<6} {name}")
            before(name, launch)
            try:
                launch.run(retry, adopt)
            except CellsLost as error:  # the others go on
                lost.append(f"{name}: {str(error).splitlines()[0]}")
    judged = judge()
    if lost:
        more = [f"and in {len(lost) - _NAMED} more"] if len(lost) > _NAMED else []
        tried = "--retry tries them again; STATUS says why, and error.txt for a fault in code"
        raise CellsLost("\n".join([*lost[:_NAMED], *more, tried]))
    return judged


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


@contextlib.contextmanager
def _in_the_name_of(name: str) -> Generator[None]:
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{name}: {error}") from error

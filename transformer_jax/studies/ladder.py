"""The same question at several scales: one study for each value of a baseline option.

ladder.json, ladder.md and a figure show the verdicts of all studies together.
"""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config_files import changed, flatten
from transformer_jax.declarations import split_values
from transformer_jax.errors import InvalidInput
from transformer_jax.options import is_number
from transformer_jax.runs.files import as_plain, inside, read_json, replace, write_json
from transformer_jax.runs.interruption import StopSignal
from transformer_jax.runs.progress import Progress
from transformer_jax.studies.charts import optimum_of, sweep_lines, sweeps_of
from transformer_jax.studies.design import Design, parse_arm
from transformer_jax.studies.statistics import moved
from transformer_jax.studies.study import Study
from transformer_jax.studies.tables import as_markdown, clock, signed, spell, spell_interval

FILE = "ladder.json"


class Ladder(NamedTuple):
    """A baseline option, `key`, and `rungs`: a design for each of its values, ascending."""

    key: str
    rungs: dict[float, Design]


def ladder_of(text: str, design: Design) -> Ladder:
    """Parses `--ladder`, KEY=NUMBER,NUMBER: an option of the baseline, and two or more values.

    Raises:
      InvalidInput: The form is different, the values do not ascend, or an arm sets the option.
    """
    points = parse_arm(text, flatten(design.config), whole_keys=True, flag="--ladder")
    keys = {key for point in points.values() for key in point}
    values = [value for point in points.values() for value in point.values()]
    count = len(split_values(text.partition("=")[2]))  # a repeated value makes only one point
    if len(keys) != 1 or not all(map(is_number, values)):
        raise InvalidInput(f"--ladder={text}: expected one KEY=NUMBER,NUMBER,...")
    if not len(values) == count >= 2 or sorted(set(values)) != values:
        raise InvalidInput(f"--ladder={text}: expected 2 or more numbers, ascending")
    (key,) = keys
    if key == "seed" or key.startswith("seeds."):
        raise InvalidInput(
            f"--ladder={text}: seeds cannot be a ladder's scale; --seeds=5 sets their number"
        )
    for name, changes in design.arms.items():
        if key in changes:
            raise InvalidInput(f"--ladder={text}: arm {name!r} sets {key} itself")
    rungs = {}
    for value in values:
        overrides = {**design.overrides, key: str(value)}
        config = changed(design.config, {key: value})
        rung = design.model_copy(update={"config": config, "overrides": overrides})
        rungs[value] = rung.check_arms()
    return Ladder(key, rungs)


def begin_ladder(workdir: Path, ladder: Ladder, write: bool = True) -> None:
    """Records a ladder before its first cell; without `write`, only checks the directory.

    Raises:
      InvalidInput: `workdir` already holds a different ladder.
    """
    now: dict[str, Any] = {"key": ladder.key, "values": list(ladder.rungs)}
    file = inside(workdir, FILE)
    stored = read_json(file) if file.exists() else now
    if any(stored.get(key) != value for key, value in now.items()):
        asked = f"{stored.get('key')}={','.join(f'{v:g}' for v in stored.get('values', ()))}"
        raise InvalidInput(f"--workdir={workdir}: holds the ladder {asked}; choose another")
    if write and stored is now:
        workdir.mkdir(parents=True, exist_ok=True)
        write_json(workdir, FILE, now)


def rung_path(workdir: Path, key: str, value: float) -> Path:
    """Returns the directory of a rung's study."""
    return inside(workdir, f"{key}={value}")


def write_ladder(workdir: Path, ladder: Ladder) -> dict[str, Any]:
    """Compares the verdicts of the rungs, writes all files, and returns ladder.json's content."""
    studies = [Study(rung_path(workdir, ladder.key, value)) for value in ladder.rungs]
    verdicts = [study.verdicts() for study in studies]
    first = verdicts[0]
    fields = ("mean", "interval", "words")
    judged = as_plain(
        {
            "question": first["question"],
            "key": ladder.key,
            "values": list(ladder.rungs),
            "metric": first["metric"],
            "base": first["base"],
            "scores": [v["values"][v["base"]]["mean"] for v in verdicts],
            "arms": {
                arm: [{key: v["arms"][arm].get(key) for key in fields} for v in verdicts]
                for arm in first["arms"]
            },
            "optima": _optima(studies, verdicts),
        }
    )
    write_json(workdir, FILE, judged)
    replace(workdir, "ladder.md", ladder_text(judged))
    for key in judged["optima"]:  # at most one: the option that all arms set
        lines = [
            {**line, "name": study.path.name}
            for study, shown in zip(studies, verdicts, strict=True)
            for line in sweep_lines(study, shown).get(key, ())
        ]
        with contextlib.suppress(ImportError):  # matplotlib belongs to the extra `train`
            from transformer_jax.studies.figures import draw_lines

            draw_lines(workdir, "ladder", lines, key, studies[0].metric)
    return judged


def _optima(studies: Sequence[Study], verdicts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the best value at each rung of an option that is the only one in which arms differ.

    `moved` is the factor from the first rung with a best value to the last, which are in `between`.
    """
    optima: dict[str, dict[str, Any]] = {}
    for key, groups in sweeps_of(studies[0], verdicts[0]).items():
        if list(groups) != [""]:
            continue
        rungs = zip(studies, verdicts, strict=True)
        by_rung = [optimum_of(*rung, key, groups[""]) for rung in rungs]
        found = [(n, optimum) for n, optimum in enumerate(by_rung) if not isinstance(optimum, str)]
        optima[key] = {"by_rung": by_rung}
        if len(found) > 1:
            (start, first), (end, last) = found[0], found[-1]
            optima[key] |= {"moved": moved(first, last), "between": (start, end)}
    return optima


def ladder_text(ladder: Mapping[str, Any]) -> str:
    """Returns a ladder as Markdown: best values of swept options, and a row per arm and rung."""
    values = ladder["values"]
    rows = [
        [arm, f"{value:g}", signed(v["mean"]), spell_interval(v["interval"]), v["words"]]
        for arm, by_rung in ladder["arms"].items()
        for value, v in zip(values, by_rung, strict=True)
    ]
    heads = ["arm", ladder["key"], f"{ladder['metric']}, difference", "interval", "verdict"]
    pairs = zip(ladder["scores"], values, strict=True)
    scores = ", ".join(f"{spell(score)} at {value:g}" for score, value in pairs)
    head = (
        f"# {ladder['question']}\n\nOver {ladder['key']}; + is better than {ladder['base']}. "
        f"Each rung is a study of its own. The baseline: {scores}.\n"
    )
    sentences = []
    for key, optimum in ladder["optima"].items():
        found = ", ".join(
            f"{best if isinstance(best, str) else _spelled(best)} at {value:g}"
            for value, best in zip(values, optimum["by_rung"], strict=True)
        )
        says = f"the best {key}"
        if "moved" in optimum:
            start, end = (values[place] for place in optimum["between"])
            says += f" moves by x {_spelled(optimum['moved'])} from {start:g} to {end:g}"
        by = "from a parabola, 95 % each; ends beyond the tried values are extrapolated"
        sentences.append(f"- **{says}**: {found} ({by})")
    return "\n".join([head, *sentences, "", as_markdown(heads, rows)])


def _spelled(best: Mapping[str, Any]) -> str:
    low, high = best["interval"]
    return f"{best['at']:.3g} [{low:.3g}, {high:.3g}]"


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
    """Runs and judges every rung, and compares the rungs; the arguments are as in running.run.

    Returns:
      The content of ladder.json; {} for a dry run.

    Raises:
      InvalidInput: A rung's design, data or directory is not valid; nothing ran.
      CellsLost: Some cells failed; all others ran, and the ladder's files were written.
    """
    from transformer_jax.studies.running import planned
    from transformer_jax.studies.workers import CellsLost

    workdir, progress = Path(workdir), progress or Progress()
    begin_ladder(workdir, ladder, write=False)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(progress))
        stop, launches = stack.enter_context(StopSignal()), {}
        options |= {"progress": progress, "stop": stop, "dry_run": dry_run}
        for value, design in ladder.rungs.items():
            path = rung_path(workdir, ladder.key, value)
            name = path.name
            progress.say(f"plan   {name}: {design.path}, compared with {design.base}")
            shared = root or (None if Study(path).record else workdir.absolute().parent)
            try:
                rung = planned(design, path, seeds, root=shared, **options)
                launches[name] = stack.enter_context(rung)
            except InvalidInput as error:
                raise InvalidInput(f"{name}: {error}") from error
            stop.end("interrupted before anything was trained")
        seconds = sum(sum(launch.seconds_to_come().values()) for launch in launches.values())
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
        tried = "--retry runs them again; STATUS has the reason, error.txt the traceback"
        raise CellsLost("\n".join([*lost[:5], tried]))
    return judged

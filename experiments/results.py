"""Adds a study to the committed results, and writes its page and the overview.

Example:
  python -m experiments.results --add=runs/positions
"""

import ast
import csv
import functools
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.command import Parser, execute
from transformer_jax import __version__
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.files import inside, read_json, replace, write_json
from transformer_jax.studies import tables
from transformer_jax.studies.ladder import FILE as LADDER
from transformer_jax.studies.ladder import rung_path
from transformer_jax.studies.outcomes import Word
from transformer_jax.studies.scores import judge
from transformer_jax.studies.study import Study, as_csv, load_study

HERE = Path(__file__).parent
RESULTS = HERE / "results"
_FIGURES = {
    "forest.svg": "Paired differences",
    "updates.svg": "Updates until a run solves the task",
    "ladder.svg": "Scores over the option",
}
_KEPT = ("verdict", "words", "mean", "interval", "level", "seeds", "solved", "updates")


def main(argv: list[str]) -> None:
    """Reads the arguments, adds studies, and rewrites all pages."""
    parser = Parser("results", __doc__)
    parser.add_argument("--add", action="append", default=[], metavar="DIR", help="a judged study")
    arguments = parser.read(argv)
    for path in map(Path, arguments.add):
        add(path)
    print(write())


def studies() -> list[str]:
    """Returns the names of the studies whose results are committed."""
    return sorted(folder.parent.name for folder in RESULTS.glob("*/design.json"))


@functools.cache
def design_of(name: str) -> dict[str, Any]:
    """Returns the content of a committed study's design.json."""
    return read_json(RESULTS / name / "design.json")


def add(path: Path) -> None:
    """Copies a study's or a ladder's results here; refuses it if exploratory or not judged."""
    folder = RESULTS / path.absolute().name
    if folder.resolve() == path.resolve():
        raise InvalidInput(f"--add={path}: this is already the folder of committed results")
    rungs = {"": path}
    if (path / LADDER).exists():
        ladder = read_json(inside(path, LADDER))
        rungs = {str(v): rung_path(path, ladder["key"], v) for v in ladder["values"]}
    by_rung = {value: load_study(rung) for value, rung in rungs.items()}
    for study in by_rung.values():
        verdicts = study.verdicts()
        if not verdicts:
            raise InvalidInput(f"{path}: not judged yet; python -m experiments.compare {path}")
        if verdicts["exploratory"]:
            raise InvalidInput(f"{path}: exploratory ({verdicts['exploratory'][0]}): not shown")
    folder.mkdir(parents=True, exist_ok=True)
    *_, largest = by_rung.values()
    design = _design(largest)
    if list(rungs) != [""]:
        design |= {key: ladder[key] for key in ("key", "values", "scores", "arms", "optima")}
    write_json(folder, "design.json", design)
    heads = (*([design["key"]] if "key" in design else []), "arm", "seed", "value", "diverged")
    rows = [
        [*([value] if value else []), *row]
        for value, study in by_rung.items()
        for row in _scores(study)
    ]
    replace(folder, "scores.csv", as_csv([*heads, "step"], rows))
    for name in _FIGURES:
        if (path / name).exists():
            shutil.copyfile(inside(path, name), folder / name)
    design_of.cache_clear()


def _design(study: Study) -> dict[str, Any]:
    verdicts, record = study.verdicts(), study.record
    environment = record["environment"]
    revision = (environment["git"] or {}).get("revision", "?")
    return {
        "trained_with": f"transformer_jax {__version__} (revision {revision[:7]}), jax "
        f"{environment['packages']['jax']}",
        "sealed": f"{record['seal'][:12]}, {record['sealed_at']}",
        **{key: value for key, value in study.sealed.items() if key != "arms"},
        "changes": study.sealed["arms"],
        "seeds": verdicts["seeds"],
        "costs": {name: arm["cost"] for name, arm in study.arms.items()},
        "counted": record["counted"],
        "learned": verdicts["learned"],
        "values": {
            name: {key: value[key] for key in ("n", "mean", "deviation")}
            for name, value in verdicts["values"].items()
        },
        "verdicts": {
            name: {key: arm[key] for key in _KEPT if key in arm}
            for name, arm in verdicts["arms"].items()
        },
    }


def _scores(study: Study) -> list[list[Any]]:
    """Returns a row per run: arm, seed, value, diverged or not, and step if there is a target."""
    rows = []
    for arm, value in study.verdicts()["values"].items():
        for seed, (score, diverged, first, last) in value["outcomes"].items():
            step = (last if first is None else first) if study.sealed["target"] is not None else ""
            rows.append([arm, seed, "" if score is None else score, diverged, step])
    return rows


def record_of(name: str) -> dict[str, str]:
    """Returns Answer, Limits, Command and Takes from the docstring of a study's config.

    Each is a paragraph or a line that begins with the word and a colon.
    """
    file = HERE.parent / "configs" / "ablations" / f"{name}.py"
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    parts = re.split(r"^(Answer|Limits|Command|Takes):\s*", text, flags=re.MULTILINE)
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return {word: body.partition("\n\n")[0].strip() for word, body in pairs}


def page_of(name: str) -> str:
    """Returns the page of a study as Markdown."""
    design, record = design_of(name), record_of(name)
    parts = [f"# {design['question']}", " ".join(record["Answer"].split())]
    heads = ("arm", "score", "difference", "interval", "verdict")
    if "key" in design:
        heads = (design["key"], "arm", "difference", "interval", "verdict")
        rows = [
            [f"{value:g}", arm, *_effect(optimum)]
            for arm, by_rung in design["arms"].items()
            for value, optimum in zip(design["values"], by_rung, strict=True)
        ]
    elif design["target"] is not None:
        heads = ("arm", "runs that solve it", "median updates", "verdict")
        rows = _solved_rows(design)
    else:
        base = design["base"]
        rows = [[base, _score(design["values"][base]), "base", "", ""]]
        rows += [
            [arm, _score(design["values"][arm]), *_effect(optimum)]
            for arm, optimum in design["verdicts"].items()
        ]
    parts.append(tables.as_markdown(heads, rows).strip())
    if needed := _seeds_needed(name):
        listed = "; ".join(f"{', '.join(seeds)} for {arm}" for arm, seeds in needed.items())
        parts.append(f"Seeds that would settle what is open (80 % power at the margin): {listed}.")
    unresolved = [a for a, v in design["verdicts"].items() if v["verdict"] == Word.UNRESOLVED]
    if design["tuning"] and (others := [arm for arm in unresolved if arm not in needed]):
        names = " and ".join(others)
        parts.append(f"More seeds would not settle {names}: the tuned value is too uncertain.")
    parts += [f"![{says}]({file})" for file, says in _FIGURES.items() if _has(name, file)]
    better = tables.direction(design["larger_is_better"])
    learned = design["learned"]
    about = f"Metric: {design['metric']} ({better}), margin {design['margin']:g}."
    about += f" {learned['told'][:1].upper()}{learned['told'][1:]}." if learned else ""
    about += "" if design["tuning"] else " No arm was tuned."
    parts.append(about)
    parts.append(f"**Limits.** {' '.join(record['Limits'].split())}")
    parts.append(f"```sh\n{_broken(record['Command'])}\n```")
    parts.append(f"Trained with {design['trained_with']}; {design['sealed']}.")
    return "\n\n".join(parts) + "\n"


def _seeds_needed(name: str) -> dict[str, list[str]]:
    """Returns the seeds that would settle each unresolved arm, with a ladder's value."""
    design, needed = design_of(name), dict[str, list[str]]()
    with (RESULTS / name / "scores.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    key = design.get("key", "")
    for value in dict.fromkeys(row.get(key, "") for row in rows):
        found = judge(
            [row for row in rows if row.get(key, "") == value],
            base=design["base"],
            margin=design["margin"],
            larger_is_better=design["larger_is_better"],
            target=design["target"],
        )
        for arm in found:
            if arm.word == Word.UNRESOLVED and arm.seeds_needed:
                rung = f" ({value})" if key else ""
                needed.setdefault(arm.arm, []).append(f"{arm.seeds_needed:,}{rung}")
    return needed


def _broken(command: str) -> str:
    """Returns a shell command split into lines, with escaped line breaks."""
    return re.sub(r"\s{2,}", " \\\\\n  ", command.replace("\\", ""))


def _has(name: str, file: str) -> bool:
    return (RESULTS / name / file).exists()


def _score(value: Mapping[str, Any]) -> str:
    if value["mean"] is None:
        return "–"
    deviation = value["deviation"]
    return f"{value['mean']:.4f} ± {'–' if deviation is None else f'{deviation:.4f}'}"


def _effect(verdict: Mapping[str, Any]) -> list[str]:
    words = verdict["words"].removesuffix(Word.UNTUNED)
    return [
        tables.signed(verdict.get("mean")),
        tables.spell_interval(verdict.get("interval")),
        words,
    ]


def _solved_rows(design: Mapping[str, Any]) -> tables.Rows:
    counts = {
        arm: (*found["solved"], *found["updates"])
        for arm, found in design["verdicts"].items()
        if "solved" in found
    }
    if not counts:
        return []
    _, base_solved, _, base_updates = next(iter(counts.values()))
    rows = [[design["base"], _of(base_solved), _updates(base_updates), "base"]]
    for arm, (solved, _, updates, _) in counts.items():
        verdict = design["verdicts"][arm]["verdict"]
        rows.append([arm, _of(solved), _updates(updates), verdict])
    return rows


def _of(pair: list[int]) -> str:
    return f"{pair[0]} of {pair[1]}"


def _updates(median: float | None) -> str:
    return "never" if median is None else f"{median:,.0f}"


def write() -> Path:
    """Writes the page of every study and the overview; returns the path of the overview."""
    for name in studies():
        replace(RESULTS / name, "README.md", page_of(name))
    rows = [
        [f"[{name}](results/{name}/README.md)", " ".join(record_of(name)["Answer"].split())]
        for name in studies()
    ]
    table = "\n".join(["| study | answer |", "| --- | --- |", *(f"| {a} | {b} |" for a, b in rows)])
    text = (
        "# What the studies found\n\n"
        "Each study was sealed before its first run: question, prediction, metric and margin. A "
        "verdict speaks for its model size, data and budget alone; each page has the table, the "
        "plot and the limits. [How to read a verdict](../docs/comparing.md).\n\n"
        f"{table}\n"
    )
    return replace(HERE, "README.md", text)


if __name__ == "__main__":
    execute(main)

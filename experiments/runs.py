"""Lists, shows, cleans up and exports runs.

Example:
  python -m experiments.runs ls runs "eval/loss<1.8" position=rotary --sort=eval/loss
  python -m experiments.runs show runs/a
  python -m experiments.runs tail runs/a
  python -m experiments.runs diff runs/a runs/b
  python -m experiments.runs gc runs --checkpoints
  python -m experiments.runs export runs/a --out=my_model

Details: python -m experiments.runs ls --help
"""

import contextlib
import re
import sys
from pathlib import Path
from typing import Any

from experiments.command import Parser, execute
from transformer_jax.config_files import flatten
from transformer_jax.errors import InvalidInput
from transformer_jax.options import is_number
from transformer_jax.resolve import stated
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.listing import (
    CELLS,
    columns_of,
    facts_of,
    filtered,
    find_runs,
    keys_of,
    studies_in,
)
from transformer_jax.studies.study import as_csv
from transformer_jax.studies.tables import as_markdown, harmless, spell, spell_cell

_FORMATS = ("text", "csv", "md")


def main(argv: list[str]) -> Any:
    """Runs the subcommand that the first argument names; returns its result."""
    verbs = {
        **{"ls": _list, "show": _show, "tail": _tail, "diff": _diff},
        **{"gc": _free, "export": _export},
    }
    verb = Parser("runs", __doc__).choose(argv, verbs)
    return verbs[verb](argv[1:]) if verb else None


def _list(argv: list[str]) -> list[dict[str, Any]]:
    parser = Parser("runs ls", __doc__)
    parser.add_argument(
        "filters",
        nargs="*",
        metavar="FILTER",
        help="KEY=VALUE, KEY<NUMBER, ...; a folder given first is searched, as by --root",
    )
    parser.add_argument("--root", help="folder to search (runs)")
    parser.add_argument(
        "--cells", action="store_true", help="list the cells of studies too, as filters always do"
    )
    parser.add_argument("--sort", help="a key, or -key for descending")
    parser.add_argument("--columns", default="", help="keys to show, joined by commas")
    parser.add_argument("--format", choices=_FORMATS, default="text", help="output format (text)")
    parser.add_json()
    arguments = parser.read(argv)
    filters = list(arguments.filters)
    has_folder = filters and arguments.root is None and Path(filters[0]).is_dir()
    root = Path(filters.pop(0) if has_folder else arguments.root or "runs")
    every = [facts_of(path, root) for path in find_runs(root)]
    columns, rows = keys_of(every, arguments.columns), filtered(every, filters, arguments.sort)
    folded, left = 0, []
    if not (filters or arguments.cells or arguments.json or arguments.format != "text"):
        alone = [row for row in rows if CELLS not in Path(row["run"]).parts]
        rows, folded = alone, len(rows) - len(alone)
    asked = dict.fromkeys(re.split(r"[<>=!]", text)[0].strip() for text in filters)
    columns = ["run", *columns] if columns else columns_of(rows)
    if not arguments.columns:
        columns += [key for key in asked if key not in columns and any(key in r for r in rows)]
    chosen = [{key: row.get(key) for key in columns} for row in rows]
    if arguments.format == "csv":
        sys.stdout.write(as_csv(columns, [[row.get(key) for key in columns] for row in rows]))
        return chosen
    if arguments.format == "text" and not arguments.columns:
        few = {*columns_of(rows, most=8), *asked}  # so that a line can be read
        left, columns = [k for k in columns if k not in few], [k for k in columns if k in few]
    cells = [[spell_cell(key, row.get(key)) for key in columns] for row in rows]
    short = [key.removeprefix("model.") for key in columns]
    if arguments.format == "md":
        print(as_markdown(short, cells))
        return chosen
    print(_as_columns(short, cells))
    print(
        f"{len(rows)} runs" + f", and {folded} cells of studies: --cells lists them" * bool(folded)
    )
    if left:
        print(f"options that also differ: {', '.join(left)} (--columns, --format=csv)")
    for study in studies_in(root) if folded else ():
        print(f"study  {study}: python -m experiments.compare {study}")
    return chosen


def _show(argv: list[str]) -> dict[str, Any]:
    parser = Parser("runs show", __doc__)
    parser.add_argument("run", help="a run's directory")
    parser.add_json()
    path = _run_of(parser.read(argv).run)
    facts = facts_of(path, path)
    directory = RunDirectory(path)
    options = stated(flatten(directory.config()))
    step, steps = facts["step"], facts["training.steps"]
    last_seen = f"{facts['status']}, step {step:,} of {steps:,}, {facts['when']}"
    print(f"{path}: {harmless(last_seen)}")
    print(f"parameters  {spell(facts['parameters'])}")
    for key, value in options.items():
        print(f"config      {harmless(f'{key}={value}')}")
    scores = directory.evaluation()
    for split in [name for name in ("validation", "test") if name in scores]:
        numbers = {harmless(n): value for n, value in scores[split].items() if is_number(value)}
        print(f"{split:<10}  {', '.join(f'{n} {spell(value)}' for n, value in numbers.items())}")
    return {"run": str(path), "status": facts["status"], "config": options, "evaluation": scores}


def _tail(argv: list[str]) -> list[dict[str, Any]]:
    parser = Parser("runs tail", __doc__)
    parser.add_argument("run", help="a run's directory")
    parser.add_argument("--lines", type=int, default=10, help="number of rows to show (10)")
    parser.add_json()
    arguments = parser.read(argv)
    if arguments.lines < 1:
        raise InvalidInput(f"--lines={arguments.lines}: expected an integer >= 1")
    rows = RunDirectory(_run_of(arguments.run)).metrics()[-arguments.lines :]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    print(_as_columns(columns, [[spell(row.get(key)) for key in columns] for row in rows]))
    return rows


def _diff(argv: list[str]) -> dict[str, Any]:
    parser = Parser("runs diff", __doc__)
    parser.add_argument("runs", nargs=2, metavar="RUN", help="two runs' directories")
    parser.add_json()
    paths = [_run_of(name) for name in parser.read(argv).runs]
    facts = [facts_of(path, path) for path in paths]
    differences = {
        key: [run_facts.get(key) for run_facts in facts]
        for key in dict.fromkeys([*facts[0], *facts[1]])
        if facts[0].get(key) != facts[1].get(key) and key not in ("run", "when")
    }
    rows = [[key, *(spell_cell(key, value) for value in pair)] for key, pair in differences.items()]
    print(_as_columns(["", *map(str, paths)], rows))
    return {"runs": [str(path) for path in paths], "differ": differences}


def _run_of(name: str) -> Path:
    """Returns the path of a directory that contains a run.

    Raises:
      InvalidInput: The directory contains no run; it may be, for example, a study.
    """
    path = Path(name)
    if (path / "study.json").exists():
        raise InvalidInput(
            f"{name}: expected a run, found a study; see python -m experiments.compare {name}"
        )
    if not (path / "config.json").exists():
        raise InvalidInput(
            f"{name}: no run here (no config.json); python -m experiments.runs ls lists the runs"
        )
    return path


def _as_columns(heads: list[str], rows: list[list[str]]) -> str:
    """Returns rows as text in columns; long lines are not wrapped, so that grep can find them."""
    heads, *rows = [[harmless(cell) for cell in row] for row in (heads, *rows)]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [heads, *rows]
    )


def _free(argv: list[str]) -> dict[str, Any]:
    parser = Parser("runs gc", __doc__)
    parser.add_argument("root", nargs="?", default="runs", help="folder to search (runs)")
    parser.add_argument(
        "--checkpoints",
        action="store_true",
        help="also delete checkpoints of finished cells; scores, curves and verdicts stay",
    )
    parser.add_argument("--yes", action="store_true", help="delete without asking")
    parser.add_json()
    arguments = parser.read(argv)
    from transformer_jax.runs.garbage import delete, find_garbage

    pieces = find_garbage(Path(arguments.root), arguments.checkpoints)
    for path, why, size, _ in pieces:
        print(f"{_mebibytes(size):>12}  {harmless(str(path))}: {why}")
    whole = sum(garbage.size for garbage in pieces)
    if not pieces:
        more = "" if arguments.checkpoints else "; --checkpoints offers more"
        print(f"{arguments.root}: nothing to free{more}")
    elif arguments.yes or _agrees(f"delete these {_mebibytes(whole)}? [y/N] "):
        freed = delete(pieces)
        print(f"freed {_mebibytes(freed)}" + "; the rest is in use or protected" * (freed < whole))
        return {"freed": freed, "found": [str(garbage.path) for garbage in pieces]}
    else:
        print(f"nothing was deleted; --yes deletes these {_mebibytes(whole)}")
    return {"freed": 0, "found": [str(garbage.path) for garbage in pieces]}


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _agrees(question: str) -> bool:
    """Asks a question at the terminal; returns whether the answer is yes, False without one."""
    with contextlib.suppress(EOFError):
        return (
            bool(sys.stdin)
            and sys.stdin.isatty()
            and input(question).strip().lower() in ("y", "yes")
        )
    return False


def _export(argv: list[str]) -> dict[str, str]:
    """Writes a run's weights, config, tokenizer and model card as a Hugging Face folder."""
    parser = Parser("runs export", __doc__)
    parser.add_argument("path", help="a run's directory")
    parser.add_argument("--out", required=True, help="a folder for transformers' Auto classes")
    parser.add_allow()
    parser.add_json()
    arguments = parser.read(argv)
    path, out = arguments.path, Path(arguments.out)
    directory = RunDirectory(_run_of(path))
    from transformer_jax.training.export import export_run
    from transformer_jax.training.loading import load_run

    run = load_run(path, allow=arguments.allow)
    name = directory.path.absolute().name
    data = directory.manifest()["data"]
    architecture = export_run(run, out, name, directory.evaluation(), data)
    print(f"{out}: {architecture}; transformers' Auto classes load it, see {out / 'README.md'}")
    return {"run": path, "folder": str(out), "architecture": architecture}


if __name__ == "__main__":
    execute(main)

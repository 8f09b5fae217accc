"""Judges scores from other code, given as one row per run with arm, seed and value.

Example:
  python -m experiments.judge --scores=scores.csv --base=baseline --margin=0.01 --larger_is_better
  python -m experiments.judge --scores=scores.csv --base=baseline --margin=0.01 --json
  python -m experiments.judge --scores=scores.csv --base=baseline --margin=0.01 --workdir=judged

docs/comparing.md explains the terms; in Python, call `transformer_jax.judge`.
"""

import csv
from pathlib import Path
from typing import Any

from experiments.command import Parser, execute
from transformer_jax.errors import InvalidInput


def main(argv: list[str]) -> list[Any]:
    """Reads the arguments, prints a table and returns the verdicts."""
    parser = Parser("judge", __doc__)
    parser.add_argument("--scores", required=True, help="a CSV file with arm, seed, value")
    parser.add_argument("--base", required=True, help="the arm that the others are compared with")
    parser.add_argument(
        "--margin", required=True, type=float, help="the smallest difference that matters"
    )
    parser.add_argument(
        "--larger_is_better", action="store_true", help="larger values are better (smaller)"
    )
    parser.add_argument("--primary", help="arms that the question is about: a,b (all)")
    parser.add_argument("--planned", default="", help="number of seeds at each planned look: 5,10")
    parser.add_argument("--earlier_looks", default="", help="number of seeds at earlier looks: 5")
    parser.add_argument("--target", type=float, help="value at which a run has solved the task")
    parser.add_argument("--workdir", help="folder for a page, tables and a register of looks")
    parser.add_json()
    arguments = parser.read(argv)
    from transformer_jax.studies.report import HEADS, judge_in, result_rows
    from transformer_jax.studies.scores import judge, outcomes_of
    from transformer_jax.studies.tables import table_text

    rows = _read(Path(arguments.scores))
    asked: dict[str, Any] = {
        "base": arguments.base,
        "margin": arguments.margin,
        "larger_is_better": arguments.larger_is_better,
        "primary": arguments.primary.split(",") if arguments.primary else None,
        "planned": _counts("planned", arguments.planned),
        "earlier_looks": _counts("earlier_looks", arguments.earlier_looks),
        "target": arguments.target,
    }
    results = (
        judge_in(Path(arguments.workdir), rows, **asked)
        if arguments.workdir
        else judge(rows, **asked)
    )
    print(table_text(HEADS, result_rows(results, outcomes_of(rows))))
    if arguments.workdir:
        print(f"report  {arguments.workdir}/report.html")
    return results


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise InvalidInput(f"--scores={path}: no such file")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # Excel adds a BOM
            rows: list[dict[str, Any]] = list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: expected a CSV file in UTF-8: {error}") from error
    for number, row in enumerate(rows, start=2):
        for column, kind in (("seed", float), ("value", float), ("step", float)):
            text = row.pop(column, None)
            if text is None or (column == "step" and not text):
                continue
            try:
                row[column] = kind(text or "nan")
            except (TypeError, ValueError) as error:
                message = f"{path}, line {number}: {column}={text}: expected a number"
                raise InvalidInput(message) from error
    if not rows:
        raise InvalidInput(f"{path}: expected a header and one line per run, found no runs")
    return rows


def _counts(name: str, text: str) -> tuple[int, ...]:
    counts = text.split(",") if text else []
    if not all(count.isdecimal() and int(count) for count in counts):
        raise InvalidInput(f"--{name}={text}: expected numbers of seeds, such as 5,10")
    return tuple(map(int, counts))


if __name__ == "__main__":
    execute(main)

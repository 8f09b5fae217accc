"""Finds runs, and makes a study fit to be mailed.

Example:
  python -m experiments.runs ls --root=runs "eval/loss<1.8" position=rotary --sort=eval/loss
  python -m experiments.runs export runs/positions --out=positions.zip
"""

import csv
import io
import sys
from pathlib import Path
from typing import Any

from experiments.command import Parser, execute
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.listing import choose, columns_of
from transformer_jax.studies.reporting.tables import as_markdown, plain_cell, spell

_FORMATS = ("text", "csv", "md")


def main(argv: list[str]) -> Any:
    """Reads the arguments; the first word is what to do. Returns the rows, or what was written."""
    verbs = {"ls": _list, "export": _export}
    if not argv or argv[0] not in verbs:
        if argv and argv[0] in ("-h", "--help"):
            Parser("runs", __doc__).print_help()
            return None
        raise InvalidInput(f"runs: expected one of {', '.join(verbs)}, e.g. runs ls --root=runs")
    return verbs[argv[0]](argv[1:])


def _list(argv: list[str]) -> list[dict[str, Any]]:
    parser = Parser("runs ls", __doc__)
    parser.add_argument("filters", nargs="*", metavar="FILTER", help="KEY=VALUE, KEY<NUMBER, ...")
    parser.add_argument("--root", default="runs", help="where to look (runs)")
    parser.add_argument("--sort", help="a key, or -key for descending")
    parser.add_argument("--columns", default="", help="keys to show, joined by commas")
    parser.add_argument("--format", choices=_FORMATS, default="text", help="(text)")
    parser.add_json()
    arguments = parser.read(argv)
    rows = choose(Path(arguments.root), arguments.filters, arguments.sort)
    columns = columns_of(rows, [key for key in arguments.columns.split(",") if key])
    found = [{key: row.get(key) for key in columns} for row in rows]
    if arguments.format == "csv":
        sys.stdout.write(_as_csv(columns, rows))
        return found
    cells = [[spell(row.get(key)) for key in columns] for row in rows]
    short = [key.removeprefix("model.") for key in columns]
    if arguments.format == "md":
        print(as_markdown(short, cells))
        return found
    print(_as_columns(short, cells))
    print(f"{len(rows)} runs")
    return found


def _as_columns(heads: list[str], rows: list[list[str]]) -> str:
    """Plain columns: a line stays a line however wide, so that it can be searched."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [heads, *rows]
    )


def _as_csv(columns: list[str], rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([plain_cell(row.get(key)) for key in columns] for row in rows)
    return text.getvalue()


def _export(argv: list[str]) -> dict[str, str]:
    parser = Parser("runs export", __doc__)
    parser.add_argument("study", help="a study's directory")
    parser.add_argument("--out", required=True, help="a .zip file")
    parser.add_argument("--weights", action="store_true", help="with the cells' checkpoints")
    parser.add_json()
    arguments = parser.read(argv)
    from transformer_jax.studies.reporting.export import export_study

    out = export_study(arguments.study, Path(arguments.out), arguments.weights)
    print(f"{out}: {out.stat().st_size / 2**20:.1f} MiB; unzip it anywhere and compare reads it")
    return {"study": arguments.study, "file": str(out)}


if __name__ == "__main__":
    execute(main)

"""Judges studies again, or compares runs, or their scores of a benchmark's items.

Example:
  python -m experiments.compare runs/positions
  python -m experiments.compare runs/a runs/b --metric=eval/loss --out=comparison.html
  python -m experiments.compare plain-seed0.jsonl wide-seed0.jsonl --metric=accuracy
"""

from pathlib import Path
from typing import Any

from experiments.command import Parser, execute, file_to_write, refuse_unread
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.studies.other_runs import RULE
from transformer_jax.studies.study import Study, is_study, load_study
from transformer_jax.studies.tables import table_text

_PICTURES = (".png", ".svg", ".pdf")


def main(argv: list[str]) -> dict[str, Any]:
    """Prints and returns the verdicts on studies, or a comparison of runs."""
    parser = Parser("compare", __doc__)
    parser.add_argument(
        "directories", nargs="+", metavar="DIR",
        help="directories of studies or of runs, or files of items that `evaluate` wrote",
    )  # fmt: skip
    parser.add_argument("--metric", help="of runs (eval/loss), or of items (accuracy)")
    parser.add_argument("--rule", help="for items: pattern of names, arm and seed")
    parser.add_argument(
        "--out",
        help="for runs: file for the page, or for a picture of the metric (comparison.html)",
    )
    parser.add_json()
    arguments = parser.read(argv)
    if all(path.endswith(".jsonl") for path in arguments.directories):
        refuse_unread(arguments, ("out",), "for items")
        return _compare_items(arguments)
    refuse_unread(arguments, ("rule",), "but for items")
    if any(path.endswith(".jsonl") for path in arguments.directories):
        raise InvalidInput("compare: expected files of items (.jsonl), or directories, not both")
    studies = [path for path in arguments.directories if is_study(path)]
    if studies and len(studies) < len(arguments.directories):
        raise InvalidInput("compare: expected studies or runs, not both")
    if studies:
        refuse_unread(arguments, ("metric", "out"), "for a study, which has its own metric")
        return {"studies": {path: _judge(load_study(path)) for path in studies}}
    out = file_to_write(arguments.out or "comparison.html", "--out")
    return _compare_runs(arguments.directories, arguments.metric or "eval/loss", out)


def _judge(study: Study) -> dict[str, Any]:
    """Judges a study again from its current cells; returns the content of verdicts.json."""
    from transformer_jax.runs.progress import Progress
    from transformer_jax.studies.report import judge_and_report

    study.refuse_lost_cells()
    return judge_and_report(study, Progress())


def _compare_items(arguments: Any) -> dict[str, Any]:
    from transformer_jax.studies.items import HEADS, compare_items, read_answers, rows_of

    paths = map(Path, arguments.directories)
    compared, notes = compare_items(
        read_answers(paths, arguments.metric or "accuracy", arguments.rule or RULE)
    )
    print(table_text(HEADS, rows_of(compared)), *(f"note   {n}" for n in notes), sep="\n")
    return {"arms": [arm._asdict() for arm in compared], "notes": notes}


def _compare_runs(paths: list[str], metric: str, out: Path) -> dict[str, Any]:
    from transformer_jax.studies.comparison import Comparison

    if out.suffix not in (".html", *_PICTURES):
        raise InvalidInput(f"--out={out}: expected a name that ends with .html, .png, .svg or .pdf")
    runs = {path.rstrip("/"): RunDirectory(path) for path in paths}
    if len(runs) < 2:
        raise InvalidInput("compare: expected two or more different run directories, or a study")
    comparison = Comparison(runs, metric)
    rows, warnings, verdict = comparison.rows(), comparison.warnings(), comparison.verdict()
    print(table_text(["", *runs], rows))
    for warning in warnings:
        print(f"warning: {warning}")
    print(verdict)
    if out.suffix == ".html":
        out.write_text(comparison.page(), encoding="utf-8")
        print(f"page: {out}")
    else:
        from transformer_jax.runs.pictures import draw_comparison

        drawn = {name: run.metrics() for name, run in runs.items()}
        print(f"picture: {draw_comparison(drawn, metric, out)}")
    columns = comparison.columns
    table = {key: {name: columns[name].get(key) for name in runs} for key, *_ in rows}
    return {"runs": table, "warnings": warnings, "verdict": verdict, "page": str(out)}


if __name__ == "__main__":
    execute(main)

"""Judges runs of other code, from a table of scores or from the files that they left.

Example:
  python -m experiments.judge --scores=scores.csv --base=baseline --margin=0.01 --larger_is_better
  python -m experiments.judge --scores=scores.csv --base=baseline --margin=0.01 --json
  python -m experiments.judge --scores=scores.csv --base=baseline --margin=0.01 --workdir=judged
  python -m experiments.judge --from=logs --metric=val_loss --base=plain --margin=0.01
  python -m experiments.judge --from=logs --metric=val_loss --target=3.28 --steps

docs/comparing.md explains the terms; in Python, call `transformer_jax.judge`.
"""

from pathlib import Path
from typing import Any

from experiments.command import Parser, execute, refuse_unread
from transformer_jax.errors import InvalidInput
from transformer_jax.studies import other_runs


def main(argv: list[str]) -> list[Any]:
    """Reads the arguments, prints a table and returns the verdicts."""
    parser = Parser("judge", __doc__)
    parser.add_argument("--scores", help="a CSV file with arm, seed, value")
    parser.add_argument(
        "--from", dest="sources", action="append", default=[], metavar="PATH",
        help="instead, logs, .jsonl, .csv, event files or W&B runs of other code; repeatable",
    )  # fmt: skip
    parser.add_argument("--metric", help="name of the metric in these files (a validation loss)")
    parser.add_argument("--rule", help="pattern of names: arm and seed")
    parser.add_argument("--at", type=int, help="update whose values are compared (the last)")
    parser.add_argument("--steps", action="store_true", help="when do runs reach --target?")
    parser.add_argument("--base", help="the arm that the others are compared with")
    parser.add_argument("--margin", type=float, help="the smallest difference that matters")
    parser.add_argument(
        "--larger_is_better", action="store_true", help="larger is better (smaller)"
    )
    parser.add_argument("--primary", help="arms that the question is about: a,b (all)")
    parser.add_argument("--planned", help="number of seeds at each planned look: 5,10")
    parser.add_argument("--earlier_looks", help="number of seeds at earlier looks: 5")
    parser.add_argument("--target", type=float, help="value at which a run has solved the task")
    parser.add_argument("--workdir", help="folder for a page, tables and a register of looks")
    parser.add_json()
    arguments = parser.read(argv)
    from transformer_jax.studies.report import HEADS, judge_in, result_rows
    from transformer_jax.studies.scores import judge, outcomes_of, unpaired
    from transformer_jax.studies.tables import table_text

    if bool(arguments.scores) == bool(arguments.sources):
        raise InvalidInput("expected either --scores=FILE or --from=PATH")
    if arguments.steps and (arguments.scores or arguments.target is None or arguments.workdir):
        raise InvalidInput("--steps: expected --from=PATH and --target=VALUE, and no --workdir")
    if arguments.steps:
        of_judge = ("base", "margin", "primary", "planned", "earlier_looks")
        refuse_unread(arguments, of_judge, "with --steps")
    if arguments.scores:
        refuse_unread(arguments, ("metric", "rule", "at"), "with --scores")
    if not arguments.steps and (arguments.base is None or arguments.margin is None):
        raise InvalidInput("expected --base=ARM and --margin=DIFFERENCE")
    if arguments.scores:
        rows = other_runs.read_scores(Path(arguments.scores))
    else:
        curves = other_runs.read_curves(map(Path, arguments.sources), arguments.metric)
        by_target = arguments.target is not None and not arguments.steps
        at_end = arguments.at is None and not by_target
        if at_end and (end := other_runs.common_end(curves)) is not None:
            print(f"note   runs end at different updates; compared at {end:,}, which all have")
            arguments.at = end
        rule = arguments.rule or other_runs.RULE
        picked = arguments.at, arguments.target, arguments.larger_is_better
        rows, lines, warnings = other_runs.rows_of_curves(curves, rule, *picked)
        heads = ["update", "value"] if arguments.target is None else ["reached at", "best value"]
        shown = table_text(["run", "arm", "seed", *heads, "points"], lines)
        print(shown, *(f"note   {warning}" for warning in warnings), sep="\n")
        if arguments.steps:
            found = other_runs.reaching(curves, arguments.target, *picked[::2], rule=rule)
            print(table_text(*other_runs.reaching_table(found, arguments.target)))
            return found
    asked: dict[str, Any] = {
        "base": arguments.base,
        "margin": arguments.margin,
        "larger_is_better": arguments.larger_is_better,
        "primary": arguments.primary.split(",") if arguments.primary else None,
        "planned": _counts("planned", arguments.planned),
        "earlier_looks": _counts("earlier_looks", arguments.earlier_looks),
        "target": arguments.target,
    }
    folder = Path(arguments.workdir) if arguments.workdir else None
    results = judge_in(folder, rows, **asked) if folder else judge(rows, **asked)
    print(f"note   {'larger' if arguments.larger_is_better else 'smaller'} values are better")
    outcomes = outcomes_of(rows)
    print(*(f"note   {t}\n" for t in unpaired(outcomes) if arguments.scores), sep="", end="")
    print(table_text(HEADS, result_rows(results, outcomes)))
    if arguments.workdir:
        print(f"report  {arguments.workdir}/report.html")
    return results


def _counts(name: str, text: str | None) -> tuple[int, ...]:
    counts = text.split(",") if text else []
    if not all(count.isdecimal() and int(count) for count in counts):
        raise InvalidInput(f"--{name}={text}: expected numbers of seeds, such as 5,10")
    return tuple(map(int, counts))


if __name__ == "__main__":
    execute(main)

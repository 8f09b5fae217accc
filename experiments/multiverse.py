"""Doubts a verdict: trains base and arms with other rates, decays, sizes and budgets, a seed each.

Example:
  python -m experiments.multiverse --study=runs/positions
  python -m experiments.multiverse --study=runs/positions --arms=rotary --over=model.depth=2,4
"""

from typing import Any

from experiments.command import Parser, execute, use_compilation_cache
from transformer_jax.errors import InvalidInput


def main(argv: list[str]) -> dict[str, Any]:
    """Trains what is missing; prints the differences, and returns what multiverse.json holds."""
    parser = Parser("multiverse", __doc__)
    parser.add_argument("--study", required=True, help="a study's directory, with verdicts")
    parser.add_argument("--arms", default="", help="that are doubted, by comma (all)")
    parser.add_argument("--count", type=int, default=18, help="of specifications (18)")
    parser.add_argument(
        "--over",
        action="append",
        default=[],
        metavar="KEY=VALUE,VALUE",
        help="doubt this too, or with these values; several times for several",
    )
    parser.add_allow()
    parser.add_json()
    arguments = parser.read(argv)
    if arguments.count < 2:
        raise InvalidInput(f"--count={arguments.count}: expected at least 2")

    from transformer_jax.studies.asking.study import load_study

    study = load_study(arguments.study)
    use_compilation_cache()

    from transformer_jax.runs.progress import Progress
    from transformer_jax.studies.reporting.report import write_report
    from transformer_jax.studies.reporting.tables import multiverse_rows, table_text
    from transformer_jax.studies.running.multiverse import multiverse

    # The name of an arm may hold a comma.
    is_one = arguments.arms in study.arms
    names = [arguments.arms] if is_one else [name for name in arguments.arms.split(",") if name]
    curve = multiverse(study, names, arguments.over, arguments.count, Progress(), arguments.allow)
    report = write_report(study)
    print(table_text(*multiverse_rows(curve)))
    for specification, why in curve["skipped"].items():
        print(f"left out: {specification}: {why}")
    for name, its in curve["arms"].items():
        print(f"{name}: {its['words']} specifications")
    print(f"report  {report}")
    return curve


if __name__ == "__main__":
    execute(main)

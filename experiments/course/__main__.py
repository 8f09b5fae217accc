r"""Tests statements from courses about transformers, or checks your own attention.

Example:
  python -m experiments.course
  python -m experiments.course --solution=my_attention.py
"""

import time

from experiments.command import Parser, execute, use_compilation_cache
from transformer_jax.errors import Stop


class Failed(Stop):
    """An exact statement did not hold, or a solution is wrong."""

    exit_code = 1


def main(argv: list[str]) -> None:
    """Reads the arguments; tests every statement, or checks a solution."""
    parser = Parser("course", __doc__)
    parser.add_argument(
        "--solution",
        metavar="FILE.py",
        help="your own attention or multi_head_attention, to be run and checked against loops",
    )
    arguments = parser.read(argv)
    use_compilation_cache()
    if arguments.solution:
        _check_solution(arguments.solution)
        return
    started = time.monotonic()
    from experiments.course.checks import ERRATA, WORKED
    from experiments.course.statements import STATEMENTS, outcome_of, run_check

    for statement in STATEMENTS:
        outcome = outcome_of(statement)
        print(f"{statement.number:>2} {outcome.word:<17} {statement.says}")
        for seen in (*outcome.seen, *([f"({statement.note})"] if statement.note else [])):
            print(f"{'':20} {seen}")
    checks = {statement.says: statement.check for statement in STATEMENTS if statement.check}
    print("\nSlips that circulate, and what is right:")
    for erratum in ERRATA:
        print(f"   {erratum.circulates}\n      {erratum.holds}")
    checks |= WORKED | {e.holds: e.demonstrate for e in ERRATA if e.demonstrate}
    seen = {says: run_check(check) for says, check in checks.items()}
    print("\nWorked numbers:", *(f"   {says}: {seen[says][1]}" for says in WORKED), sep="\n")
    seconds = time.monotonic() - started
    print(f"\n{len(STATEMENTS)} statements, {len(checks)} checks in {seconds:.0f} s")
    failed = [message for holds, message in seen.values() if not holds]
    if failed:
        raise Failed("\n".join(failed))


def _check_solution(path: str) -> None:
    from experiments.course.solution import as_lines, check_solution

    findings = check_solution(path)
    print("\n".join(as_lines(findings)))
    if not all(finding.right for finding in findings):
        raise Failed(f"{path}: not right yet")


if __name__ == "__main__":
    execute(main)

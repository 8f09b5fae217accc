r"""Tries one change to a base: keeps it, drops it, or leaves it undecided.

A change is screened against the base over the same few seeds. A promising one is trained again,
with the base, on fresh seeds, until the evidence suffices to make it part of the base. Over all
tries, at most 5 % of the kept changes are expected to be false; see AGENTS.md.

Example:
  python -m experiments.try_change --base=runs/tries --config=configs/tiny.py --gate=1-gram \
    --change=optimizer.learning_rate=0.003 --budget=5m
  python -m experiments.try_change --base=runs/tries --change=model.num_heads=4,model.depth=3 --json
  python -m experiments.try_change --base=runs/tries --list

Exit code: 0 kept, 10 dropped, 11 undecided (the same command continues); 2 invalid change.
"""

import re
import sys
from typing import Any

from experiments.command import (
    Ended,
    Parser,
    execute,
    refuse_unread,
    seconds_of,
    use_compilation_cache,
)
from transformer_jax.config_files import changed, to_json
from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.metrics import metric_facts
from transformer_jax.runs.files import refuse_foreign_files

EXIT = {"kept": 0, "dropped": 10, "undecided": 11}


def main(argv: list[str]) -> Any:
    """Tries the change and returns the result with its exit code; --list returns earlier tries."""
    parser = Parser("try_change", __doc__, takes_config=True, config_required=False)
    parser.add_argument("--base", help="folder of the base, its journal and runs: new or existing")
    parser.add_argument("--change", metavar="KEY=VALUE,...", help="change to the current base")
    parser.add_argument("--budget", default="10m", help="time after which no more runs begin (10m)")
    parser.add_allow()
    parser.add_json()
    parser.add_argument("--list", action="store_true", help="list all earlier tries")
    parser.add_argument("--metric", help="in a new --base: metric to judge by (loss, or accuracy)")
    parser.add_argument("--margin", type=float, help="in a new --base: difference to exceed (0)")
    parser.add_argument("--gate", help="in a new --base: simple method that the base has to beat")
    arguments = parser.read(argv)
    if arguments.base is None:
        raise InvalidInput("expected --base=DIR, the folder of the base, its journal and runs")
    budget = seconds_of("--budget", arguments.budget)
    change = _change(arguments.change) if arguments.change else {}
    if not change and not arguments.list:
        raise InvalidInput("expected --change=KEY=VALUE, or --list")

    from transformer_jax.studies.referee import Journal

    journal = Journal(arguments.base)
    if arguments.list:
        refuse_unread(arguments, ("change", "metric", "margin", "gate"), "with --list")
        return _show(journal)
    if journal.begun is None:
        refuse_foreign_files(journal.path, "--base", "journal", ("cells",))
    if journal.begun is None or arguments.config is not None:
        _refuse_what_cannot_begin(journal, arguments, change)
    use_compilation_cache()

    from transformer_jax.config_files import own_modules
    from transformer_jax.runs.directory import RunDirectory
    from transformer_jax.runs.interruption import StopSignal
    from transformer_jax.runs.progress import Progress
    from transformer_jax.studies.pairs import TrainedPairs
    from transformer_jax.studies.referee import Referee

    with RunDirectory(journal.path).locked("--base"), StopSignal() as stop:
        _begin(journal, arguments)
        progress = Progress(sys.stderr)
        allow = {*arguments.allow}
        if arguments.config is not None:  # the user's own file
            allow |= own_modules(arguments.config)
        referee = Referee(
            journal,
            lambda this: TrainedPairs(journal, this, progress, stop, allow),
            progress,
        )
        outcome = referee.attempt(change, budget)
        progress.close()
    outcome["metric"] = _metric_of(journal)
    print(told_of(outcome))
    return Ended(outcome, EXIT[outcome["outcome"]])


def _metric_of(journal: Any) -> str:
    return f"validation/{(journal.begun or {})['metric']}"


def _refuse_what_cannot_begin(journal: Any, arguments: Any, change: dict[str, str]) -> None:
    """Raises InvalidInput, before jax is loaded, if no journal can begin with the arguments."""
    from transformer_jax.metrics import SCORED
    from transformer_jax.studies.design import METHODS

    if arguments.config is None:
        raise InvalidInput(
            f"--base={journal.path}: nothing has begun there; give --config=FILE too"
        )
    judged = SCORED[:3]  # scores of every run; the others need generated text
    if arguments.metric is not None and arguments.metric not in judged:
        raise InvalidInput(f"--metric={arguments.metric}: expected one of {', '.join(judged)}")
    if arguments.gate is not None and arguments.gate not in METHODS:
        raise InvalidInput(
            f"--gate={arguments.gate}: expected one of {', '.join(METHODS)}"
            f"{suggest(arguments.gate, METHODS)}"
        )
    if not 0 <= (arguments.margin or 0.0) < float("inf"):
        raise InvalidInput(f"--margin={arguments.margin}: expected a number >= 0")
    for key, seed in arguments.config.seeds.items():
        if seed is not None:
            raise InvalidInput(
                f"--config={arguments.config_path}: seeds.{key}={seed}: the referee chooses the "
                "seeds; expected None"
            )
    if journal.may_begin():  # later a change applies to the kept base
        changed(arguments.config, texts=change)


def _begin(journal: Any, arguments: Any) -> None:
    """Writes a new folder's settings; refuses different ones once a change has been tried.

    The caller holds the lock on the folder.
    """
    if arguments.config is not None:
        from transformer_jax.studies.design import usual_metric

        metric = arguments.metric or usual_metric(arguments.config)
        gate = [arguments.gate, "chosen on the command line"] if arguments.gate else None
        facts = {"metric": metric, "larger_is_better": metric_facts(metric).larger_is_better}
        if journal.may_begin():
            journal.begin(
                arguments.config, {**facts, "margin": arguments.margin or 0.0, "gate": gate}
            )
            return
        if to_json(arguments.config) != to_json(journal.config()):
            raise InvalidInput(
                f"--config={arguments.config_path}: {journal.path} began with a different config; "
                "leave --config out, or begin in a new --base"
            )
    for flag in ("metric", "margin", "gate"):
        before, now = journal.begun[flag], getattr(arguments, flag)
        before = before[0] if flag == "gate" and before else before
        if now is not None and now != before:
            raise InvalidInput(
                f"--{flag}={now}: {journal.path} began with {before}; leave the flag out, or begin "
                "in a new --base"
            )


def _change(text: str) -> dict[str, str]:
    """Parses KEY=VALUE,KEY=VALUE into values by key; values can contain commas, as A=0.1,B=2."""
    from transformer_jax.studies.design import names_section

    change, parts = {}, []
    for part in re.split(r",(?=\w+\.[\w.]+=|seed=)", text):
        if parts and not part.startswith("seed=") and not names_section(part.partition("=")[0]):
            parts[-1] += f",{part}"  # a comma within a value
        else:
            parts.append(part)
    for part in parts:
        key, equals, value = part.partition("=")
        key = key.removeprefix("config.")
        if not equals or not key:
            raise InvalidInput(f"--change={text}: expected KEY=VALUE,KEY=VALUE,...")
        is_seed = key in ("seed", "seeds.initial", "seeds.order", "seeds.dropout")
        if is_seed or key in change:
            why = "the referee chooses the seeds" if is_seed else "it is given twice"
            raise InvalidInput(f"--change={text}: {key}: {why}")
        change[key] = value
    return change


def told_of(outcome: dict[str, Any]) -> str:
    """Returns two lines of text that describe the outcome of a try."""
    low, high = ("?" if bound is None else f"{bound:+.4g}" for bound in outcome["interval"])
    change = ",".join(f"{key}={value}" for key, value in outcome["change"].items())
    seen = outcome["estimate"] if outcome["estimate"] is not None else outcome.get("screening")
    estimate = "none" if seen is None else f"{seen:+.4g}"
    estimate += " in the screening" if outcome["estimate"] is None and seen is not None else ""
    evidence = ""
    if outcome["e_value"] is not None:
        evidence = f"; e-value {outcome['e_value']:.3g} of {outcome['needed']:.3g}"
    return (
        f"{outcome['outcome']}  try {outcome['try']}: {change}: {outcome['reason']}\n"
        f"{outcome['metric']} {estimate} [{low}, {high}], + is better; "
        f"{outcome['seeds']} fresh seeds{evidence}; {outcome['seconds']:.0f} s; "
        f"{outcome['level_left']:.0%} of the level is left"
    )


def _show(journal: Any) -> dict[str, Any]:
    from transformer_jax.studies.referee import spelled

    if journal.begun is None:
        raise InvalidInput(f"--base={journal.path}: nothing has begun there")
    base, rows = journal.base(), []
    for attempt in journal.tries():
        began = {"try": attempt.number, "change": attempt.change, "outcome": "unfinished"}
        rows.append({**(attempt.ended or began), "metric": _metric_of(journal)})
        unfinished = f"unfinished  try {attempt.number}: {spelled(attempt.change)}"
        print(told_of(rows[-1]) if attempt.ended else unfinished)
    print(f"kept so far: {spelled(base) or 'nothing'}")
    return {"base": base, "tries": rows, "level_left": journal.level_left()}


if __name__ == "__main__":
    execute(main)

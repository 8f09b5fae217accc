"""Tables of a study, for the terminal and as Markdown."""

import io
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from transformer_jax.runs.progress import Progress
from transformer_jax.studies.design import how_it_came
from transformer_jax.studies.outcomes import (
    BETTER,
    CANNOT_TELL,
    NO_VERDICT,
    REFUSED,
    SAME,
    UNRESOLVED,
    UNSTABLE,
    WORSE,
)
from transformer_jax.studies.study import Study

Rows = list[list[str]]
_WIDTH = 120  # of a table in a file
_NUMBER = r"(base|[-+–∞±\d.,%e/\[\] ]*)"


# ---------------------------------------------------------------- spelling


def spell(value: Any, digits: int = 4) -> str:
    """Returns a number for people; a dash for None."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return harmless(str(value))
    if isinstance(value, int):
        return f"{value:,}"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:.{digits}f}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.3g}"


def harmless(text: str) -> str:
    """Returns a text that cannot control a terminal: unprintable characters are escaped."""
    return text if text.isprintable() else repr(text)


def signed(value: float | str | None, digits: int = 4) -> str:
    """Returns a difference with its sign; an infinity may already be text, since JSON has none."""
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    return f"{value:+.{digits}f}" if value == 0 or round(value, digits) else f"{value:+.2g}"


def spell_interval(bounds: Sequence[float | None] | None, digits: int = 4) -> str:
    """Returns an interval in brackets."""
    if not bounds or any(bound is None for bound in bounds):
        return "–"
    low, high = bounds
    return f"[{signed(low, digits)}, {signed(high, digits)}]"


def spell_share(value: float, base: float, digits: int = 0) -> str:
    """Returns by how much a number exceeds another, in per cent; empty for at most 2 %."""
    if abs(value - base) <= 0.02 * base:
        return ""
    return f"{value / base - 1:+.{digits}%}" if base else "+∞ %"


def clock(seconds: float) -> str:
    """Returns seconds, minutes or hours, whichever reads best."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def spell_changes(changes: Mapping[str, Any]) -> str:
    """Returns an arm's changes, without the sections of the keys if that is unambiguous."""
    return ", ".join(f"{key.removeprefix('model.')}={value}" for key, value in changes.items())


# ---------------------------------------------------------------- simple methods


BASELINE_HEADS = ("simple method", "test loss", "test accuracy")


def baseline_rows(baselines: Mapping[str, Any]) -> Rows:
    """Returns one row per method; the gate's is marked."""
    method = (baselines["gate"] or {}).get("method")
    return [
        [
            name + " (gate)" * (name == method),
            spell(scores["test"].get("loss")),
            spell(scores["test"].get("accuracy")),
        ]
        for name, scores in baselines["scores"].items()
    ]


def direction(larger_is_better: bool) -> str:
    """Says which scores are better."""
    return "larger is better" if larger_is_better else "smaller is better"


def table_text(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a text table that fits the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for index, head in enumerate(heads):
        table.add_column(
            Text(harmless(head)), overflow="fold", justify="left" if index < 1 else "right"
        )
    for row in rows:
        table.add_row(*[Text(harmless(cell)) for cell in row])
    text = io.StringIO()
    seen = Console()
    asked = os.environ.get("COLUMNS", "")
    in_a_file = int(asked) if asked.isdecimal() else _WIDTH
    width = max(seen.width, 80) if seen.is_terminal else in_a_file
    console = Console(file=text, width=width, color_system=None)
    console.print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


# ---------------------------------------------------------------- the verdicts

HEADS = ("arm", "params", "mean", "± sd", "difference", "interval", "p (adjusted)", "verdict")


def verdict_rows(study: Study, verdicts: Mapping[str, Any]) -> Rows:
    """Returns one row per arm, the base first."""
    base = verdicts["base"]
    order = [base, *[name for name in verdicts["values"] if name != base]]
    rows = []
    for name in order:
        value = verdicts["values"][name]
        cost = study.arms.get(name, {}).get("cost", {})
        row = [name, spell(cost.get("parameters")), spell(value["mean"]), spell(value["deviation"])]
        if name == base:
            row += ["base", "", "", ""]
        else:
            arm = verdicts["arms"][name]
            row += [
                signed(arm.get("mean")),
                spell_interval(arm.get("interval")),
                spell(shown_p(arm), 3),
                arm["words"],
            ]
        rows.append(row)
    return rows


def show_verdicts(study: Study, verdicts: Mapping[str, Any], progress: Progress) -> None:
    """Prints the comparison."""
    progress.say(f"\n{verdicts['question']}\n{how_judged(verdicts)}")
    progress.say(table_text(HEADS, verdict_rows(study, verdicts)))
    for note in notes_on(verdicts):
        progress.say(note)


def how_judged(verdicts: Mapping[str, Any]) -> str:
    """Describes the metric, the seeds, and the error rate of the verdicts in three sentences."""
    seeds = ", ".join(map(str, verdicts["seeds"])) or "none"
    count = verdicts["contrasts"]
    intervals = (
        f"the intervals of all {count} comparisons hold" if count > 1 else "the interval holds"
    )
    return (
        f"{verdicts['metric']} over seeds {seeds}; {direction(verdicts['larger_is_better'])}, and "
        f"positive differences are better. Margin {verdicts['margin']:g}. Look {verdicts['look']} "
        f"at level {verdicts['level']:.3g}: {intervals} in {verdicts['coverage']:.1%} of studies."
    )


def expected_of(sealed: Mapping[str, Any], verdicts: Mapping[str, Any]) -> list[str]:
    """Returns the predicted range of each arm, and whether it came true."""
    sentences = []
    for name, ends in sealed["expected"].items():
        verdict = verdicts["arms"].get(name, {})
        decides = verdict.get("verdict") not in (CANNOT_TELL, REFUSED, NO_VERDICT, UNSTABLE)
        interval = verdict.get("interval") if decides else None
        low, high = ("any" if end is None else signed(end) for end in ends)
        sentences.append(
            f"{name}: {low} to {high}, found {spell_interval(interval)}: "
            f"{how_it_came(ends, interval)}"
        )
    return sentences


def notes_on(verdicts: Mapping[str, Any]) -> list[str]:
    """Returns remarks on the table, one line each."""
    notes = [f"exploratory: {reason}" for reason in verdicts["exploratory"]]
    if verdicts.get("revisions", 1) > 1:
        notes.append(
            f"warning: {verdicts['revisions']} revisions of transformer_jax computed these cells"
        )
    learned = verdicts.get("learned")
    notes += [f"has the base learned? {learned['told']}"] if learned else []
    if not verdicts.get("registered", True):
        notes.append(
            "the register beside the cells cannot be written: this look is not noted there"
        )
    for name, arm in verdicts["arms"].items():
        if arm["verdict"] == UNRESOLVED and arm.get("seeds_needed"):
            seeds = arm["seeds_needed"]
            notes.append(f"{name}: {seeds} seeds would settle the margin with 80 % power")
        if shown_for_new_text(arm):
            notes.append(f"{name}: also beyond this text: {shown_for_new_text(arm)}")
        if looks := arm["asked_before"]:
            several = "s" * (len(looks) > 1)
            notes.append(
                f"{name}: shown before in {len(looks)} look{several} of other studies, so this "
                f"look has level {arm['level']:.3g}"
            )
    return notes


def shown_for_new_text(arm: Mapping[str, Any]) -> str:
    """Says whether better or worse holds for new text too; empty for other words."""
    interval = arm.get("beyond_this_text")
    if not interval or arm["verdict"] not in (BETTER, WORSE):
        return ""
    return "yes" if interval["holds"] else "not shown"


def shown_p(arm: Mapping[str, Any]) -> float | None:
    """Returns the adjusted p of an arm's word: of equivalence for no different."""
    return arm.get("p_equivalence" if arm["verdict"] == SAME else "p")


def as_markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table."""

    def line(cells: Iterable[str]) -> str:
        plain = (" ".join(cell.split()) for cell in cells)
        return "| " + " | ".join(re.sub(r"([\\|`<*])", r"\\\1", cell) for cell in plain) + " |"

    listed = [list(row) for row in rows]
    rule = "|" + "|".join(" ---: " if right else " --- " for right in numeric(heads, listed)) + "|"
    return "\n".join([line(heads), rule, *[line(row) for row in listed]]) + "\n"


def numeric(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    """Returns the columns that hold only numbers, to be right-aligned."""
    return [all(re.fullmatch(_NUMBER, row[column]) for row in rows) for column in range(len(heads))]

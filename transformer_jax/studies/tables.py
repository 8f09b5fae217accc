"""Tables of a study, for the terminal and as Markdown."""

import io
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from transformer_jax.studies.outcomes import Word

Rows = list[list[str]]
_WIDTH = 120  # of a table in a file
_NUMBER = r"(base|[-+–∞±\d.,%e/\[\] ]*)"
_NOT_FINITE = {"nan": "–", "inf": "∞", "-inf": "-∞"}


def spell(value: Any, digits: int = 4) -> str:
    """Returns a value as text: a readable number, a dash for None or nan, else escaped text."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return harmless(str(value))
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return _NOT_FINITE[str(value)]
    return f"{value:.{digits}f}" if 1e-3 <= abs(value) < 1e5 or value == 0 else f"{value:.3g}"


def spell_cell(key: str, value: Any) -> str:
    """Returns a score, whose key has a slash, as `spell`, and an option with all digits."""
    return repr(value) if isinstance(value, float) and "/" not in key else spell(value)


def harmless(text: str) -> str:
    """Returns a string with unprintable characters escaped, so that none control a terminal."""
    return text if text.isprintable() else repr(text)


def signed(value: float | str | None, digits: int = 4) -> str:
    """Returns a number as text with a sign, or a dash for None; text is returned unchanged."""
    if isinstance(value, str):
        return value
    if value is None:
        return "–"
    if not math.isfinite(value):
        return _NOT_FINITE[str(float(value))]
    return f"{value:+.{digits}f}" if value == 0 or round(value, digits) else f"{value:+.2g}"


def spell_interval(bounds: Sequence[float | None] | None, digits: int = 4) -> str:
    """Returns an interval as text in brackets, or a dash without bounds."""
    if not bounds or any(bound is None for bound in bounds):
        return "–"
    return f"[{', '.join(signed(bound, digits) for bound in bounds)}]"


def clock(seconds: float) -> str:
    """Returns a duration as text, in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


CHANGE_HEADS = ("same start", "Δ logits", "Δ loss", "Δ gradient", "input RMS")


def change_cells(certificate: Mapping[str, Any]) -> list[str]:
    """Returns table cells for CHANGE_HEADS; `certificate` is a result of check_manipulation."""
    logits, gradient, rms = (spell(certificate[k], 3) for k in ("logits", "gradient", "input_rms"))
    return [f"{certificate['paired']:.1%}", logits, signed(certificate["loss"]), gradient, rms]


def unmatched(costs: Mapping[str, Mapping[str, float]], base: str) -> dict[str, str]:
    """Returns differences from the base's costs as text, by arm, if they are above 2 %."""
    found: dict[str, list[str]] = {}
    for name, cost in costs.items():
        for what in ("parameters", "flops", "counted", "updates"):
            value, of_base = cost[what], costs[base][what]
            if abs(value - of_base) > 0.02 * of_base:
                share = f"{value / of_base - 1:+.1%}" if of_base else "+∞ %"
                found.setdefault(name, []).append(f"{what} {share}")
    return {name: ", ".join(shares) for name, shares in found.items()}


BASELINE_HEADS = ("simple method", "test loss", "test accuracy")


def baseline_rows(baselines: Mapping[str, Any]) -> Rows:
    """Returns table rows, one per simple method; the gate is marked."""
    method, metrics = (baselines["gate"] or {}).get("method"), ("loss", "accuracy")
    return [
        [name + " (gate)" * (name == method), *[spell(scores["test"].get(m)) for m in metrics]]
        for name, scores in baselines["scores"].items()
    ]


def direction(larger_is_better: bool) -> str:
    """Returns the direction of a metric as text."""
    return "larger is better" if larger_is_better else "smaller is better"


def table_text(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table as plain text that fits the terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for index, head in enumerate(heads):
        justify: Literal["left", "right"] = "right" if index else "left"
        table.add_column(Text(harmless(head)), overflow="fold", justify=justify)
    for row in rows:
        table.add_row(*[Text(harmless(cell)) for cell in row])
    terminal, columns = Console(), os.environ.get("COLUMNS", "")
    width = max(int(columns), 80) if columns.isdecimal() else _WIDTH
    if terminal.is_terminal:
        width = max(terminal.width, 80)
    text = io.StringIO()
    Console(file=text, width=width, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


HEADS = ("arm", "params", "mean", "± sd", "difference", "interval", "p (adjusted)", "verdict")


def verdict_rows(arms: Mapping[str, Mapping], verdicts: Mapping[str, Any]) -> Rows:
    """Returns table rows, one per arm, the base first; `arms` has the facts from study.json."""
    base = verdicts["base"]
    rows = []
    for name in {base: None, **verdicts["values"]}:
        value, found = verdicts["values"][name], ["base", "", "", ""]
        parameters = arms.get(name, {}).get("cost", {}).get("parameters")
        if name != base:
            arm = verdicts["arms"][name]
            # The adjusted p is the one behind the word: for "no different", that of equivalence.
            p = arm.get("p_equivalence" if arm["verdict"] == Word.SAME else "p")
            found = [signed(arm.get("mean")), spell_interval(arm.get("interval")), spell(p, 3)]
            found.append(arm["words"])
        rows.append([name, *map(spell, (parameters, value["mean"], value["deviation"])), *found])
    return rows


def how_judged(verdicts: Mapping[str, Any]) -> str:
    """Returns three sentences on the metric, the seeds, and the error rate of the verdicts."""
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
    """Returns a line for each prediction: the expected range, the result, and their agreement."""
    sentences = []
    for name, ends in sealed["expected"].items():
        arm = verdicts["arms"].get(name, {})
        decides = arm.get("verdict") not in Word.UNDECIDED
        interval = arm.get("interval") if decides else None
        came = "not known"
        if interval is not None:
            low, least = (-math.inf if pair[0] is None else pair[0] for pair in (ends, interval))
            high, most = (math.inf if pair[1] is None else pair[1] for pair in (ends, interval))
            came = "not as expected" if most < low or high < least else "open"
            if low <= least and most <= high:
                came = "as expected"
        predicted = " to ".join("any" if end is None else signed(end) for end in ends)
        sentences.append(f"{name}: {predicted}, found {spell_interval(interval)}: {came}")
    return sentences


def notes_on(verdicts: Mapping[str, Any]) -> list[str]:
    """Returns remarks on the verdicts, one line each."""
    notes = [f"exploratory: {reason}" for reason in verdicts["exploratory"]]
    if (revisions := verdicts.get("revisions", 1)) > 1:
        notes.append(f"warning: {revisions} revisions of transformer_jax computed these cells")
    if learned := verdicts.get("learned"):
        notes.append(f"has the base learned? {learned['told']}")
    if not verdicts.get("registered", True):
        notes.append("the register next to the cells cannot be written, so it lacks this look")
    shown = dict[str, list[str]]()
    for name, arm in verdicts["arms"].items():
        if arm["verdict"] == Word.UNRESOLVED and (seeds := arm.get("seeds_needed")):
            notes.append(f"{name}: {seeds} seeds would settle the margin with 80 % power")
        beyond = arm.get("beyond_this_text")
        if beyond and arm["verdict"] in (Word.BETTER, Word.WORSE):
            holds = "yes" if beyond["holds"] else "not shown"
            notes.append(f"{name}: also beyond this text: {holds}")
        if looks := arm["asked_before"]:
            counted = f"{len(looks)} look{'s' * (len(looks) > 1)} of other studies"
            note = f"shown before in {counted}, so this look has level {arm['level']:.3g}"
            shown.setdefault(note, []).append(name)
    return notes + [f"{', '.join(names)}: {note}" for note, names in shown.items()]


def as_markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table; columns that hold only numbers are right-aligned."""

    def line(cells: Iterable[str]) -> str:
        plain = (" ".join(cell.split()) for cell in cells)
        return "| " + " | ".join(re.sub(r"([\\|`<*])", r"\\\1", cell) for cell in plain) + " |"

    listed = [list(row) for row in rows]
    columns = zip(*listed, strict=True) if listed else [()] * len(heads)
    numeric = (all(re.fullmatch(_NUMBER, cell) for cell in column) for column in columns)
    rule = "|" + "|".join(" ---: " if right else " --- " for right in numeric) + "|"
    return "\n".join([line(heads), rule, *map(line, listed)]) + "\n"

"""Verdicts on scores that other code made, kept in a folder: a page and a register.

The folder's register holds each look at the scores, so that the next one, at more of them, has the
level of a further look.
"""

import contextlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.runs.files import as_plain, replace, write_json
from transformer_jax.studies.asking.register import Register
from transformer_jax.studies.asking.study import now
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.scores import Result, judge, outcomes_of
from transformer_jax.studies.inference.statistics import FOR_MEANS
from transformer_jax.studies.reporting import tables
from transformer_jax.studies.reporting.page import Page

SCORES = "scores"  # an event of the register: a look at scores of other code
_WRITTEN = ("verdicts.json", "report.md", "report.html")
HEADS = ("arm", "runs", "difference", "interval", "p (adjusted)", "verdict")


def judge_in(
    folder: Path, rows: Any, earlier_looks: Sequence[int] = (), **asked: Any
) -> list[Result]:
    """Judges scores as `judge` does, as a further look where the folder has earlier ones.

    Args:
      folder: gets verdicts.json, report.md, report.html, the forest plot and register.jsonl.
      rows: see judge.
      earlier_looks: how many seeds each comparison had that no register knows.
      **asked: base, margin, larger_is_better and more, see judge.
    Returns:
      What judge returns.
    Raises:
      InvalidInput: the folder holds something else, or see judge.
    """
    register = Register(folder)
    there = [name for name in ("study.json", *_WRITTEN) if (folder / name).exists()]
    if there and not any(row["event"] == SCORES for row in register.rows()):
        raise InvalidInput(
            f"--workdir={folder}: {there[0]} of something else is there; choose another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"--workdir={folder}: {error.strerror}") from error
    outcomes = outcomes_of(rows)
    held = {arm: {str(s): list(o) for s, o in by_seed.items()} for arm, by_seed in outcomes.items()}
    base = asked["base"]
    before = [
        row
        for row in register.rows()
        if row["event"] == SCORES and row["asked"]["base"] == base
        if row["outcomes"].keys() & held.keys() != {base}
    ]
    # The same scores asked otherwise, with fewer primary arms say, are a further look.
    primary = asked.get("primary")
    listed = {"primary": None if primary is None else sorted(primary)}
    now_asked = json.loads(json.dumps(asked | listed))
    looks = {_text([row["outcomes"], row["asked"]]): row for row in before}
    is_known = looks.pop(_text([held, now_asked]), None) is not None
    counts = [len(row["outcomes"][base]) for row in looks.values()]
    widest = max((_family(row) for row in looks.values()), default=0)
    results = judge(rows, earlier_looks=[*earlier_looks, *counts], family=widest, **asked)
    words = {result.arm: result.reason for result in results}
    if not is_known:
        register.add(
            {"event": SCORES, "time": now(), "asked": now_asked, "words": words, "outcomes": held}
        )
    write_json(folder, "verdicts.json", as_plain(results))
    page = _page(folder, results, result_rows(results, outcomes), asked, counts)
    replace(folder, "report.md", page.markdown())
    replace(folder, "report.html", page.html())
    return results


def _family(row: Mapping[str, Any]) -> int:
    """How many comparisons an earlier look asked together."""
    primary = row["asked"].get("primary")
    return len(row["outcomes"]) - 1 if primary is None else len(primary)


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def result_rows(
    results: Sequence[Result], outcomes: Mapping[str, Mapping[int, Outcome]]
) -> tables.Rows:
    """One row an arm."""
    return [
        [
            result.arm,
            tables.spell(len(outcomes[result.arm])),
            tables.signed(result.estimate),
            tables.spell_interval(result.interval),
            tables.spell(result.p, 3),
            result.reason,
        ]
        for result in results
    ]


def _page(
    folder: Path,
    results: Sequence[Result],
    rows: tables.Rows,
    asked: Mapping[str, Any],
    earlier: Sequence[int],
) -> Page:
    better = "larger" if asked["larger_is_better"] else "smaller"
    page = Page(f"What differs from {asked['base']}?")
    page.heading("Verdicts")
    page.paragraph(
        f"Compared with {asked['base']}; {better} is better, a difference of + is better; margin "
        f"{asked['margin']:g}; looks at other scores before this one: {len(earlier)}; "
        f"intervals hold together in {1 - FOR_MEANS * results[0].level:.1%} of studies"
    )
    page.table(HEADS, rows)
    arms = {
        r.arm: as_plain({**r._asdict(), "mean": r.estimate})
        for r in results
        if r.estimate is not None and math.isfinite(r.estimate)
    }
    verdicts = {"metric": "value", "margin": asked["margin"], "base": asked["base"], "arms": arms}
    with contextlib.suppress(ImportError):  # matplotlib belongs to the extra `train`
        from transformer_jax.studies.reporting.figures import draw_forest

        page.figure("forest.svg", draw_forest(folder, verdicts), "Paired differences")
    return page

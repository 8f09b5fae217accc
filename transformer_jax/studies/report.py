"""The report of a study, as report.html and as report.md with figures next to it."""

import base64
import contextlib
import html
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.runs.appended import AppendedRows
from transformer_jax.runs.files import as_plain, replace, write_json
from transformer_jax.runs.progress import Progress
from transformer_jax.studies import tables
from transformer_jax.studies.cells import DIVERGED, DONE
from transformer_jax.studies.charts import best_of_sweeps
from transformer_jax.studies.judging import judge_study
from transformer_jax.studies.outcomes import Outcome, Word
from transformer_jax.studies.scores import Result, judge, outcomes_of, unpaired
from transformer_jax.studies.statistics import FOR_MEANS, clopper_pearson
from transformer_jax.studies.study import NAME, Study, now
from transformer_jax.studies.tables import as_markdown, signed, spell, spell_cell, spell_interval

_STYLE = """
body { margin: 0 auto; max-width: 64rem; padding: 1.5rem 1rem 4rem; font: 16px/1.5 system-ui,
  sans-serif; color: #1b1f24; background: #fff; overflow-x: auto; }
h1 { font-size: 1.6rem; line-height: 1.25; }
h2 { font-size: 1.2rem; margin-top: 2.5rem; border-bottom: 1px solid #d1d9e0; }
p, li { max-width: 48rem; }
table { border-collapse: collapse; font-size: 0.9rem; margin: 0.75rem 0; }
th, td { padding: 0.3rem 0.7rem; border-bottom: 1px solid #d1d9e0; text-align: left;
  vertical-align: top; }
[style] { white-space: nowrap; font-variant-numeric: tabular-nums; }
td:last-child { min-width: 12rem; }
img { max-width: 100%; }
em { color: #59636e; font-size: 0.9rem; }
pre { background: #f6f8fa; padding: 0.75rem; overflow-x: auto; }
"""
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; style-src 'unsafe-inline'; img-src data:">
<meta name="viewport" content="width=device-width, initial-scale=1">
"""


class Page:
    """A Markdown page that is written section by section; empty parts are left out."""

    def __init__(self, title: str) -> None:
        """Begins the page with its title."""
        self._title, self._parts = title, [f"# {_plain(title)}"]
        self._pictures: dict[str, bytes] = {}

    def heading(self, text: str) -> None:
        """Begins a section with a heading."""
        self._parts.append(f"## {_plain(text)}")

    def paragraph(self, text: str) -> None:
        """Adds a paragraph."""
        if text:
            self._parts.append(_plain(text))

    def bullets(self, items: Iterable[str]) -> None:
        """Adds a bulleted list."""
        if lines := [f"- {_plain(item)}" for item in items]:
            self._parts.append("\n".join(lines))

    def code(self, text: str) -> None:
        """Adds preformatted lines."""
        self._parts.append("\n".join(f"    {line}" for line in text.splitlines()))

    def table(self, heads: Sequence[str], rows: Iterable[Sequence[str]], heading: str = "") -> None:
        """Adds a table, under `heading` if given; columns of numbers are right-aligned."""
        if heading:
            self.heading(heading)
        if listed := [list(row) for row in rows]:
            self._parts.append(as_markdown(heads, listed).rstrip())

    def figure(self, name: str, svg: bytes, caption: str) -> None:
        """Adds a figure; report.md refers to the file `name`, and report.html embeds the SVG."""
        self._pictures[name] = svg
        self._parts += [f"![{_plain(caption)}]({name})", f"*{_plain(caption)}*"]

    def markdown(self) -> str:
        """Returns the page as Markdown."""
        return "\n\n".join(self._parts) + "\n"

    def html(self) -> str:
        """Returns the page as one HTML file that uses no network and runs no script."""
        from markdown_it import MarkdownIt

        body = MarkdownIt("commonmark", {"html": False}).enable("table").render(self.markdown())
        for name, svg in self._pictures.items():
            data = f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
            body = body.replace(f'<img src="{name}"', f'<img src="{data}"')
        title = f"<title>{html.escape(self._title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        return f"{_HEAD}{title}<body>\n{body}</body>\n</html>\n"

    def write(self, folder: Path) -> Path:
        """Writes report.md and report.html, and returns the path of the latter."""
        replace(folder, "report.md", self.markdown())
        return replace(folder, "report.html", self.html())


def _plain(text: str) -> str:
    """Returns a string on one line, escaped so that nothing in it is Markdown."""
    plain = re.sub(r"([\\`<*_\[\]&])", r"\\\1", " ".join(text.split()))
    return re.sub(r"^(\d*)([#+\->=~.)])", r"\1\\\2", plain)


_SCORES = "scores"  # an event in the register: a look at scores from other code
_WRITTEN = ("verdicts.json", "report.md", "report.html")
HEADS = ("arm", "runs", "difference", "interval", "p (adjusted)", "verdict")


def judge_in(folder: Path, rows: Any, earlier_looks: Sequence = (), **asked: Any) -> list[Result]:
    """Judges scores with `judge`, which is told the looks that the folder's register records.

    Writes verdicts.json, report.md, report.html, the forest plot and register.jsonl to the folder.

    The arguments are as in `judge`; `earlier_looks` are looks that the register lacks.

    Raises:
      InvalidInput: The folder contains something else, or `judge` refuses an argument.
    """
    register = AppendedRows(folder, NAME)
    rows_before = register.rows()
    shown = [row for row in rows_before if row.get("event") == _SCORES]
    present = [name for name in ("study.json", *_WRITTEN) if (folder / name).exists()]
    present += [NAME] if rows_before else []
    if present and not shown:
        raise InvalidInput(
            f"--workdir={folder}: it contains {present[0]} from another source; choose a new folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"--workdir={folder}: {error.strerror}") from error
    outcomes = outcomes_of(rows)
    held = {arm: {str(s): list(o) for s, o in by_seed.items()} for arm, by_seed in outcomes.items()}
    base, primary = asked["base"], asked.get("primary")
    listed = {"primary": None if primary is None else sorted(primary)}
    now_asked = json.loads(json.dumps(asked | listed))
    # The same scores with a different question, e.g. fewer primary arms, are a further look.
    looks = {
        json.dumps([row["outcomes"], row["asked"]], sort_keys=True): row
        for row in shown
        if row["asked"]["base"] == base and row["outcomes"].keys() & held.keys() != {base}
    }
    is_known = looks.pop(json.dumps([held, now_asked], sort_keys=True), None) is not None
    counts = [len(row["outcomes"][base]) for row in looks.values()]
    families = [
        len(row["outcomes"]) - 1 if (chosen := row["asked"]["primary"]) is None else len(chosen)
        for row in looks.values()
    ]
    looks_before = [*earlier_looks, *counts]
    results = judge(rows, earlier_looks=looks_before, family=max(families, default=0), **asked)
    if not is_known:
        words = {result.arm: result.reason for result in results}
        register.add(
            {"event": _SCORES, "time": now(), "asked": now_asked, "words": words, "outcomes": held}
        )
    write_json(folder, "verdicts.json", as_plain(results))
    page = Page(f"What differs from {base}?")
    page.heading("Verdicts")
    page.paragraph(
        f"Compared with {base}; {tables.direction(asked['larger_is_better'])}, a difference of + "
        f"is better; margin {asked['margin']:g}; looks at other scores before this one: "
        f"{len(counts)}; intervals hold together in {1 - FOR_MEANS * results[0].level:.1%} of "
        "studies"
    )
    page.table(HEADS, result_rows(results, outcomes))
    for told in unpaired(outcomes):
        page.paragraph(told)
    arms = {
        result.arm: as_plain({**result._asdict(), "mean": result.estimate})
        for result in results
        if math.isfinite(result.estimate)
    }
    verdicts = {"metric": "value", "margin": asked["margin"], "base": base, "arms": arms}
    with contextlib.suppress(ImportError):  # matplotlib belongs to the extra `train`
        from transformer_jax.studies.figures import draw_forest

        page.figure("forest.svg", draw_forest(folder, verdicts), "Paired differences")
    page.write(folder)
    return results


def result_rows(
    results: Sequence[Result], outcomes: Mapping[str, Mapping[int, Outcome]]
) -> tables.Rows:
    """Returns table rows, one per arm, with the columns HEADS."""
    rows = []
    for found in results:
        numbers = signed(found.estimate), spell_interval(found.interval), spell(found.p, 3)
        count, paired = len(outcomes[found.arm]), len(found.seeds)
        runs = spell(count) if paired in (0, count) else f"{paired} of {count}"
        rows.append([found.arm, runs, *numbers, found.reason])
    return rows


_LISTED = 8  # most arms named at the head of the page
_CAPTIONS = {
    "forest": "Rings: seeds. Bars: simultaneous intervals. Shaded: within the margin.",
    "updates": "Updates until each run reaches the target; crosses mark runs that do not.",
    "sweep": "Score over the option: mean and range over seeds.",
    "curves": "Learning curves: mean and range over seeds.",
}


def judge_and_report(study: Study, progress: Progress) -> dict[str, Any]:
    """Judges a study, writes all its files, and prints and returns the verdicts."""
    verdicts = judge_study(study)
    study.write_scores()
    report = write_report(study)
    progress.say(f"\n{verdicts['question']}\n{tables.how_judged(verdicts)}")
    progress.say(tables.table_text(tables.HEADS, tables.verdict_rows(study.arms, verdicts)))
    for note in tables.notes_on(verdicts):
        progress.say(note)
    progress.say(f"study   {study.path}/ (study.json, scores.csv, verdicts.json, ...)")
    progress.say(f"report  {report}")
    return verdicts


def write_report(study: Study) -> Path:
    """Writes a study's report and its figures; returns the path of report.html."""
    verdicts, sealed, record = study.verdicts(), study.sealed, study.record
    figures: dict[str, bytes] = {}
    with contextlib.suppress(ImportError):  # matplotlib belongs to the extra `train`
        from transformer_jax.studies.figures import draw_figures

        figures = draw_figures(study, verdicts)
    page = Page(sealed["question"])
    page.paragraph(" ".join(answers(verdicts)))
    page.table(tables.HEADS, tables.verdict_rows(study.arms, verdicts))
    for name in ("forest", "updates", "sweep"):
        if name in figures:
            page.figure(f"{name}.svg", figures[name], _CAPTIONS[name])
    page.bullets([*tables.notes_on(verdicts), *best_of_sweeps(study, verdicts)])
    page.heading("How it was judged")
    page.paragraph(tables.how_judged(verdicts))
    page.paragraph(f"Margin {sealed['margin']:g}: {sealed['margin_reason']}.")
    page.paragraph(f"Predicted beforehand: {sealed['prediction']}")
    page.bullets(tables.expected_of(sealed, verdicts))
    page.paragraph(f"Sealed {record['sealed_at']} with the hash {record['seal'][:12]}.")
    if record["baselines"]["scores"]:
        page.heading("Has the base learned?")
        sentence = "There is no gate."
        if learned := verdicts["learned"]:
            told = f"{learned['told'][:1].upper()}{learned['told'][1:]}"
            sentence = f"{told}. Gate: {learned['reason']}."
        page.paragraph(sentence)
        page.table(tables.BASELINE_HEADS, tables.baseline_rows(record["baselines"]))
    if "curves" in figures:
        page.heading("Learning curves")
        page.figure("curves.svg", figures["curves"], _CAPTIONS["curves"])
    _costs(page, study)
    _changes(page, study)
    _tuning(page, study)
    _failures(page, study, verdicts)
    rows = []
    for look in study.looks():
        words = "; ".join(f"{name}: {word}" for name, word in look["verdicts"].items())
        seeds = str(len(look["seeds"]))
        rows.append([look["time"], str(look["look"]), seeds, f"{look['level']:.3g}", words])
    page.table(("time", "look", "seeds", "level", "verdicts"), rows, "Looks")
    _environment(page, record)
    return page.write(study.path)


def answers(verdicts: Mapping[str, Any]) -> list[str]:
    """Returns one sentence per arm with its verdict and numbers; arms after 8 are only counted."""
    base, sentences, others = verdicts["base"], [], dict[str, list[str]]()
    for name, arm in verdicts["arms"].items():
        # With a target, no mean is judged, and the words state the counts.
        verdict = "" if arm.get("mean") is None else arm["verdict"]
        if verdict in (Word.BETTER, Word.WORSE):
            low, high = sorted(map(abs, arm["interval"]))
            size = f"by {abs(arm['mean']):.3g} (interval {low:.3g} to {high:.3g})"
            sentences.append(f"{name} is {verdict} than {base} {size}.")
        elif verdict == Word.SAME:
            margin = f"{verdicts['margin']:g}"
            sentences.append(f"{name} is no different from {base} within {margin}.")
        elif verdict == Word.UNRESOLVED:
            needed = arm.get("seeds_needed")
            settle = f"; {needed} seeds would settle it" if needed else ""
            sentences.append(f"{name} could not be told apart from {base}{settle}.")
        else:
            others.setdefault(arm["words"], []).append(name)
    sentences += [f"{', '.join(names)}: {words}." for words, names in others.items()]
    if len(sentences) > _LISTED:
        sentences[_LISTED:] = [f"{len(sentences) - _LISTED} more are in the table."]
    return sentences


def _costs(page: Page, study: Study) -> None:
    counted = study.record["counted"]
    fields = ("parameters", "without_embeddings", "flops", "counted", "updates")
    costs = {name: arm["cost"] for name, arm in study.arms.items()}
    rows = []
    for name, arm in study.arms.items():
        nbytes = arm.get("peak_bytes")
        memory = spell(nbytes / 2**20 if nbytes else None, 1)
        tuned = spell(arm.get("tuning", {}).get("runs", 0))
        rows.append([name, *[spell(costs[name][field]) for field in fields], memory, tuned])
    heads = ["arm", "parameters", "without embeddings", f"FLOPs per {counted.removesuffix('s')}"]
    heads += [counted, "updates", "memory, MiB", "tuning runs"]
    page.table(heads, rows, "What each arm costs")
    apart = tables.unmatched(costs, study.base).items()
    page.bullets(f"{name}: {differences} from the base's" for name, differences in apart)
    matched = {name: arm["matched"] for name, arm in study.arms.items() if arm["matched"]}
    page.bullets(f"{name}: {solved} solved for" for name, solved in matched.items())


def _changes(page: Page, study: Study) -> None:
    rows = []
    for name, arm in study.arms.items():
        found = arm["certificate"]
        apart = [_few(found[part]) for part in ("only_here", "only_base")]
        rows.append([name, *tables.change_cells(found), *apart])
    heads = ["arm", *tables.CHANGE_HEADS, "extra parameters", "missing parameters"]
    page.table(heads, rows, "Effect of each change before training")
    page.paragraph(
        "With seed 0. Same start: share of the arm's parameters that have the base's initial "
        "values. Δ: relative difference of logits and gradients from the base, and the difference "
        "of losses."
    )
    if keys := list(dict.fromkeys(key for arm in study.arms.values() for key in arm["changes"])):
        rows = [[a, *[spell_cell(key, study.value_of(a, key)) for key in keys]] for a in study.arms]
        page.table(["arm", *keys], rows)


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:2])
    return f"{shown} and {len(names) - 2} more" if len(names) > 2 else shown or "–"


def _tuning(page: Page, study: Study) -> None:
    tuned = {name: arm["tuning"] for name, arm in study.arms.items() if "tuning" in arm}
    if not tuned:
        return
    asked = next(iter(tuned.values()))
    rows = []
    for name, tuning in tuned.items():
        if tuning["grid"] == asked["grid"]:
            means = [
                "diverged" if None in scores else spell(sum(scores) / len(scores))
                for scores in tuning["scores"]
            ]
            rows.append(
                [name, spell_cell("chosen", tuning["chosen"]), *means, tuning["refused"] or "–"]
            )
    grid = [f"{value:g}" for value in asked["grid"]]
    page.table(["arm", f"chosen {asked['key']}", *grid, "note"], rows, "Tuning")
    page.paragraph(
        f"Mean {study.metric} on the validation split over seeds "
        f"{', '.join(map(str, asked['seeds']))}, which no verdict uses. Chosen: the optimum of a "
        "parabola over the logarithm."
    )


def _failures(page: Page, study: Study, verdicts: Mapping[str, Any]) -> None:
    rows = [
        [cell.arm, str(cell.seed), state, cell.reason() if state != DIVERGED else "an outcome"]
        for cell in study.cells()
        if (state := cell.state()) != DONE
    ]
    if not rows:
        return
    page.table(["arm", "seed", "state", "reason"], rows, "Failures")
    diverged = []
    for name, value in verdicts["values"].items():
        if count := value["diverged"]:
            runs = count + value["n"]
            bounds = spell_interval(clopper_pearson(count, runs), 2)
            diverged.append(f"{name}: {count} of {runs} diverged, exact interval {bounds}")
    page.bullets(diverged)


def _environment(page: Page, record: Mapping[str, Any]) -> None:
    around = record["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in around["packages"].items())
    revision = (around["git"] or {}).get("revision")
    rows = [
        ["device", f"{around['device']['count']} x {around['device']['kind']}"],
        ["members at a time", f"{record['members']}; {record['timing']}"],
        ["python", str(around["python"])],
        ["platform", str(around["platform"])],
        ["packages", packages],
        ["transformer_jax", f"{around['version']}, revision {revision}"],
    ]
    page.table(["what", "value"], rows, "Environment and commands")
    page.code("\n".join(dict.fromkeys(record["commands"])))

"""The same question on several data sets: suite.json, suite.md and suite.html."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.runs.files import as_plain, inside, replace, write_json
from transformer_jax.studies.asking.gate import METHODS
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.asking.suite import FILE
from transformer_jax.studies.judging.suite import judge_suite
from transformer_jax.studies.reporting.page import (
    aside,
    escaped,
    listed,
    paragraph,
    place_for,
    section,
    table,
    whole_page,
)
from transformer_jax.studies.reporting.tables import (
    Rows,
    as_markdown,
    signed,
    spell,
    spell_interval,
)

_UNIT = (
    "One unit is the way from a guess (the most frequent token or class) to a simple method: a "
    "base above 1 has learned more than that."
)
_DATA_HEADS = ("data set", "metric", "base", "a guess", "a simple method", "base in units")
_ARM_HEADS = ("arm", "data set", "difference", "interval", "verdict", "in units", "shrunken")
_SCORE_HEADS = ("arm", "data sets x seeds", "interquartile mean", "less the base's", "interval")
_SCORE_HEADS += ("probability of improvement", "its interval")


def write_suite(workdir: str | Path, names: list[str]) -> dict[str, Any]:
    """Judges a suite whose studies are judged, and writes its files.

    Args:
      workdir: of the suite.
      names: of its data sets.
    Returns:
      What suite.json holds.
    """
    workdir = Path(workdir)
    judged = as_plain(judge_suite({name: Study(inside(workdir, name)) for name in names}))
    write_json(workdir, FILE, judged)
    replace(workdir, "suite.md", suite_text(judged))
    replace(workdir, "suite.html", page_of(judged))
    return judged


def suite_text(suite: Mapping[str, Any]) -> str:
    """The suite as Markdown."""
    parts = [f"# {suite['question']}", *_told(suite), as_markdown(_ARM_HEADS, _arm_rows(suite))]
    parts += [as_markdown(_DATA_HEADS, _data_rows(suite)), _UNIT]
    scores = _score_rows(suite)
    return "\n\n".join([*parts, *([as_markdown(_SCORE_HEADS, scores)] if scores else [])]) + "\n"


def _told(suite: Mapping[str, Any]) -> list[str]:
    lines = []
    for arm, its in suite["arms"].items():
        lines.append(f"- **{arm}: {its['word']}**{_numbers(its)}")
        lines += [f"  - left out: {name}: {why}" for name, why in its["left_out"].items()]
    return ["\n".join(lines)]


def _numbers(its: Mapping[str, Any]) -> str:
    if "mean" not in its:
        return ""
    same = "" if its["p_same"] >= 0.05 else f" (not one effect on all, p = {its['p_same']:.2g})"
    return (
        f": {signed(its['mean'])} {spell_interval(its['interval'])} over "
        f"{sum('effect' in row for row in its['data'].values())} data sets, margin "
        f"{its['margin']:.2g}; data sets differ by {spell(its['deviation'])}{same}, another one is "
        f"expected in {spell_interval(its['prediction'])}"
    )


def _arm_rows(suite: Mapping[str, Any]) -> Rows:
    return [
        [
            arm,
            name,
            signed(row["mean"]),
            spell_interval(row["interval"]),
            row["words"],
            signed(row.get("effect")),
            _with_interval(row),
        ]
        for arm, its in suite["arms"].items()
        for name, row in its["data"].items()
    ]


def _with_interval(row: Mapping[str, Any]) -> str:
    if "shrunken" not in row:
        return "–"
    return f"{signed(row['shrunken'])} {spell_interval(row['shrunken_interval'])}"


def _data_rows(suite: Mapping[str, Any]) -> Rows:
    rows = []
    for name, its in suite["data"].items():
        if "unit" in its:
            unit = its["unit"]
            simple = f"{spell(unit['simple'])} ({METHODS[unit['method']]})"
            cells = [spell(unit["guess"]), simple, spell(its["score"], 3)]
        else:
            cells = [its["no_unit"], "–", "–"]
        rows.append([name, its["metric"], spell(its["base"]), *cells])
    return rows


def _score_rows(suite: Mapping[str, Any]) -> Rows:
    return [
        [
            arm,
            spell(its["cells"]),
            spell(scores["arm"]),
            signed(scores["difference"]),
            spell_interval(scores["interval"]),
            spell(scores["improvement"], 3),
            spell_interval(scores["improvement_interval"], 3),
        ]
        for arm, its in suite["arms"].items()
        if (scores := its.get("aggregates"))
    ]


def page_of(suite: Mapping[str, Any]) -> str:
    """The suite as one page that opens offline."""
    charts = {f"profile-{index}": its for index, its in enumerate(_profiles(suite))}
    data = {"arms": [suite["base"], *suite["arms"]], "forest": _forest(suite), "charts": charts}
    scores = _score_rows(suite)
    words = [f"{arm}: {its['word']}{_numbers(its)}" for arm, its in suite["arms"].items()]
    left = [
        f"{arm}: {name} is left out: {why}"
        for arm, its in suite["arms"].items()
        for name, why in its["left_out"].items()
    ]
    body = "\n".join(
        [
            f"<h1>{escaped(suite['question'])}</h1>",
            paragraph(f"On {', '.join(suite['data'])}, against {suite['base']}:"),
            listed(words),
            section(
                "Verdicts",
                table(_ARM_HEADS, _arm_rows(suite)),
                place_for("forest"),
                aside(
                    "Rings: each seed. Of one data set the line is the interval of its study; of "
                    "all, that of the mean over data sets; below it, of one more data set."
                ),
                listed(left),
            ),
            section("Data sets", table(_DATA_HEADS, _data_rows(suite)), aside(_UNIT)),
            section(
                "Scores of all runs",
                table(_SCORE_HEADS, scores),
                *[place_for(chart) for chart in charts],
                aside(
                    "Intervals are percentiles of a bootstrap over seeds and no test (Agarwal et "
                    "al. 2021). The curve is the share of runs above a score."
                )
                if scores
                else "",
            ),
        ]
    )
    return whole_page(suite["question"], body, as_plain(data))


def _forest(suite: Mapping[str, Any]) -> dict[str, Any]:
    rows = []
    for index, (arm, its) in enumerate(suite["arms"].items(), 1):
        label = "" if len(suite["arms"]) == 1 else f" · {arm}"
        for name, row in its["data"].items():
            unit = suite["data"][name].get("unit")
            size = abs(unit["simple"] - unit["guess"]) if unit else None
            why = its["left_out"].get(name)
            in_units = size is not None and row.get("mean") is not None and why is None
            rows.append(
                {
                    "name": name + label,
                    "index": index,
                    "mean": row["mean"] / size if in_units else None,
                    "differences": row.get("differences", []),
                    "seeds": suite["data"][name]["seeds"],
                    "interval": [
                        None if bound is None else bound / size for bound in row["interval"]
                    ]
                    if in_units and row["interval"]
                    else [None, None],
                    "words": row["words"] if why is None else f"left out: {why}",
                }
            )
        if "mean" in its:
            for name, bounds in (("all", its["interval"]), ("one more", its["prediction"])):
                whole = {"name": name + label, "index": index, "mean": its["mean"]}
                rows.append({**whole, "differences": [], "interval": bounds, "words": its["word"]})
    margins = [its["margin"] for its in suite["arms"].values() if "margin" in its]
    label = f"difference from {suite['base']} in units; right is better"
    return {"rows": rows, "margin": max(margins, default=0), "label": label}


def _profiles(suite: Mapping[str, Any]) -> list[dict[str, Any]]:
    charts = []
    for index, (arm, its) in enumerate(suite["arms"].items(), 1):
        if "profiles" in its:
            x, shares = its["profiles"]["thresholds"], its["profiles"]["shares"]
            series = [
                {"name": name, "index": at, "x": x, "mean": y, "low": y, "high": y}
                for (name, y), at in zip(shares.items(), (index, 0), strict=True)
            ]
            title = f"share of runs above a score, {arm}"
            labels = {"xLabel": "score in units", "yLabel": title, "title": title}
            charts.append({**labels, "series": series})
    return charts

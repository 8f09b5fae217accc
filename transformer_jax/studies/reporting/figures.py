"""Figures for a paper, as SVG and PDF: the forest plot and the learning curves."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from transformer_jax.runs.files import inside
from transformer_jax.runs.pictures import plain_legend
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.reporting.charts import floor_of, sweep_charts
from transformer_jax.studies.reporting.curves import curves_of

_MOST_INSIDE = 6  # curves whose names do not cover them
_DASHES = ["-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2))]


def draw_figures(study: Study, verdicts: Mapping[str, Any]) -> None:
    """Writes forest, curves, and scores over a swept option beside study.json."""
    draw_forest(study, verdicts)
    _save(study.path, "curves", _curves(study))
    for chart in list(sweep_charts(study, verdicts).values())[:1]:
        _save(study.path, "sweep", _lines(chart, "mean and range over seeds"))


def draw_forest(study: Study, verdicts: Mapping[str, Any]) -> None:
    """Writes the paired differences alone, which need no cells."""
    _save(study.path, "forest", _forest(study, verdicts))


def draw_ladder(folder: Path, chart: Mapping[str, Any], band: str) -> None:
    """Writes what a ladder found beside ladder.json; `band` says what is shaded."""
    _save(folder, "ladder", _lines(chart, band))


def _save(folder: Path, name: str, figure: Figure) -> None:
    # The same study gives the same bytes: no date, and ids that do not depend on chance.
    with mpl.rc_context({"svg.hashsalt": "transformer_jax", "svg.fonttype": "none"}):
        for suffix, date in (("svg", "Date"), ("pdf", "CreationDate")):
            path = inside(folder, f"{name}.{suffix}")
            figure.savefig(path, metadata={date: None}, bbox_inches="tight")


def _forest(study: Study, verdicts: Mapping[str, Any]) -> Figure:
    names = [name for name, arm in verdicts["arms"].items() if arm.get("differences")]
    figure = Figure(figsize=(6.5, 1.2 + 0.5 * max(len(names), 1)))
    axes = figure.add_subplot()
    margin = verdicts["margin"]
    axes.axvspan(-margin, margin, color="0.9", label="margin")
    axes.axvline(0, color="0.2", linewidth=1)
    order = list(study.arms)
    for row, name in enumerate(names):
        arm, height = verdicts["arms"][name], len(names) - 1 - row
        colour = f"C{order.index(name) % 10}"
        axes.plot(arm["differences"], [height - 0.22] * len(arm["differences"]), "o", mfc="none",
                  mec=colour, ms=3.5)  # fmt: skip
        if arm["mean"] is not None:  # with a target no mean is shown
            axes.plot(arm["mean"], height, "o", color=colour, ms=6)
        if None not in arm["interval"]:
            axes.plot(arm["interval"], [height, height], color=colour, linewidth=2)
    axes.set_yticks(range(len(names)), list(reversed(names)), parse_math=False)
    axes.set_ylim(-0.6, len(names) - 0.4)
    seen = [d for name in names for d in verdicts["arms"][name]["differences"]] or [margin]
    reach = 2 * max(max(map(abs, seen)), margin)
    low, high = axes.get_xlim()
    low, high = max(low, -reach), min(high, reach)
    axes.set_xlim(low, high)
    for row, name in enumerate(names):  # what goes on beyond the picture has an arrow there
        bounds, height = verdicts["arms"][name]["interval"], len(names) - 1 - row
        for bound, edge, mark in zip(bounds, (low, high), ("<", ">"), strict=True):
            if bound is not None and abs(bound) > abs(edge) and bound * edge > 0:
                colour = f"C{order.index(name) % 10}"
                axes.plot(edge, height, mark, color=colour, ms=7, clip_on=False)
    difference = f"difference of {verdicts['metric']} from {verdicts['base']} (right is better)"
    axes.set_xlabel(difference, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _curves(study: Study) -> Figure:
    arms = list(study.arms)
    runs = {arm: [study.cell(arm, seed).path for seed in study.seeds_of(arm)] for arm in arms}
    counted = study.record["counted"]
    metrics = curves_of(runs, {}, counted, f"eval/{study.metric}")["metrics"]
    figure = Figure(figsize=(6.5, 4))
    axes = figure.add_subplot()
    metric = next(iter(metrics), None)
    for index, arm in enumerate(arms):
        if metric is None or arm not in metrics[metric]:
            continue
        band = {key: np.array(value, float) for key, value in metrics[metric][arm].items()}
        line = axes.plot(
            band["step"], band["mean"], linestyle=_DASHES[index % len(_DASHES)], label=arm
        )
        axes.fill_between(
            band["step"], band["low"], band["high"], alpha=0.2, color=line[0].get_color(), lw=0
        )
    floor = floor_of(study)
    if floor is not None and metric is not None and metric.endswith("/loss"):
        axes.axhline(floor, color="0.4", linewidth=1, linestyle=(0, (3, 5)), label="best possible")
    axes.set_xlabel("updates")
    axes.set_ylabel(metric or "")
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.lines) > _MOST_INSIDE:
        plain_legend(axes, loc="upper left", bbox_to_anchor=(1, 1))
    elif axes.lines:
        plain_legend(axes)
    return figure


def _lines(chart: Mapping[str, Any], band: str) -> Figure:
    """Scores over an option: means, and what is shaded around them."""
    figure = Figure(figsize=(6.5, 4))
    axes = figure.add_subplot()
    for line in chart["series"]:
        style = _DASHES[line["index"] % len(_DASHES)]
        look: dict[str, Any] = {"marker": "o", "linestyle": style, "label": line["name"]}
        (drawn,) = axes.plot(line["x"], line["mean"], **look)
        ends = line["low"], line["high"]
        axes.fill_between(line["x"], *ends, alpha=0.2, color=drawn.get_color(), lw=0)
    if chart["logX"]:
        axes.set_xscale("log", base=2)
        ticks = sorted({x for line in chart["series"] for x in line["x"]})
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.minorticks_off()
    axes.set_xlabel(chart["xLabel"])
    axes.set_ylabel(f"{chart['yLabel']}, {band}", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart["series"]) > 1:
        plain_legend(axes)
    return figure

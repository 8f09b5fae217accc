"""Figures of a study, as SVG and PDF: forest plot, learning curves, scores over an option."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import inside
from transformer_jax.runs.pictures import plain_legend
from transformer_jax.studies.charts import floor_of, sweep_charts
from transformer_jax.studies.study import Study

# ---------------------------------------------------------------- learning curves


def curves_of(runs: Mapping[str, Sequence[Path]], metric: str) -> dict[str, dict[str, list]]:
    """Returns arm -> `step`, `mean`, `low`, `high` over seeds; only arms that have the metric.

    Args:
      runs: Arm -> directories of its seeds.
      metric: A key of metrics.jsonl.
    """
    curves = {}
    for arm, paths in runs.items():
        by_step: dict[int, list[float]] = {}
        for path in paths:
            for row in RunDirectory(path).metrics():
                if isinstance(row.get(metric), int | float):
                    by_step.setdefault(row["step"], []).append(row[metric])
        steps = sorted(by_step)
        if steps:
            bands = {"mean": np.mean, "low": np.min, "high": np.max}
            curves[arm] = {
                "step": steps,
                **{name: [float(f(by_step[s])) for s in steps] for name, f in bands.items()},
            }
    return curves


# ---------------------------------------------------------------- figures of a study

_MOST_INSIDE = 6  # curves whose names do not cover them
_DASHES = ["-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2))]


def draw_figures(study: Study, verdicts: Mapping[str, Any]) -> dict[str, bytes]:
    """Draws a study's figures next to study.json, and returns name -> SVG of each."""
    drawn = {"forest": draw_forest(study.path, verdicts)}
    runs = {arm: [study.cell(arm, seed).path for seed in study.seeds] for arm in study.arms}
    curves = curves_of(runs, f"eval/{study.metric}") or curves_of(runs, "eval/loss")
    label = f"validation {study.metric}"
    drawn["curves"] = _save(study.path, "curves", curves_figure(curves, label, floor_of(study)))
    for chart in sweep_charts(study, verdicts)[:1]:
        drawn["sweep"] = draw_lines(study.path, "sweep", chart)
    return drawn


def draw_forest(folder: Path, verdicts: Mapping[str, Any]) -> bytes:
    """Draws the paired differences from verdicts alone: forest.svg and forest.pdf.

    Args:
      folder: Folder of the study.
      verdicts: `arms` (name -> mean, interval, differences), `margin`, `metric`, `base`.
    """
    return _save(folder, "forest", _forest(verdicts))


def draw_lines(folder: Path, name: str, chart: Mapping[str, Any]) -> bytes:
    """Draws scores over an option: means, and the range over seeds."""
    return _save(folder, name, _lines(chart))


def _save(folder: Path, name: str, figure: Figure) -> bytes:
    # The same study gives the same bytes: no date, and ids that do not depend on chance.
    with mpl.rc_context({"svg.hashsalt": "transformer_jax", "svg.fonttype": "none"}):
        for suffix, date in (("svg", "Date"), ("pdf", "CreationDate")):
            content = io.BytesIO()
            figure.savefig(content, format=suffix, metadata={date: None}, bbox_inches="tight")
            inside(folder, f"{name}.{suffix}").write_bytes(content.getvalue())
    return inside(folder, f"{name}.svg").read_bytes()


def _forest(verdicts: Mapping[str, Any]) -> Figure:
    arms = {name: arm for name, arm in verdicts["arms"].items() if arm.get("differences")}
    figure = Figure(figsize=(6.5, 1.2 + 0.5 * max(len(arms), 1)))
    axes = figure.add_subplot()
    margin = verdicts["margin"]
    axes.axvspan(-margin, margin, color="0.9", label="margin")
    axes.axvline(0, color="0.2", linewidth=1)
    order = list(verdicts["arms"])
    for row, (name, arm) in enumerate(arms.items()):
        height, colour = len(arms) - 1 - row, f"C{order.index(name) % 10}"
        rings: dict[str, Any] = {"mfc": "none", "mec": colour, "ms": 3.5}
        axes.plot(arm["differences"], [height - 0.22] * len(arm["differences"]), "o", **rings)
        if arm["mean"] is not None:  # with a target no mean is shown
            axes.plot(arm["mean"], height, "o", color=colour, ms=6)
        if None not in arm["interval"]:
            axes.plot(arm["interval"], [height, height], color=colour, linewidth=2)
    axes.set_yticks(range(len(arms)), list(reversed(arms)), parse_math=False)
    axes.set_ylim(-0.6, len(arms) - 0.4)
    seen = [d for arm in arms.values() for d in arm["differences"]] or [margin]
    reach = 2 * max(max(map(abs, seen)), margin)
    low, high = axes.get_xlim()
    low, high = max(low, -reach), min(high, reach)
    axes.set_xlim(low, high)
    for row, (name, arm) in enumerate(arms.items()):  # what goes on beyond the picture
        height, colour = len(arms) - 1 - row, f"C{order.index(name) % 10}"
        for bound, edge, mark in zip(arm["interval"], (low, high), ("<", ">"), strict=True):
            if bound is not None and abs(bound) > abs(edge) and bound * edge > 0:
                axes.plot(edge, height, mark, color=colour, ms=7, clip_on=False)
    difference = f"difference of {verdicts['metric']} from {verdicts['base']} (right is better)"
    axes.set_xlabel(difference, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def curves_figure(
    curves: Mapping[str, Mapping[str, Sequence]], label: str, floor: float | None = None
) -> Figure:
    """Draws learning curves.

    Args:
      curves: Arm -> step, mean, low, high.
      label: Label of the vertical axis.
      floor: Best possible loss, or None if unknown.
    """
    figure = Figure(figsize=(6.5, 4))
    axes = figure.add_subplot()
    for index, (arm, band) in enumerate(curves.items()):
        style = _DASHES[index % len(_DASHES)]
        (line,) = axes.plot(band["step"], band["mean"], linestyle=style, label=arm)
        colour = line.get_color()
        axes.fill_between(band["step"], band["low"], band["high"], alpha=0.2, color=colour, lw=0)
    if floor is not None and label.endswith("loss"):
        axes.axhline(floor, color="0.4", linewidth=1, linestyle=(0, (3, 5)), label="best possible")
    axes.set_xlabel("updates")
    axes.set_ylabel(label, parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    if len(axes.lines) > _MOST_INSIDE:
        plain_legend(axes, loc="upper left", bbox_to_anchor=(1, 1))
    elif axes.lines:
        plain_legend(axes)
    return figure


def _lines(chart: Mapping[str, Any]) -> Figure:
    """Draws scores over an option: means, and the range over seeds."""
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
    axes.set_ylabel(f"{chart['yLabel']}, mean and range over seeds", parse_math=False)
    axes.spines[["top", "right"]].set_visible(False)
    if len(chart["series"]) > 1:
        plain_legend(axes)
    return figure

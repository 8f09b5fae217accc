"""Figures of a study, as SVG and PDF: forest plot, updates to a target, curves and sweeps."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import inside
from transformer_jax.runs.pictures import plain_legend
from transformer_jax.studies.charts import sweep_lines
from transformer_jax.studies.outcomes import Outcome
from transformer_jax.studies.statistics import reached_by
from transformer_jax.studies.study import Study

_MOST_INSIDE = 6  # most curves with a legend that does not cover them
_DASHES = ["-", "--", ":", "-.", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)), (0, (8, 2))]


def curves_of(runs: Mapping[str, Sequence[Path]], metric: str) -> dict[str, dict[str, list]]:
    """Returns a curve by arm: `step`, and `mean`, `low` and `high` of a metric over the seeds.

    `runs` has the runs of each arm; arms without `metric`, a key of metrics.jsonl, are left out.
    """
    curves = {}
    for arm, paths in runs.items():
        by_step: dict[int, list[float]] = {}
        for path in paths:
            for row in RunDirectory(path).metrics():
                if isinstance(row.get(metric), int | float):
                    by_step.setdefault(row["step"], []).append(row[metric])
        if steps := sorted(by_step):
            bands = {"mean": np.mean, "low": np.min, "high": np.max}
            ends = {name: [float(f(by_step[s])) for s in steps] for name, f in bands.items()}
            curves[arm] = {"step": steps, **ends}
    return curves


def draw_figures(study: Study, verdicts: Mapping[str, Any]) -> dict[str, bytes]:
    """Draws a study's figures next to study.json, and returns each figure's SVG by name."""
    if study.sealed["target"] is None:
        drawn = {"forest": draw_forest(study.path, verdicts)}
    else:
        # A difference of means would describe no run.
        outcomes = {arm: value["outcomes"] for arm, value in verdicts["values"].items()}
        asked = study.sealed["target"], study.sealed["larger_is_better"]
        drawn = {"updates": draw_updates(study.path, outcomes, *asked)}
    runs = {arm: [study.cell(arm, seed).path for seed in study.seeds] for arm in study.arms}
    curves = curves_of(runs, f"eval/{study.metric}") or curves_of(runs, "eval/loss")
    protocols = (study.cell(study.base, s).means().get("protocol", {}) for s in study.seeds)
    floor = next((protocol["floor"] for protocol in protocols if "floor" in protocol), None)
    figure = curves_figure(curves, f"validation {study.metric}", floor)
    drawn["curves"] = _save(study.path, "curves", figure)
    for key, lines in list(sweep_lines(study, verdicts).items())[:1]:
        drawn["sweep"] = draw_lines(study.path, "sweep", lines, key, study.metric)
    return drawn


def draw_forest(folder: Path, verdicts: Mapping[str, Any]) -> bytes:
    """Draws the paired differences as forest.svg and forest.pdf in a folder; returns the SVG.

    `verdicts` has `arms` (name -> mean, interval, differences), `margin`, `metric` and `base`.
    """
    arms = {name: arm for name, arm in verdicts["arms"].items() if arm.get("differences")}
    figure, axes = _axes(1.2 + 0.5 * max(len(arms), 1))
    margin, order = verdicts["margin"], list(verdicts["arms"])
    rows = [
        (arm, len(arms) - 1 - row, f"C{order.index(name) % 10}")
        for row, (name, arm) in enumerate(arms.items())
    ]
    axes.axvspan(-margin, margin, color="0.9", label="margin")
    axes.axvline(0, color="0.2", linewidth=1)
    for arm, height, colour in rows:
        rings: dict[str, Any] = {"mfc": "none", "mec": colour, "ms": 3.5}
        axes.plot(arm["differences"], [height - 0.22] * len(arm["differences"]), "o", **rings)
        if arm["mean"] is not None:  # with a target, no mean is shown
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
    axes.locator_params(axis="x", nbins=5)  # more labels of four digits would overlap
    for arm, height, colour in rows:  # marks for intervals that extend beyond the figure
        for bound, edge, mark in zip(arm["interval"], (low, high), ("<", ">"), strict=True):
            if bound is not None and abs(bound) > abs(edge) and bound * edge > 0:
                axes.plot(edge, height, mark, color=colour, ms=7, clip_on=False)
    difference = f"difference of {verdicts['metric']} from {verdicts['base']} (right is better)"
    axes.set_xlabel(difference, parse_math=False)
    return _save(folder, "forest", figure)


def draw_updates(
    folder: Path,
    outcomes: Mapping[str, Mapping[Any, Sequence[Any]]],
    target: float,
    larger_is_better: bool,
) -> bytes:
    """Draws the number of updates until each run reaches a target; returns the SVG.

    Writes updates.svg and updates.pdf. `outcomes` has each run's Outcome by arm and seed. A cross
    marks a run that never reaches the target, at its last update or, if it diverged, at the edge.
    """
    figure, axes = _axes(1.2 + 0.3 * max(len(outcomes), 1))
    runs = {
        arm: reached_by({s: Outcome(*o) for s, o in by_seed.items()}, target, larger_is_better)
        for arm, by_seed in outcomes.items()
    }
    finite = [u for found in runs.values() for u in found.updates if np.isfinite(u)]
    edge = max(finite, default=1)
    for row, found in enumerate(runs.values()):
        for solved, mark, colour in ((True, "o", "C0"), (False, "x", "0.4")):
            updates = np.minimum(found.updates[found.solved == solved], edge)
            # Runs that end at the same update lie above each other, within the arm's row.
            heights = len(runs) - 1 - row + 0.2 * np.linspace(-1, 1, len(updates))
            style: dict[str, Any] = {"mfc": "none", "mec": colour, "ms": 4}
            label = None if row else ("reaches it" if solved else "does not")
            axes.plot(updates, heights, mark, label=label, **style)
    axes.set_yticks(range(len(runs)), list(reversed(runs)), parse_math=False)
    axes.set_ylim(-0.6, len(runs) - 0.4)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
    axes.minorticks_off()
    axes.set_xlabel(f"updates until {target:g} is reached")
    plain_legend(axes, loc="upper left", bbox_to_anchor=(1, 1))
    return _save(folder, "updates", figure)


def curves_figure(
    curves: Mapping[str, Mapping[str, Sequence]], label: str, floor: float | None = None
) -> Figure:
    """Returns a figure of curves from curves_of, with a line at `floor`, the best possible loss."""
    figure, axes = _axes(4)
    for index, (arm, band) in enumerate(curves.items()):
        _plot_band(axes, band["step"], band, index, arm)
    if floor is not None and label.endswith("loss"):
        axes.axhline(floor, color="0.4", linewidth=1, linestyle=(0, (3, 5)), label="best possible")
    axes.set_xlabel("updates")
    axes.set_ylabel(label, parse_math=False)
    if len(axes.lines) > _MOST_INSIDE:
        plain_legend(axes, loc="upper left", bbox_to_anchor=(1, 1))
    elif axes.lines:
        plain_legend(axes)
    return figure


def draw_lines(
    folder: Path, name: str, lines: Sequence[Mapping[str, Any]], key: str, metric: str
) -> bytes:
    """Draws lines from sweep_lines as NAME.svg and NAME.pdf in a folder; returns the SVG.

    Shows means and ranges over seeds of a metric, as a function of the option `key`.
    """
    figure, axes = _axes(4)
    for index, line in enumerate(lines):
        _plot_band(axes, line["x"], line, index, line["name"], marker="o")
    ticks = sorted({x for line in lines for x in line["x"]})
    if all(x > 0 for x in ticks):
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
        axes.minorticks_off()
    axes.set_xlabel(key)
    axes.set_ylabel(f"test {metric}, mean and range over seeds", parse_math=False)
    if len(lines) > 1:
        plain_legend(axes)
    return _save(folder, name, figure)


def _axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.5, height))
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _plot_band(
    axes: Axes, x: Sequence, band: Mapping[str, Any], index: int, label: str, marker: str = ""
) -> None:
    """Plots a band's `mean` over `x`, and the range from `low` to `high` in the same colour."""
    style = _DASHES[index % len(_DASHES)]
    (line,) = axes.plot(x, band["mean"], linestyle=style, marker=marker, label=label)
    colour = line.get_color()
    axes.fill_between(x, band["low"], band["high"], alpha=0.2, color=colour, lw=0)


def _save(folder: Path, name: str, figure: Figure) -> bytes:
    # The same study gives the same bytes: no date, and ids that do not depend on chance.
    with mpl.rc_context({"svg.hashsalt": "transformer_jax", "svg.fonttype": "none"}):
        for suffix, date in (("svg", "Date"), ("pdf", "CreationDate")):
            content = io.BytesIO()
            figure.savefig(content, format=suffix, metadata={date: None}, bbox_inches="tight")
            inside(folder, f"{name}.{suffix}").write_bytes(content.getvalue())
    return inside(folder, f"{name}.svg").read_bytes()

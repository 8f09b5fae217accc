"""The same contrast at several scales or splits, judged over them: ladder.json and ladder.md."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.files import replace
from transformer_jax.studies.asking.ladder import SPLITS, rung_path
from transformer_jax.studies.asking.study import Study, as_plain
from transformer_jax.studies.inference.scales import (
    NONE,
    forecast_of_scores,
    over_scales,
    over_splits,
)
from transformer_jax.studies.judging.adequacy import CANNOT_TELL
from transformer_jax.studies.reporting.tables import as_markdown, signed, spell, spell_interval


def judge_ladder(workdir: str | Path, key: str, values: Sequence[float]) -> dict[str, Any]:
    """Compares the rungs' verdicts and writes ladder.json and ladder.md.

    Args:
      workdir: of the ladder.
      key: of the config.
      values: of the rungs, ascending; their studies are judged.
    Returns:
      What ladder.json holds.
    """
    workdir = Path(workdir)
    studies = [Study(rung_path(workdir, key, value)) for value in values]
    verdicts = [study.verdicts() for study in studies]
    first, (axis, places) = verdicts[0], axis_of(studies, key, values)
    if key == SPLITS:
        axis, places = key, [float(value) for value in values]

    def over_rungs(arm: str) -> dict[str, Any]:
        if any(count for v in verdicts for count, _ in v["arms"][arm].get("diverged", ())):
            return {"word": f"{NONE}: some runs diverged"}
        differences = [_differences(v["arms"][arm]) for v in verdicts]
        level = min(v["arms"][arm].get("level", v["level"]) for v in verdicts)
        shared = (differences, first["margin"], len(first["arms"]), level)
        told = over_splits(*shared) if key == SPLITS else over_scales(places, *shared)
        words = {
            value: v["arms"][arm]["words"]
            for value, v in zip(values, verdicts, strict=True)
            if v["arms"][arm]["verdict"] == CANNOT_TELL
        }
        if words:
            where = ", ".join(f"{value:g}" for value in words)
            return told | {"word": f"{next(iter(words.values()))} (at {where})"}
        return told

    scores = [v["values"][v["base"]]["by_seed"] for v in verdicts]
    found = {
        "question": first["question"],
        "key": key,
        "values": list(values),
        "axis": axis,
        "places": places,
        "metric": first["metric"],
        "margin": first["margin"],
        "base": first["base"],
        "scores": [v["values"][v["base"]]["mean"] for v in verdicts],
        "forecast_of_score": {} if key == SPLITS else forecast_of_scores(places, scores),
        "arms": {arm: over_rungs(arm) for arm in first["arms"]},
    }
    replace(workdir, "ladder.json", json.dumps(as_plain(found), indent=1) + "\n")
    replace(workdir, "ladder.md", as_text(found))
    return found


def axis_of(studies: Sequence[Study], key: str, values: Sequence[float]) -> tuple[str, list[float]]:
    """Returns what effects are seen over, and where the rungs lie on it.

    That is what the option changes of the base: parameters (outside embeddings), else what training
    counts, else its operations; the option itself where none of them grows with it.
    """
    costs = [study.arms[study.base]["cost"] for study in studies]
    axes = {
        "parameters": [cost["without_embeddings"] for cost in costs],
        studies[0].record["counted"]: [cost["counted"] for cost in costs],
        "training operations": [cost["flops"] * cost["counted"] for cost in costs],
    }
    for name, places in axes.items():
        if all(0 < before < after for before, after in itertools.pairwise(places)):
            return name, [float(place) for place in places]
    return key, [float(value) for value in values]


def _differences(arm: Mapping[str, Any]) -> dict[int, float]:
    return dict(zip(arm.get("seeds", ()), arm.get("differences", ()), strict=False))


def as_text(found: Mapping[str, Any]) -> str:
    """The ladder as Markdown: a row an arm and rung, and the word for each arm."""
    rows, lines = [], []
    for arm, told in found["arms"].items():
        lines.append(f"- **{arm}: {told['word']}**{_told(told)}")
        if "means" in told:
            where = (found["values"], found["places"], told["means"], told["intervals"])
            rows += [
                [arm, *_place(found, value, place), signed(mean), spell_interval(bounds)]
                for value, place, mean, bounds in zip(*where, strict=True)
            ]
    heads = ["arm", *dict.fromkeys((found["key"], found["axis"]))]
    heads += [f"{found['metric']}, difference", "interval"]
    scores = ", ".join(
        f"{spell(score)} at {value:g}"
        for score, value in zip(found["scores"], found["values"], strict=True)
    )
    about = [f"The base, {found['base']}: {scores}."]
    law = found["forecast_of_score"]
    if law:
        about.append(
            f"A power law through the smaller ones forecasts {spell(law['forecast'])} "
            f"{spell_interval(law['interval'])} at {found['values'][-1]:g}; it was "
            f"{spell(law['seen'])}."
        )
    over = "several splits" if found["key"] == SPLITS else f"{found['key']}, by {found['axis']}"
    head = (
        f"# {found['question']}\n\nOver {over}; + is better than {found['base']}. "
        "Intervals are simultaneous over arms and rungs.\n"
    )
    return "\n".join([head, *lines, "", as_markdown(heads, rows), " ".join(about), ""])


def _place(found: Mapping[str, Any], value: float, place: float) -> list[str]:
    """A rung's value, and its place on the axis where that is another."""
    is_axis = found["key"] == found["axis"]
    return [f"{value:g}"] if is_axis else [f"{value:g}", f"{place:.3g}"]


def _misfit(told: Mapping[str, Any]) -> str:
    return f" (a line is rejected, p = {told['line_p']:.2g})" if told["line_p"] < 0.05 else ""


def _told(told: Mapping[str, Any]) -> str:
    if "seeds" not in told:
        return ""
    if "mean" in told:
        seen = f"{signed(told['mean'])} {spell_interval(told['interval'])}"
        return f": {seen} over other seeds and other splits of these data"
    if not math.isfinite(told.get("slope", math.nan)):
        return f" ({len(told['seeds'])} seeds have all rungs)"
    slope = f"{signed(told['slope'])} {spell_interval(told['slope_interval'])} per doubling"
    return (
        f": {slope}{_misfit(told)}; the smaller rungs forecast {signed(told['forecast'])} "
        f"{spell_interval(told['forecast_interval'])} for the largest, it was "
        f"{signed(told['means'][-1])}"
    )

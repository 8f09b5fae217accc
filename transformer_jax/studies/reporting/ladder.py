"""The same contrast at several scales or splits: ladder.json and ladder.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.runs.files import inside, read_json, replace
from transformer_jax.studies.asking.ladder import FILE, SPLITS, Ladder, rung_path
from transformer_jax.studies.asking.study import Study, as_plain
from transformer_jax.studies.judging.ladder import judge_ladder
from transformer_jax.studies.reporting.tables import as_markdown, signed, spell, spell_interval

FORECAST = "forecast.json"


def write_ladder(workdir: str | Path, ladder: Ladder) -> dict[str, Any]:
    """Compares the rungs' verdicts and writes ladder.json and ladder.md.

    Args:
      workdir: of the ladder; the studies of its rungs are judged.
      ladder: what was asked.
    Returns:
      What ladder.json holds.
    """
    workdir = Path(workdir)
    studies = [Study(rung_path(workdir, ladder.key, value)) for value in ladder.rungs]
    found = judge_ladder(studies, ladder.key, list(ladder.rungs))
    found |= {"together": ladder.together} if ladder.together else {}
    sealed = inside(workdir, FORECAST)
    if sealed.exists():
        found["forecast"] = read_json(sealed)
    found = as_plain(found)
    replace(workdir, FILE, json.dumps(found, indent=1) + "\n")
    replace(workdir, "ladder.md", as_text(found))
    return found


def as_text(found: Mapping[str, Any]) -> str:
    """The ladder as Markdown: a row an arm and rung, and the word for each arm."""
    rows, lines = [], []
    for arm, told in found["arms"].items():
        lines.append(f"- **{arm}: {told['word']}**{_told(told)}")
        lines += [f"  - {line}" for line in _worth(told, found["base"])]
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
    about += _sealed(found)
    grown = " and ".join([found["key"], *found.get("together", ())])
    over = "several splits" if found["key"] == SPLITS else f"{grown}, by {found['axis']}"
    head = (
        f"# {found['question']}\n\nOver {over}; + is better than {found['base']}. "
        "Intervals are simultaneous over arms and rungs.\n"
    )
    return "\n".join([head, *lines, "", as_markdown(heads, rows), "\n\n".join(about), ""])


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
    if told.get("slope") is None:
        return f" ({len(told['seeds'])} seeds have all rungs)"
    slope = f"{signed(told['slope'])} {spell_interval(told['slope_interval'])} per doubling"
    return (
        f": {slope}{_misfit(told)}; the smaller rungs forecast {signed(told['forecast'])} "
        f"{spell_interval(told['forecast_interval'])} for the largest, it was "
        f"{signed(told['means'][-1])}"
    )


def _worth(told: Mapping[str, Any], base: str) -> list[str]:
    """How much of the base's parameters, tokens or operations an arm is worth."""
    lines = []
    for axis, its in told.get("multipliers", {}).items():
        if its["is_rejected"]:
            lines.append(f"{axis}: power laws do not describe the scores (p = {its['fit_p']:.2g})")
            continue
        beyond = f"; {base} was not trained with so many" if its["extrapolated"] else ""
        change = f"x {its['change']:.3g} {_times(its['change_interval'])} from smallest to largest"
        lines.append(
            f"worth {its['largest']:.3g} {_times(its['interval'])} times its {axis} to {base} at "
            f"the largest rung ({change}{beyond})"
        )
    return lines


def _times(bounds: Any) -> str:
    return f"[{bounds[0]:.3g}, {bounds[1]:.3g}]"


def _sealed(found: Mapping[str, Any]) -> list[str]:
    """What was forecast before the largest rung was trained, beside what came."""
    sealed = found.get("forecast")
    if not sealed:
        return []
    begun = sealed["cells_that_were_there"]
    ahead = f"{begun} cells of it were there" if begun else "none of its cells had been trained"
    told = []
    if sealed["score"]:
        seen = spell(found["scores"][-1])
        told.append(f"{found['base']} {spell(sealed['score']['forecast'])}, it was {seen}")
    for arm, its in sealed["arms"].items():
        seen = found["arms"][arm]
        if its["difference"] and "means" in seen:
            forecast = its["difference"]
            told.append(
                f"{arm} {signed(forecast['forecast'])} {spell_interval(forecast['interval'])}, it "
                f"was {signed(seen['means'][-1])}"
            )
        for axis, worth in its["multipliers"].items():
            now = seen.get("multipliers", {}).get(axis)
            if now and not worth["is_rejected"]:
                told.append(
                    f"{arm} worth {worth['largest']:.3g} {_times(worth['interval'])} times its "
                    f"{axis}, it was {now['largest']:.3g}"
                )
    if not told:
        return []
    return [
        f"Sealed {sealed['sealed_at']}, when {ahead}, for the largest: " + "; ".join(told) + "."
    ]

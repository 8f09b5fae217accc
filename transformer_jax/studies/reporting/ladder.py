"""The same contrast at several scales or splits: ladder.json and ladder.md."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.files import as_plain, inside, read_json, replace, write_json
from transformer_jax.studies.asking.ladder import FILE, SPLITS, Ladder, rung_name, rung_path
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.inference.tuned import moved
from transformer_jax.studies.inference.words import CANNOT_TELL
from transformer_jax.studies.judging.ladder import judge_ladder
from transformer_jax.studies.reporting.charts import optimum_of, sweep_charts, sweeps_of
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
    judged = judge_ladder(studies, ladder.key, list(ladder.rungs))
    judged |= {"together": ladder.together} if ladder.together else {}
    optima = _optima(studies)
    judged |= {"optima": optima} if optima else {}
    sealed = inside(workdir, FORECAST)
    if sealed.exists():
        judged["forecast"] = read_json(sealed)
    judged = as_plain(judged)
    write_json(workdir, FILE, judged)
    replace(workdir, "ladder.md", ladder_text(judged))
    _draw(workdir, judged, studies)
    return judged


def _draw(workdir: Path, ladder: Mapping[str, Any], studies: Sequence[Study]) -> None:
    """Scores over an option that all arms set, a line a rung; else differences over the rungs."""
    series: list[dict[str, Any]] = []
    if key := next(iter(ladder.get("optima", ())), ""):
        band, chart = "mean and range over seeds", {}
        for index, (value, study) in enumerate(zip(ladder["values"], studies, strict=True)):
            of_rung = sweep_charts(study, study.verdicts()).values()
            named = {"name": rung_name(ladder["key"], value), "index": index}
            for its in (its for its in of_rung if its["xLabel"] == key):
                chart = its
                series += [{**line, **named} for line in its["series"]]
    else:
        band = "intervals together"
        label = f"difference of {ladder['metric']} from {ladder['base']}"
        chart = {"xLabel": ladder["axis"], "yLabel": label, "logX": True}
        for index, (arm, its) in enumerate(ladder["arms"].items()):
            if "means" in its:
                low, high = zip(*its["intervals"], strict=True)
                line = {"x": ladder["places"], "mean": its["means"], "low": low, "high": high}
                series.append({"name": arm, "index": index, **line})
    for name in ("ladder.svg", "ladder.pdf"):  # of what earlier seeds said
        inside(workdir, name).unlink(missing_ok=True)
    if series:
        with contextlib.suppress(ImportError):  # matplotlib belongs to the extra `train`
            from transformer_jax.studies.reporting.figures import draw_ladder

            draw_ladder(workdir, {**chart, "series": series}, band)


def _optima(studies: Sequence[Study]) -> dict[str, Any]:
    """Option that all arms set -> its best value at each rung (or why there is none), and its way.

    The way is from the first to the last rung that has one: their places, and the factor.
    """
    optima: dict[str, dict[str, Any]] = {}
    for key, groups in sweeps_of(studies[0], studies[0].verdicts()).items():
        if list(groups) != [""]:
            continue
        by_rung = [optimum_of(study, study.verdicts(), key, groups[""]) for study in studies]
        found = [(n, its) for n, its in enumerate(by_rung) if not isinstance(its, str)]
        optima[key] = {"by_rung": by_rung}
        if len(found) > 1:
            (start, first), (end, last) = found[0], found[-1]
            optima[key] |= {"moved": moved(first, last), "between": (start, end)}
    return optima


def ladder_text(ladder: Mapping[str, Any]) -> str:
    """The ladder as Markdown: a row an arm and rung, and the word for each arm."""
    rows, lines = [], _best_values(ladder)
    for arm, verdict in ladder["arms"].items():
        lines.append(f"- **{arm}: {verdict['word']}{_side(verdict)}**{_told(verdict)}")
        lines += [f"  - {line}" for line in _worth(verdict, ladder["base"])]
        if "means" in verdict:
            where = (ladder["values"], ladder["places"], verdict["means"], verdict["intervals"])
            rows += [
                [arm, *_place(ladder, value, place), signed(mean), spell_interval(bounds)]
                for value, place, mean, bounds in zip(*where, strict=True)
            ]
    heads = ["arm", *dict.fromkeys((ladder["key"], ladder["axis"]))]
    heads += [f"{ladder['metric']}, difference", "interval"]
    scores = ", ".join(
        f"{spell(score)} at {value:g}"
        for score, value in zip(ladder["scores"], ladder["values"], strict=True)
    )
    about = [f"The base, {ladder['base']}: {scores}."]
    law = ladder["forecast_of_score"]
    if law:
        about.append(
            f"A power law through the smaller ones forecasts {spell(law['forecast'])} "
            f"{spell_interval(law['interval'])} at {ladder['values'][-1]:g}; it was "
            f"{spell(law['seen'])}{_if_outside(law['seen'], law['interval'])}."
        )
    about += _sealed(ladder)
    grown = " and ".join([ladder["key"], *ladder.get("together", ())])
    over = "several splits" if ladder["key"] == SPLITS else f"{grown}, by {ladder['axis']}"
    head = (
        f"# {ladder['question']}\n\nOver {over}; + is better than {ladder['base']}. "
        "Intervals are simultaneous over arms and rungs.\n"
    )
    return "\n".join([head, *lines, "", as_markdown(heads, rows), "\n\n".join(about), ""])


def _best_values(ladder: Mapping[str, Any]) -> list[str]:
    """Where the best value of an option lies that all arms set, a line an option."""
    sentences = []
    for key, its in ladder.get("optima", {}).items():
        found = [
            f"{best if isinstance(best, str) else _at(best)} at {value:g}"
            for value, best in zip(ladder["values"], its["by_rung"], strict=True)
        ]
        says = f"the best {key}"
        if "moved" in its:
            start, end = (ladder["values"][place] for place in its["between"])
            says += f" moves by x {_at(its['moved'])} from {start:g} to {end:g}"
        by = "by a parabola, 95 % each; ends beyond what was tried are extrapolated"
        sentences.append(f"- **{says}**: {', '.join(found)} ({by})")
    return sentences


def _if_outside(seen: float, interval: Sequence[float]) -> str:
    return "" if interval[0] <= seen <= interval[1] else ", outside of that"


def _at(best: Mapping[str, Any]) -> str:
    return f"{best['at']:.3g} {_times(best['interval'])}"


def _place(ladder: Mapping[str, Any], value: float, place: float) -> list[str]:
    """A rung's value, and its place on the axis where that is another."""
    is_axis = ladder["key"] == ladder["axis"]
    return [f"{value:g}"] if is_axis else [f"{value:g}", f"{place:.3g}"]


def _misfit(verdict: Mapping[str, Any]) -> str:
    return f" (a line is rejected, p = {verdict['line_p']:.2g})" if verdict["line_p"] < 0.05 else ""


def _side(verdict: Mapping[str, Any]) -> str:
    """Whether an arm is better or worse at every rung, where all intervals say so."""
    ends = [end for bounds in verdict.get("intervals", ()) for end in bounds]
    if not ends or verdict["word"].startswith(CANNOT_TELL) or min(ends) <= 0 <= max(ends):
        return ""
    return f", {'better' if min(ends) > 0 else 'worse'} at every rung"


def _told(verdict: Mapping[str, Any]) -> str:
    if "seeds" not in verdict:
        return ""
    if "mean" in verdict:
        seen = f"{signed(verdict['mean'])} {spell_interval(verdict['interval'])}"
        return f": {seen} over other seeds and other splits of these data"
    if verdict.get("slope") is None:
        return f" ({len(verdict['seeds'])} seeds have all rungs)"
    slope = f"{signed(verdict['slope'])} {spell_interval(verdict['slope_interval'])} per doubling"
    return (
        f": {slope}{_misfit(verdict)}; the smaller rungs forecast {signed(verdict['forecast'])} "
        f"{spell_interval(verdict['forecast_interval'])} for the largest, it was "
        f"{signed(verdict['means'][-1])}"
    )


def _worth(verdict: Mapping[str, Any], base: str) -> list[str]:
    """How much of the base's parameters, tokens or operations an arm is worth."""
    lines = []
    for axis, its in verdict.get("multipliers", {}).items():
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


def _sealed(ladder: Mapping[str, Any]) -> list[str]:
    """What was forecast before the largest rung was trained, beside what came."""
    sealed = ladder.get("forecast")
    if not sealed:
        return []
    begun = sealed["cells_that_were_there"]
    ahead = f"{begun} cells of it were there" if begun else "none of its cells had been trained"
    lines = []
    if sealed["score"]:
        seen = spell(ladder["scores"][-1])
        lines.append(f"{ladder['base']} {spell(sealed['score']['forecast'])}, it was {seen}")
    for arm, its in sealed["arms"].items():
        seen = ladder["arms"].get(arm, {})  # it may have been left away since
        if its["difference"] and "means" in seen:
            forecast = its["difference"]
            lines.append(
                f"{arm} {signed(forecast['forecast'])} {spell_interval(forecast['interval'])}, it "
                f"was {signed(seen['means'][-1])}"
            )
        for axis, worth in its["multipliers"].items():
            now = seen.get("multipliers", {}).get(axis)
            if now and not worth["is_rejected"]:
                lines.append(
                    f"{arm} worth {worth['largest']:.3g} {_times(worth['interval'])} times its "
                    f"{axis}, it was {now['largest']:.3g}"
                )
    if not lines:
        return []
    return [
        f"Sealed {sealed['sealed_at']}, when {ahead}, for the largest: " + "; ".join(lines) + "."
    ]

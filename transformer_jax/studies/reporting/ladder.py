"""The verdicts of a ladder's rungs next to each other: ladder.json, ladder.md and a figure."""

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.files import as_plain, replace, write_json
from transformer_jax.studies.asking.ladder import FILE, Ladder, rung_name, rung_path
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.inference.parabola import moved
from transformer_jax.studies.reporting.charts import optimum_of, sweep_charts, sweeps_of
from transformer_jax.studies.reporting.tables import as_markdown, signed, spell, spell_interval


def write_ladder(workdir: Path, ladder: Ladder) -> dict[str, Any]:
    """Compares the rungs' verdicts, writes the files, and returns what ladder.json holds.

    Args:
      workdir: Of the ladder; the studies of its rungs are judged.
      ladder: What was asked.
    """
    studies = [Study(rung_path(workdir, ladder.key, value)) for value in ladder.rungs]
    verdicts = [study.verdicts() for study in studies]
    first = verdicts[0]
    kept = ("mean", "interval", "words")
    judged = as_plain(
        {
            "question": first["question"],
            "key": ladder.key,
            "values": list(ladder.rungs),
            "metric": first["metric"],
            "base": first["base"],
            "scores": [v["values"][v["base"]]["mean"] for v in verdicts],
            "arms": {
                arm: [{key: v["arms"][arm].get(key) for key in kept} for v in verdicts]
                for arm in first["arms"]
            },
            "optima": _optima(studies),
        }
    )
    write_json(workdir, FILE, judged)
    replace(workdir, "ladder.md", ladder_text(judged))
    _draw(workdir, judged, studies)
    return judged


def _draw(workdir: Path, ladder: Mapping[str, Any], studies: Sequence[Study]) -> None:
    """Scores over the option that all arms set, a line for each rung."""
    series: list[dict[str, Any]] = []
    chart: Mapping[str, Any] = {}
    for index, (value, study) in enumerate(zip(ladder["values"], studies, strict=True)):
        named = {"name": rung_name(ladder["key"], value), "index": index}
        for its in sweep_charts(study, study.verdicts()):
            if its["xLabel"] in ladder["optima"]:
                chart = its
                series += [{**line, **named} for line in its["series"]]
    if series:
        with contextlib.suppress(ImportError):  # matplotlib belongs to the extra `train`
            from transformer_jax.studies.reporting.figures import draw_lines

            draw_lines(workdir, "ladder", {**chart, "series": series})


def _optima(studies: Sequence[Study]) -> dict[str, Any]:
    """Option that all arms set -> its best value at each rung, and the factor by which it moves.

    The factor is that from the first to the last rung that has a best value.
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
    """The ladder as Markdown: best values of a swept option, and a row for each arm and rung."""
    rows = [
        [
            arm,
            f"{value:g}",
            signed(its["mean"]),
            spell_interval(its["interval"]),
            its["words"],
        ]
        for arm, by_rung in ladder["arms"].items()
        for value, its in zip(ladder["values"], by_rung, strict=True)
    ]
    heads = ["arm", ladder["key"], f"{ladder['metric']}, difference", "interval", "verdict"]
    scores = ", ".join(
        f"{spell(score)} at {value:g}"
        for score, value in zip(ladder["scores"], ladder["values"], strict=True)
    )
    head = (
        f"# {ladder['question']}\n\nOver {ladder['key']}; + is better than {ladder['base']}. "
        f"Each rung is a study of its own. The baseline: {scores}.\n"
    )
    return "\n".join([head, *_best_values(ladder), "", as_markdown(heads, rows)])


def _best_values(ladder: Mapping[str, Any]) -> list[str]:
    """Where the best value of an option lies that all arms set, a line for each option."""
    sentences = []
    for key, its in ladder["optima"].items():
        found = [
            f"{best if isinstance(best, str) else _spelled(best)} at {value:g}"
            for value, best in zip(ladder["values"], its["by_rung"], strict=True)
        ]
        says = f"the best {key}"
        if "moved" in its:
            start, end = (ladder["values"][place] for place in its["between"])
            says += f" moves by x {_spelled(its['moved'])} from {start:g} to {end:g}"
        by = "by a parabola, 95 % each; ends beyond what was tried are extrapolated"
        sentences.append(f"- **{says}**: {', '.join(found)} ({by})")
    return sentences


def _spelled(best: Mapping[str, Any]) -> str:
    low, high = best["interval"]
    return f"{best['at']:.3g} [{low:.3g}, {high:.3g}]"

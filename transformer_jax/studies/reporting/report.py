"""A study as one page: report.html, and the same as report.md with its figures next to it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.runs.files import replace
from transformer_jax.studies.asking.cells import DIVERGED, DONE
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.inference.solved import clopper_pearson
from transformer_jax.studies.reporting import tables
from transformer_jax.studies.reporting.charts import best_of_sweeps
from transformer_jax.studies.reporting.page import Page
from transformer_jax.studies.reporting.tables import signed, spell, spell_interval

_LISTED = 8  # arms, at the head of the page
_CAPTIONS = {
    "forest": "Line: the interval that the word is read off, simultaneous over all contrasts. "
    "Rings: each seed. Shaded: within the margin.",
    "sweep": "Score over the option: mean and range over seeds.",
    "curves": "Learning curves: mean over seeds; band: from the least to the largest.",
}


def write_report(study: Study) -> Path:
    """Writes the page and its figures; returns the path of report.html."""
    verdicts, figures = study.verdicts(), _figures(study)
    sealed, record = study.sealed, study.record
    page = Page(sealed["question"])
    marks = [f"Sealed {record['sealed_at']}", f"seal {record['seal'][:12]}"]
    page.paragraph(", ".join([*marks, *(f"exploratory: {why}" for why in record["exploratory"])]))
    page.paragraph(f"Predicted beforehand: {sealed['prediction']}")
    page.bullets(tables.expected_of(sealed, verdicts))
    page.paragraph(f"Compared with {verdicts['base']}:")
    page.bullets(_sentences(verdicts))
    page.paragraph(f"Margin {sealed['margin']:g}: {sealed['margin_reason']}.")
    page.heading("Verdicts")
    page.paragraph(tables.how_judged(verdicts))
    page.table(tables.HEADS, tables.verdict_rows(study, verdicts))
    for name in ("forest", "sweep"):
        if name in figures:
            page.figure(f"{name}.svg", figures[name], _CAPTIONS[name])
    page.bullets([*tables.notes_on(verdicts), *best_of_sweeps(study, verdicts)])
    _baselines(page, record["baselines"], verdicts["learned"])
    if "curves" in figures:
        page.heading("Learning curves")
        page.figure("curves.svg", figures["curves"], _CAPTIONS["curves"])
    _costs(page, study)
    _changes(page, study)
    _tuning(page, study)
    _failures(page, study, verdicts)
    page.heading("Looks")
    heads = ("time", "look", "seeds", "level", "verdicts")
    page.table(heads, [_look_row(look) for look in study.looks()])
    _environment(page, record)
    replace(study.path, "report.md", page.markdown())
    return replace(study.path, "report.html", page.html())


def _figures(study: Study) -> dict[str, bytes]:
    try:
        from transformer_jax.studies.reporting.figures import draw_figures
    except ImportError:  # matplotlib belongs to the extra `train`
        return {}
    return draw_figures(study, study.verdicts())


def _sentences(verdicts: Mapping[str, Any]) -> list[str]:
    sentences = [
        f"{name}: {arm['words']}"
        + (f" ({signed(arm['mean'])})" if arm.get("mean") is not None else "")
        for name, arm in verdicts["arms"].items()
    ]
    if len(sentences) > _LISTED:
        sentences[_LISTED:] = [f"and {len(sentences) - _LISTED} more, in the table"]
    return sentences


def _baselines(page: Page, baselines: Mapping[str, Any], learned: Mapping[str, Any] | None) -> None:
    if not baselines["scores"]:
        return
    page.heading("Has the base learned?")
    sentence = "There is no gate."
    if learned:
        sentence = f"{learned['told'][:1].upper()}{learned['told'][1:]}. Gate: {learned['reason']}."
    page.paragraph(sentence)
    page.table(tables.BASELINE_HEADS, tables.baseline_rows(baselines))


def _costs(page: Page, study: Study) -> None:
    counted = study.record["counted"]
    page.heading("What each arm costs")
    heads = ["arm", "parameters", "without embeddings", f"FLOPs per {counted.removesuffix('s')}"]
    heads += [counted, "updates", "memory, MiB", "tuning runs"]
    rows, flagged, base = [], [], study.arms[study.base]["cost"]
    for name, arm in study.arms.items():
        cost, nbytes = arm["cost"], arm.get("peak_bytes")
        fields = ("parameters", "without_embeddings", "flops", "counted", "updates")
        rows.append(
            [
                name,
                *[spell(cost[field]) for field in fields],
                spell(nbytes / 2**20 if nbytes else None, 1),
                spell(arm.get("tuning", {}).get("runs", 0)),
            ]
        )
        for what in ("parameters", "flops", "counted"):
            if share := tables.spell_share(cost[what], base[what], 1):
                flagged.append(f"{name}: {what} {share} from the base's")
        if arm["matched"]:
            flagged.append(f"{name}: {arm['matched']} solved for")
    page.table(heads, rows)
    page.bullets(flagged)


def _changes(page: Page, study: Study) -> None:
    page.heading("Did the change take?")
    heads = ["arm", "paired", "Δ logits", "Δ loss", "Δ gradient", "input RMS"]
    heads += ["only here", "only in the base"]
    rows = []
    for name, arm in study.arms.items():
        its = arm["certificate"]
        numbers = [spell(its["logits"], 3), signed(its["loss"]), spell(its["gradient"], 3)]
        names = [_few(its["only_here"]), _few(its["only_base"])]
        rows.append([name, f"{its['paired']:.1%}", *numbers, spell(its["input_rms"], 3), *names])
    page.table(heads, rows)
    page.paragraph(
        "Seed 0, before training. Paired: share of the arm's numbers that start with the base's "
        "values. Δ: relative difference of logits and gradients from the base, and the loss's."
    )
    keys = list(dict.fromkeys(key for arm in study.arms.values() for key in arm["changes"]))
    rows = [[name, *[spell(study.value_of(name, key)) for key in keys]] for name in study.arms]
    page.table(["arm", *keys], rows if keys else [])


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:2])
    return f"{shown} and {len(names) - 2} more" if len(names) > 2 else shown or "–"


def _tuning(page: Page, study: Study) -> None:
    tuned = {name: arm["tuning"] for name, arm in study.arms.items() if "tuning" in arm}
    if not tuned:
        return
    asked = next(iter(tuned.values()))
    page.heading("Tuning")
    heads = ["arm", f"chosen {asked['key']}", *(f"{value:g}" for value in asked["grid"]), "note"]
    rows = [
        [name, spell(its["chosen"]), *map(_mean, its["scores"]), its["refused"] or "–"]
        for name, its in tuned.items()
        if its["grid"] == asked["grid"]
    ]
    page.table(heads, rows)
    page.paragraph(
        f"Mean {study.metric} on the validation split over seeds "
        f"{', '.join(map(str, asked['seeds']))}, which no verdict uses. Chosen: the optimum of a "
        "parabola over the logarithm."
    )


def _mean(scores: Sequence[float | None]) -> str:
    known = [score for score in scores if score is not None]
    return spell(sum(known) / len(known)) if len(known) == len(scores) else "diverged"


def _failures(page: Page, study: Study, verdicts: Mapping[str, Any]) -> None:
    rows = [
        [cell.arm, str(cell.seed), state, cell.reason() if state != DIVERGED else "an outcome"]
        for cell in study.cells()
        if (state := cell.state()) != DONE
    ]
    if not rows:
        return
    page.heading("Failures")
    page.table(["arm", "seed", "state", "reason"], rows)
    page.bullets(
        f"{name}: {value['diverged']} of {value['diverged'] + value['n']} diverged, exact interval "
        + spell_interval(clopper_pearson(value["diverged"], value["diverged"] + value["n"]), 2)
        for name, value in verdicts["values"].items()
        if value["diverged"]
    )


def _look_row(look: Mapping[str, Any]) -> list[str]:
    words = "; ".join(f"{name}: {word}" for name, word in look["verdicts"].items())
    counts = [str(look["look"]), str(len(look["seeds"])), f"{look['level']:.3g}"]
    return [look["time"], *counts, words]


def _environment(page: Page, record: Mapping[str, Any]) -> None:
    around = record["environment"]
    shown = {
        "device": f"{around['device']['count']} x {around['device']['kind']}",
        "members at a time": f"{record['members']}; {record['timing']}",
        "python": around["python"],
        "platform": around["platform"],
        "packages": ", ".join(f"{name} {version}" for name, version in around["packages"].items()),
        "transformer_jax": f"{around['version']}, revision {(around['git'] or {}).get('revision')}",
    }
    page.heading("Environment and commands")
    page.table(["what", "value"], [[what, str(value)] for what, value in shown.items()])
    page.code("\n".join(dict.fromkeys(record["commands"])))

"""A study as one page that can be mailed: question, verdicts, pictures, costs, how to repeat it.

Beside it the same tables as Markdown, CSV and LaTeX, and figures for a paper as SVG and PDF.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.options.schema import renamed
from transformer_jax.runs.files import as_plain, replace
from transformer_jax.studies.asking.cells import DIVERGED, DONE, FREQUENCY_BINS
from transformer_jax.studies.asking.settings import spell_setting
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.asking.tuning import tuned_of
from transformer_jax.studies.inference.solved import clopper_pearson
from transformer_jax.studies.reporting import tables
from transformer_jax.studies.reporting.charts import (
    best_of_sweeps,
    breakdowns_of,
    budget_charts,
    by_position_of,
    details_of,
    floor_of,
    forest_of,
    mean_of,
    multiverse_chart,
    sweep_charts,
    tuning_charts,
)
from transformer_jax.studies.reporting.curves import curves_of
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
from transformer_jax.studies.reporting.tables import also_table, signed, spell, spell_interval

_LISTED = 8  # arms, at the head of the page


def write_report(study: Study) -> Path:
    """Writes report.html and the tables; returns the page's path."""
    verdicts = study.verdicts()
    rows = tables.verdict_rows(study, verdicts)
    tables.write_tables(study.path, tables.HEADS, rows)
    _write_figures(study, verdicts)
    body, data = _page(study, verdicts, rows)
    title = study.sealed["question"]
    return replace(study.path, "report.html", whole_page(title, body, data))


def _write_figures(study: Study, verdicts: Mapping[str, Any]) -> None:
    try:
        from transformer_jax.studies.reporting.figures import draw_figures
    except ImportError:
        return  # matplotlib belongs to the extra `train`; the page draws for itself
    draw_figures(study, verdicts)


def _page(study: Study, verdicts: Mapping[str, Any], rows: list) -> tuple[str, dict[str, Any]]:
    arms = list(study.arms)
    runs = {arm: [study.cell(arm, seed).path for seed in study.seeds_of(arm)] for arm in arms}
    costs = {arm: study.arms[arm]["cost"] for arm in arms}
    where = {**by_position_of(study), **breakdowns_of(study, verdicts)}
    doubted, shorter = multiverse_chart(study), budget_charts(study, verdicts)
    swept, tuned = sweep_charts(study, verdicts), tuning_charts(study)
    band = f"Line: mean over {len(study.seeds)} seeds; band: from the least to the largest."
    charts = {**swept, **tuned, **shorter, **doubted, **where}
    data = as_plain(
        {
            "arms": arms,
            "forest": forest_of(verdicts, arms),
            "curves": {
                **curves_of(runs, costs, study.record["counted"], f"eval/{study.metric}"),
                "floor": floor_of(study),
            },
            "charts": charts,
        }
    )
    body = "\n".join(
        [
            _lead(study, verdicts),
            section(
                "Verdicts",
                table(tables.HEADS, rows, tables.how_judged(verdicts)),
                place_for("forest"),
                aside(
                    "Line: the interval that the word is read off, simultaneous over all "
                    "contrasts. Rings: each seed. Shaded: within the margin."
                ),
                listed(tables.notes_on(verdicts)),
            ),
            section(
                "Score over an option", *_places(swept), listed(best_of_sweeps(study, verdicts))
            ),
            section("Has the base learned?", *_baselines(study)),
            section("Learning curves", place_for("curves"), aside(band)),
            section("What each arm costs", *_ledger(study)),
            section("Did the change take?", *_certificates(study)),
            section("Tuning", *_tuning_table(study), *_places(tuned)),
            section("Shorter budgets", *_budgets(verdicts), *_places(shorter)),
            section("Under other choices", *_multiverse(study), *_places(doubted)),
            section("Where arms differ", *_where(study), *_places(where)),
            section("Other evaluations", *_also(verdicts)),
            section("How arms differ in their configs", _config_table(study)),
            section("Failures", _failures(study)),
            section("Looks", _looks(study)),
            section("Environment and commands", *_environment(study)),
        ]
    )
    return body, data


# ---------------------------------------------------------------- question and verdicts


def _lead(study: Study, verdicts: Mapping[str, Any]) -> str:
    sealed, record = study.sealed, study.record
    marks = [f"sealed {record['sealed_at']}", f"seal {record['seal'][:12]}"]
    marks += [f"exploratory: {reason}" for reason in record["exploratory"]]
    shown = " ".join(f'<span class="mark">{escaped(mark)}</span>' for mark in marks)
    sentences = [
        f"{name}: {arm['words']}"
        + (f" ({signed(arm['mean'])})" if arm.get("mean") is not None else "")
        for name, arm in verdicts["arms"].items()
    ]
    if len(sentences) > _LISTED:
        sentences[_LISTED:] = [f"and {len(sentences) - _LISTED} more, in the table"]
    sentences += tables.trend_lines(verdicts)
    return "\n".join(
        [
            f"<h1>{escaped(sealed['question'])}</h1>",
            f"<p>{shown}</p>",
            paragraph(f"Predicted beforehand: {sealed['prediction']}"),
            *([listed(came)] if (came := tables.expected_of(sealed, verdicts)) else []),
            paragraph(f"Against {verdicts['base']}:"),
            listed(sentences),
            aside(f"Margin {sealed['margin']:g}: {sealed['margin_reason']}."),
        ]
    )


# ---------------------------------------------------------------- arms


def _ledger(study: Study) -> list[str]:
    counted = study.record["counted"]
    heads = ["arm", "parameters", "without embeddings", f"FLOPs per {counted.removesuffix('s')}"]
    heads += [counted, "updates", "training FLOPs", "memory, MiB"]
    heads += ["tuning runs", "input RMS"]
    rows, flagged = [], []
    base = study.arms[study.base]["cost"]
    for name, arm in study.arms.items():
        cost = arm["cost"]
        its, nbytes = tuned_of(arm), arm.get("peak_bytes")
        rows.append(
            [
                name,
                spell(cost["parameters"]),
                spell(cost["without_embeddings"]),
                spell(cost["flops"]),
                spell(cost["counted"]),
                spell(cost["updates"]),
                f"{cost['flops'] * cost['counted']:.3g}",
                spell(nbytes / 2**20 if nbytes else None, 1),
                spell(its.runs if its else 0),
                spell(arm["certificate"]["input_rms"], 3),
            ]
        )
        for what in ("parameters", "flops", "counted"):
            if share := tables.spell_share(cost[what], base[what], 1):
                flagged.append(f"{name}: {what} {share} from the base's")
    matched = [f"{n}: {a['matched']} solved for" for n, a in study.arms.items() if a["matched"]]
    note = (
        "FLOPs are those of matrix products, three times a forward pass. Memory is what the "
        "compiled training program needs for one member, its batches included."
    )
    return [table(heads, rows), listed(flagged), listed(matched), aside(note)]


def _certificates(study: Study) -> list[str]:
    heads = ["arm", "paired", "Δ logits", "Δ loss", "Δ gradient"]
    heads += ["looks ahead", "only here", "only in the base"]
    rows = []
    for name, arm in study.arms.items():
        its = arm["certificate"]
        rows.append(
            [
                name,
                f"{its['paired']:.1%}",
                spell(its["logits"], 3),
                signed(its["loss"]),
                spell(its["gradient"], 3),
                "–" if its["sees_ahead"] is None else "yes" if its["sees_ahead"] else "no",
                _few(its["only_here"]),
                _few(its["only_base"]),
            ]
        )
    note = (
        "Seed 0, before training. Paired: share of the arm's numbers that start with the base's "
        "values. Δ: relative difference of logits and gradients from the base, and the loss's."
    )
    return [table(heads, rows), aside(note)]


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:2])
    return f"{shown} and {len(names) - 2} more" if len(names) > 2 else shown or "–"


def _baselines(study: Study) -> list[str]:
    baselines = study.record.get("baselines")
    if not baselines or not baselines["scores"]:
        return []
    learned = study.verdicts().get("learned")
    sentence = "There is no gate."
    if learned:
        sentence = f"{learned['told'][:1].upper()}{learned['told'][1:]}. Gate: {learned['reason']}."
    note = (
        "Simple methods, trained on the training split (of a longer text on its first 20 million "
        "tokens) and scored as the arms are. A base "
        "that is not better than the gate gives no verdict."
    )
    rows = tables.baseline_rows(baselines)
    return [paragraph(sentence), table(tables.BASELINE_HEADS, rows), aside(note)]


# ---------------------------------------------------------------- tuning


def _tuning_table(study: Study) -> list[str]:
    tuned = {name: its for name, arm in study.arms.items() if (its := tuned_of(arm))}
    if not tuned:
        return []
    heads = ["arm", "chosen", "settings", "runs", "sensitivity", "missed by", "note"]
    rows = []
    for name, its in tuned.items():
        missed = spell(its.refined["missed"]) if its.refined else "–"
        counts = [spell(len(its.tried)), spell(its.runs), spell(its.sensitivity)]
        rows.append([name, spell_setting(its.chosen), *counts, missed, its.refused or "–"])
    note = (
        "Sensitivity: mean over the settings of min(loss, initial loss) minus the best loss. "
        "Missed by: root mean square of the score that is lost as a parabola's minimum is not "
        "quite the true one; the intervals of the verdicts hold it. Expected best: of k trials "
        "drawn from those that were made, on average and with the standard deviation."
    )
    return [table(heads, rows), aside(note)]


def _budgets(verdicts: Mapping[str, Any]) -> list[str]:
    rows = tables.budget_rows(verdicts)
    if not rows:
        return []
    note = (
        "Runs of a part of the updates, each with its own fall of the rate. A shorter budget is "
        "tested only while the longer holds what is said of all updates. Band: the interval."
    )
    learned = [
        f"after {budget['updates'][verdicts['base']]:,} updates {budget['learned']['told']}"
        for budget in verdicts["budgets"].values()
        if budget["learned"]
    ]
    return [table(tables.BUDGET_HEADS, rows), listed(learned), aside(note)]


def _multiverse(study: Study) -> list[str]:
    multiverse = study.multiverse()
    if not multiverse:
        return []
    sentences = [
        f"{name}: {its['words']} specifications" for name, its in multiverse["arms"].items()
    ]
    note = (
        f"Base and arms with the same other choices, one run each with seed {multiverse['seed']}: "
        "each doubt alone, then combinations. A description, and no test."
    )
    return [
        listed(sentences),
        table(*tables.multiverse_rows(multiverse)),
        aside(note),
    ]


def _places(charts: Mapping[str, Any]) -> list[str]:
    return [place_for(name) for name in charts]


# ---------------------------------------------------------------- where


def _where(study: Study) -> list[str]:
    bins = [f"frequency {b + 1}/{FREQUENCY_BINS}" for b in range(FREQUENCY_BINS)]
    kinds = ["seen in the window", "new in the window"]
    rows = []
    for arm, seeds in details_of(study).items():
        parts = [d["where"] for d in seeds.values() if "where" in d]
        if parts:
            columns = [[w["frequency"][b] for w in parts] for b in range(FREQUENCY_BINS)]
            columns += [[w["repeated"][kind] for w in parts] for kind in kinds]
            rows.append([arm, *[spell(mean_of(column)) for column in columns]])
    if not rows:
        return []
    caption = (
        "Test loss in nats, mean over seeds, by the target's frequency (1 is rarest, equal shares "
        "of the text), and by whether the window held it before"
    )
    return [table(["arm", *bins, *kinds], rows, caption)]


def _also(verdicts: Mapping[str, Any]) -> list[str]:
    heads, rows = also_table(verdicts)
    note = "Secondary: intervals of each contrast alone, and no verdicts."
    return [table(heads, rows), aside(note if rows else "")]


# ---------------------------------------------------------------- the rest


def _config_table(study: Study) -> str:
    every = (renamed(arm["changes"]) for arm in study.arms.values())
    keys = list(dict.fromkeys(key for changes in every for key in changes))
    if not keys:
        return ""
    rows = [[name, *[spell(study.value_of(name, key)) for key in keys]] for name in study.arms]
    return table(["arm", *keys], rows)


def _failures(study: Study) -> str:
    shorter = [
        (f"{cell.arm}, {float(b):.0%} of the updates", cell) for b, cell in study.shorter_cells()
    ]
    rows = [
        [name, str(cell.seed), state, cell.reason() if state != DIVERGED else "an outcome"]
        for name, cell in [*((cell.arm, cell) for cell in study.cells()), *shorter]
        if (state := cell.state()) != DONE
    ]
    diverged = [
        f"{name}: {value['diverged']} of {value['diverged'] + value['n']} diverged, exact interval "
        + spell_interval(clopper_pearson(value["diverged"], value["diverged"] + value["n"]), 2)
        for name, value in study.verdicts()["values"].items()
        if value["diverged"]
    ]
    if not rows:
        return paragraph("Every cell ended as it should.")
    return table(["arm", "seed", "state", "reason"], rows) + listed(diverged)


def _looks(study: Study) -> str:
    rows = [
        [
            look["time"],
            str(look["look"]),
            str(len(look["seeds"])),
            f"{look['level']:.3g}",
            "; ".join(f"{n}: {w}" for n, w in look["verdicts"].items()),
        ]
        for look in study.looks()
    ]
    return table(["time", "look", "seeds", "level", "verdicts"], rows)


def _environment(study: Study) -> list[str]:
    around = study.record["environment"]
    shown = {
        "device": f"{around['device']['count']} x {around['device']['kind']}",
        "computed": f"{study.record['how']}; {study.record['timing']}",
        "python": around["python"],
        "platform": around["platform"],
        "packages": ", ".join(f"{n} {v}" for n, v in around["packages"].items()),
        "git": json.dumps(around["git"]),
        "code": around["code"][:16],
    }
    commands = "\n".join(dict.fromkeys(study.record["commands"]))
    return [table(["what", "value"], list(shown.items())), f"<pre>{escaped(commands)}</pre>"]

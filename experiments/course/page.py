"""The course as one HTML page that opens offline, and as Markdown for the site."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from experiments.course.drawings import as_svg, mask_at_work, pictures_of_rotations
from experiments.course.errata import Erratum
from experiments.course.outcomes import Seen, StatementOutcome
from experiments.course.real_models import Table
from experiments.course.sentences import Look, Looks
from transformer_jax.studies.reporting.page import (
    escaped,
    listed,
    paragraph,
    section,
    table,
    whole_page,
)
from transformer_jax.studies.reporting.tables import as_markdown

Demonstrated = Sequence[tuple[Erratum, Seen | None]]
Words = Sequence[tuple[str, str, Sequence[float]]]  # of contextual.similarities


class Part(NamedTuple):
    """A section of the page.

    Attributes:
      title: its heading.
      tables: caption, heads and rows of each.
      says: what stands before them.
      pictures: as HTML, before the tables.
    """

    title: str
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]]]] = ()
    says: str = ""
    pictures: str = ""


_WORDS = "Words in several sentences"
_TITLE = "What courses say about transformers, tested"
_LEAD = (
    "Each row is a statement of courses and papers. An exact one is decided by a check that runs "
    "whenever this page is made; a statistical one by sealed studies, whose "
    "verdicts speak for the sizes, the data and the budgets of those studies; one about speed by "
    "times of alternating rounds. “Did not hold here” is a result like any other. “Unresolved”: "
    "it was not decided; more seeds, learning rates that are known better, or another study would "
    "tell. “Cannot tell”: the study that asked does not bear on it, because its "
    "base had not learned, say. “Held in part”: of several claims some did; the lines say which."
)
_HEADS = ["#", "statement", "outcome"]
_ERRATA_HEADS = ["notes that circulate say", "what holds", "seen"]
_WORD_HEADS = ["word", "sentences", "cosine of its vectors, before the first block and after each"]
_MASK_HEADS = ["", *(f"key {n}" for n in range(1, 5))]
_MASK_STEPS = (
    "Scores, a row for each query:",
    "Those of later keys become -inf, before the softmax:",
    "The softmax of each row: later keys get exactly 0, and a row still sums to 1:",
)
_SENTENCE_HEADS = ["sentence", "the model goes on", "head", "the last word listens to"]


def _overview(outcomes: Sequence[StatementOutcome]) -> list[list[str]]:
    return [[str(o.statement.number), o.statement.says, o.word] for o in outcomes]


def _told(outcome: StatementOutcome) -> list[str]:
    """What decided a statement, a line each."""
    row = outcome.statement
    lines = [f"Formula: {row.formula}", f"Ours: {row.where}"]
    lines += [f"Check: {outcome.seen.told}"] if outcome.seen else []
    lines += [f"Study {line}" for line in outcome.verdicts]
    return lines + ([f"Note: {row.note}"] if row.note else [])


def _rows_of_errata(errata: Demonstrated) -> list[list[str]]:
    return [[row.circulates, row.holds, seen.told if seen else "–"] for row, seen in errata]


def _with_names(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[f"query {n}", *row] for n, row in enumerate(rows, 1)]


def _word_rows(words: Words) -> list[list[str]]:
    return [[word, pair, ", ".join(f"{c:.2f}" for c in by_layer)] for word, pair, by_layer in words]


def _sentence_rows(looks: Looks) -> list[list[str]]:
    """The last place of each head, for each sentence: the three words that it listens to most."""
    rows = []
    for look in looks.sentences:
        for layer, heads in enumerate(look.weights):
            for head, weights in enumerate(heads):
                most = np.argsort(-weights)[:3]
                listens = ", ".join(f"{look.words[i]} {weights[i]:.2f}" for i in most)
                where = f"layer {layer + 1}, head {head + 1}"
                rows.append(
                    [" ".join(look.words), f"{look.verb} {look.probability:.3f}", where, listens]
                )
    return rows


def parts_of(
    worked: dict[str, Seen],
    errata: Demonstrated,
    looks: Looks,
    words: Words = (),
    seen: Sequence[Table] = (),
) -> list[Part]:
    """Returns what follows the statements."""
    rotations = f'<div class="small">{"".join(map(as_svg, pictures_of_rotations()))}</div>'
    numbers = [[says, its.told] for says, its in worked.items()]
    masks = zip(_MASK_STEPS, mask_at_work(), strict=True)
    maps = "\n".join(map(_map_of, looks.sentences))
    return [
        Part("Worked numbers", [("", ["number", "ours"], numbers)]),
        Part("The worked example in the plane", pictures=rotations),
        Part("A mask at work", [(step, _MASK_HEADS, _with_names(rows)) for step, rows in masks]),
        Part("Errata", [("", _ERRATA_HEADS, _rows_of_errata(errata))]),
        Part(
            "The attention of three sentences",
            [("", _SENTENCE_HEADS, _sentence_rows(looks))],
            _about(looks),
            maps,
        ),
        *([Part(_WORDS, [("", _WORD_HEADS, _word_rows(words))])] if words else []),
        *(Part(each.title, [("", each.heads, each.rows)]) for each in seen),
    ]


def as_html(outcomes: Sequence[StatementOutcome], parts: Sequence[Part]) -> str:
    """The page."""
    sections = [
        section(
            part.title,
            paragraph(part.says),
            part.pictures,
            *(table(heads, rows, caption) for caption, heads, rows in part.tables),
        )
        for part in parts
    ]
    body = [
        f"<h1>{escaped(_TITLE)}</h1>",
        paragraph(_LEAD),
        section("Outcomes", table(_HEADS, _overview(outcomes))),
        section("What decided them", *map(_block, outcomes)),
        *sections,
    ]
    return whole_page(_TITLE, "\n".join(body), {"arms": [], "charts": {}})


def as_site_page(outcomes: Sequence[StatementOutcome], parts: Sequence[Part]) -> str:
    """The same as Markdown, without pictures."""
    lines = [f"# {_TITLE}", "", _LEAD, "", as_markdown(_HEADS, _overview(outcomes))]
    lines += [line for outcome in outcomes for line in _markdown_block(outcome)]
    for part in parts:
        if part.tables:
            lines += [f"## {part.title}", "", *([part.says, ""] if part.says else [])]
        for caption, heads, rows in part.tables:
            lines += [*([caption, ""] if caption else []), as_markdown(heads, rows)]
    return "\n".join(lines)


def _block(outcome: StatementOutcome) -> str:
    row = outcome.statement
    head = f"<h3>{row.number}. {escaped(row.says)} <em>{escaped(outcome.word)}</em></h3>"
    return head + listed(_told(outcome))


def _markdown_block(outcome: StatementOutcome) -> list[str]:
    row = outcome.statement
    plain = (line.replace("_", "\\_").replace("*", "\\*") for line in _told(outcome))
    return [
        f"## {row.number}. {row.says}",
        "",
        f"**{outcome.word}**",
        "",
        *(f"- {p}" for p in plain),
        "",
    ]


def _about(looks: Looks) -> str:
    alike = ", ".join(f"{layer[0, 1]:.2f}" for layer in looks.similarity)
    return (
        "A decoder of two layers with two heads each has just been trained to make a verb agree "
        f"with the first noun; it is right in {looks.accuracy:.1%} of the test sentences. A row of "
        "each picture is a head, a column a word, and the darker the more the last word listens to "
        "it. How alike the two heads of a layer attend, over the test sentences (1 is the same): "
        f"{alike}."
    )


def _map_of(look: Look) -> str:
    """A picture of what the last word listens to: rows are heads, columns words."""
    wide, high, left, top = 84, 34, 130, 26
    layers, heads, _ = look.weights.shape

    def text(x: float, y: float, anchor: str, said: str) -> str:
        return f'<text x="{x:.0f}" y="{y}" text-anchor="{anchor}">{escaped(said)}</text>'

    parts = [text(left + wide * (i + 0.5), 16, "middle", w) for i, w in enumerate(look.words)]
    for row, weights in enumerate(look.weights.reshape(layers * heads, -1)):
        y = top + high * row
        named = f"layer {row // heads + 1}, head {row % heads + 1}"
        parts.append(text(left - 10, y + 21, "end", named))
        for column, weight in enumerate(weights):
            x = left + wide * column
            parts.append(
                f'<rect x="{x}" y="{y}" width="{wide - 2}" height="{high - 2}" class="heat" '
                f'fill-opacity="{weight:.3f}"><title>{weight:.3f}</title></rect>'
            )
    size = f"0 0 {left + wide * len(look.words)} {top + high * layers * heads}"
    label = escaped(" ".join(look.words))
    said = escaped(f"{' '.join(look.words)} {look.verb} ({look.probability:.3f})")
    return (
        f'<figure><svg viewBox="{size}" role="img" aria-label="what the last word of {label} '
        f'listens to">{"".join(parts)}</svg><figcaption>{said}</figcaption></figure>'
    )

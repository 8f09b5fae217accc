"""What the committed studies found, as pages: an overview, and one a study, read in a minute."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median

from experiments.answers import (
    ABOUT,
    ASKED_AGAIN,
    FIGURES,
    HERE,
    LEFT_OUT,
    NEXT,
    RESULTS,
    WITHDRAWN,
    CommittedStudy,
    in_the_overview,
    read_study,
    undecided,
)
from experiments.page_of_study import limits_of, page_of_study, to_repeat
from experiments.speed import RATIOS
from transformer_jax.runs.files import read_json
from transformer_jax.studies.inference.statistics import benjamini_hochberg
from transformer_jax.studies.inference.words import REFUSED
from transformer_jax.studies.reporting.tables import as_markdown


def pages(page: str = "results/{}/README.md", figure: str = "{figure}") -> dict[str, str]:
    """Returns name -> Markdown; the overview is under the empty name.

    Args:
      page: where the overview finds a page, with {} for its name.
      figure: where a page finds a figure, with {name} of the study and {figure}.
    """
    names = sorted(file.parent.name for file in RESULTS.glob("*/verdicts.json"))
    studies = [study for name in names if (study := read_study(name))]
    q_values = _q_values(studies)

    def place(name: str) -> Callable[[str], str]:
        return lambda drawn: figure.format(name=name, figure=drawn)

    found = {s.name: page_of_study(s, q_values, place(s.name)) for s in studies}
    others = {
        path.parent.name: _of_several(path, place(path.parent.name))
        for path in sorted([*RESULTS.glob("*/ladder.md"), *RESULTS.glob("*/suite.md")])
    }
    others |= {path.parent.name: _times(path) for path in sorted(RESULTS.glob("*/speed.json"))}
    return {"": _overview(studies, others, page)} | found | others


def write() -> Path:
    """Writes the overview, and each page beside what it is made of; returns the overview."""
    overview = HERE / "README.md"
    for name, text in pages().items():
        file = RESULTS / name / "README.md" if name else overview
        file.write_text(text, encoding="utf-8")
    return overview


# ---------------------------------------------------------------- the overview


def _overview(studies: list[CommittedStudy], others: Mapping[str, str], page: str) -> str:
    def linked(name: str, answer: str) -> str:
        return f"[{answer}]({page.format(name)})"

    answered = [study for study in studies if not undecided(study)]
    answers = [
        [
            linked(s.name, s.verdicts["question"]),
            f"Beside {s.verdicts['base']}: {in_the_overview(s)}."
            + (f" Asked again by {linked(later, later)}." if later else ""),
        ]
        for s in answered
        for later in [ASKED_AGAIN.get(s.name)]
    ]
    open_ones, asked_again = [], []
    for s in studies:
        row = [linked(s.name, s.verdicts["question"]), undecided(s)]
        if s in answered:
            continue
        if s.name in ASKED_AGAIN:
            asked_again.append([*row, linked(ASKED_AGAIN[s.name], ASKED_AGAIN[s.name])])
        else:
            open_ones.append(row)
    measured = [
        "- "
        + f"{name}: "
        + linked(name, text.splitlines()[0].removeprefix("# "))
        + (f" Not decided: {WITHDRAWN[name]}." if name in WITHDRAWN else _in_short(text))
        + (f" {LEFT_OUT[name]}." if name in LEFT_OUT else "")
        for name, text in others.items()
    ]
    return "\n".join(
        [
            _HEAD,
            "## Answers",
            "",
            "After *beside* stands the base. A number after *at* is a learning rate or a number "
            "of updates. *More* of an option is the trend over its values. Where no arm was tuned "
            "all have one learning rate, unless their names say others. Words that changed with "
            "the procedure were decided again by newer rules, from the same scores.",
            "",
            as_markdown(["question", "answer"], answers),
            "## Not decided",
            "",
            "Their pages show what was found, by the same procedure; why it is no answer stands "
            "beside each.",
            "",
            as_markdown(["question", "why not"], open_ones),
            "## Asked again",
            "",
            "These were asked first in a way that could not answer them; a later study asked "
            "again, or asked a part (post_norm_rates compares post-norm with pre-norm, and with "
            "itself without warm-up), and may be undecided too.",
            "",
            as_markdown(["question", "why it was not decided", "asked again by"], asked_again),
            "## To be asked next",
            "",
            *[f"- {question}" for question in NEXT],
            "",
            "## Over scales, and times",
            "",
            *measured,
            "",
        ]
    )


def _in_short(text: str) -> str:
    """The words of a ladder or a suite."""
    found = re.findall(r"^- \*\*(.+?)\*\*", text, re.MULTILINE)
    return f" {'; '.join(found)}." if found else ""


_HEAD = """# What the studies found

Each study was sealed before the first cell that its arms are judged by was trained, or pools seeds
of an earlier seal, as reverse does. Some bases had been trained in another study (patches_wide's
for one), and trials of the tuning of positions_256 and of vocabulary_by_bytes, of the bases of
heads_wide, depth_wide and text_models_wide, and of post_norm's base and post-norm had been seen.
Arms are trained on the same seeds; means are compared in pairs, counts of solved runs and their
updates are not. [How to read a verdict](../docs/verdicts.md) says by which procedure. A question
leads to its page: the answer and what it speaks for, a picture, the command that repeats it, what
was predicted, what was found before (three older ladders have less). A verdict speaks for its
sizes, its data and its budget. positions, heads_wide, depth_wide, norms_wide
and text_models_wide have the same seeds, the same text and nearly the same base, patches_wide and
poolings_wide the same runs of the base, so they are not independent. Older studies sealed no gate
that their base has to pass; theirs is the usual one, set after their scores were seen. `python -m
experiments.results` writes these pages from the scores that lie beside them.
"""


# ---------------------------------------------------------------- what else was measured


def _of_several(path: Path, figure: Callable[[str], str]) -> str:
    """What a ladder or a suite says, with why it decides nothing if it does not."""
    head, _, text = path.read_text(encoding="utf-8").partition("\n")
    reason = WITHDRAWN.get(path.parent.name)
    text = text.replace("**", "") if reason else text  # no word stands out that decides nothing
    lines = [head, *(["", f"**Not decided:** {reason}."] if reason else []), text]
    if (path.parent / "ladder.svg").exists():
        lines += [f"![{FIGURES['ladder.svg']}]({figure('ladder.svg')})", ""]
    if (path.parent / ABOUT).exists():
        about = read_json(path.parent / ABOUT)
        lines += [
            f"The largest rung speaks for {about['domain']}. {about['learned']}",
            f"What matters is {about['margin']}.",
            "",
            *[f"{line}\n" for line in limits_of(about["config_path"])],
            *to_repeat(about["seconds"], about["environment"], about["commands"][0]),
            f"**Predicted beforehand:** {about['prediction']}",
            "",
            "(It was predicted in words, without ranges: nothing scores it. Where a best value "
            "lies is an estimate; of that nothing was sealed.)",
            "",
        ]
        changed = ", ".join(f"{key}={value}" for key, value in about["overrides"].items())
        lines[0] += f" ({changed})" if changed else ""
    return "\n".join(lines)


def _times(path: Path) -> str:
    """What experiments.speed wrote, as a table."""
    found = read_json(path)
    lengths = list(next(iter(found["ratios"].values())))
    rows = [
        [f"{asked}: ({slow}) / ({fast})"]
        + [
            f"{median(r):.2f} ({min(r):.2f} to {max(r):.2f})"
            for r in found["ratios"][asked].values()
        ]
        for asked, (slow, fast) in RATIOS.items()
    ]
    rounds = len(found["ratios"]["training"][lengths[0]])
    sentence = (
        "# How fast are a transformer and an LSTM?\n\nMedian and range of the ratios of two times "
        "in a round, where above 1 the second is faster and both have as many parameters: "
        f"{rounds} rounds, by length in tokens; {found['config']} on "
        f"{found['machine']}, by `python -m experiments.speed`. Reading and writing are of one "
        "text, an update of 2,048 tokens.\n"
    )
    return "\n".join([sentence, as_markdown(["times", *lengths], rows)])


def _q_values(studies: Iterable[CommittedStudy]) -> dict[tuple, float]:
    tested = {
        (study.name, arm): its["p_alone"]
        for study in studies
        for arm, its in study.verdicts["arms"].items()
        if its.get("p_alone") is not None and its["verdict"] != REFUSED
    }
    return dict(zip(tested, benjamini_hochberg(list(tested.values())), strict=True))

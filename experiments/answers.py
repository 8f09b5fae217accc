"""What the committed studies found, as pages: an overview, and one a study, read in a minute."""

import ast
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from experiments.speed import RATIOS
from transformer_jax.options.config import flatten
from transformer_jax.options.schema import completed
from transformer_jax.runs.files import read_json
from transformer_jax.studies.asking.gate import METHODS
from transformer_jax.studies.asking.register import Register
from transformer_jax.studies.asking.settings import spell_setting
from transformer_jax.studies.asking.tuning import Tuned, tuned_of
from transformer_jax.studies.inference.statistics import (
    FOR_MEANS,
    IDENTICAL,
    NO_VERDICT,
    NOT_PRIMARY,
    REFUSED,
    UNRESOLVED,
    benjamini_hochberg,
)
from transformer_jax.studies.judging.adequacy import CANNOT_TELL
from transformer_jax.studies.judging.breakdowns import BREAKDOWNS
from transformer_jax.studies.judging.decision import UNTUNED
from transformer_jax.studies.reporting.tables import (
    NOT_BY_SEEDS,
    also_table,
    as_markdown,
    asked_elsewhere,
    beyond_this_text,
    budget_rows,
    clock,
    expected_of,
    signed,
    spell,
    spell_interval,
    trend_of,
)

HERE = Path(__file__).parent
RESULTS = HERE / "results"
_DECIDES_NOTHING = (IDENTICAL, UNRESOLVED, CANNOT_TELL, REFUSED, NO_VERDICT, NOT_PRIMARY)
_LIMITS = "Limits:"  # how a paragraph of a study's docstring begins
_MOST_SEEDS = 64  # of which a page says that they would decide something
# Of a page, with what each shows.
FIGURES = {
    "forest.svg": "Paired differences",
    "sweep.svg": "Scores over the option",
    "curves.svg": "Learning curves",
}
GATE = "gate.json"  # what the base of a study that sealed no gate is beside a simple method

# Studies that cannot decide what they ask, whatever came out.
WITHDRAWN = {
    "agreement_far": "no arm is tuned: at this learning rate the LSTM had learned nothing at all",
    "agreement": "every arm answers everything rightly; who needs fewer updates would tell",
    "cross_attention": "true by construction: without cross-attention nothing leads from source to "
    "decoder, which a check of the course shows; the LSTM has the transformer's learning rate",
    "depth": "all arms have four heads, so that those of deeper and narrower ones are smaller",
    "free_running": "a decoder that reverses eight symbols makes no mistakes to learn from",
    "leak": "the task can be solved without what leaks, so that the loss has nothing to hide",
    "norm_kinds": "post-norm's verdict is an artefact of 200 updates: after 400 it was unresolved",
    "pretrained": "no arm is tuned, and the net from scratch, after 50 updates, is below a linear "
    "model",
    "pretrained_ladder": "no arm is tuned, and some nets from scratch diverged",
    "projections": "the arms have up to a fifth fewer parameters than the base",
    "recall": "the recurrent nets never beat a guess among the values that were seen, so there was "
    "nothing to forget",
    "rotary_ladder": "its bases, of 500 updates at one learning rate, had not learned their text",
    "text_models": "all arms have the transformer's learning rate; text_models_wide, with more "
    "updates and a rate for each, turns the order around",
    "translations": "without cross-attention true by construction; the LSTM has the transformer's "
    "learning rate",
    "word_vectors_ladder": "its bases had not learned: a linear model of the same words is better",
    "vocabulary": "as many tokens hold more text where the vocabulary is larger, and the arms have "
    "up to three times the parameters; as many bytes at as many operations would tell",
}


class Study(NamedTuple):
    """A committed study.

    Attributes:
      name: of its folder.
      record: what study.json holds.
      verdicts: what verdicts.json holds.
      learned: of adequacy.whether_learned; None where no simple method is known.
    """

    name: str
    record: dict[str, Any]
    verdicts: dict[str, Any]
    learned: dict[str, Any] | None


@functools.cache
def read_study(name: str) -> Study | None:
    """Returns a committed study; None if there is none of that name."""
    folder = RESULTS / name
    if not (folder / "verdicts.json").exists():
        return None
    verdicts = read_json(folder / "verdicts.json")
    gate = read_json(folder / GATE) if (folder / GATE).exists() else None
    record = read_json(folder / "study.json")
    return Study(name, record, verdicts, verdicts.get("learned") or gate)


def withheld(study: Study) -> str:
    """Returns why what a study found does not bear on its question; empty where it does."""
    reasons = [WITHDRAWN[study.name]] if study.name in WITHDRAWN else []
    if study.learned and not study.learned["passed"]:
        reasons.append(f"the base has not learned: {study.learned['told']}")
    return "; ".join(reasons)


def undecided(study: Study) -> str:
    """Returns why a study leaves its question open; empty where it does not."""
    said = [*study.verdicts["arms"].values(), *filter(None, [study.verdicts.get("trend")])]
    is_open = all(its["verdict"] in _DECIDES_NOTHING for its in said)
    return withheld(study) or (_words(study) if is_open else "")


def pages(page: str = "results/{}/README.md", figure: str = "{figure}") -> dict[str, str]:
    """Returns name -> Markdown; the overview is under the empty name.

    Args:
      page: where the overview finds a page, with {} for its name.
      figure: where a page finds a figure, with {name} of the study and {figure}.
    """
    names = sorted(file.parent.name for file in RESULTS.glob("*/verdicts.json"))
    studies = [study for name in names if (study := read_study(name))]
    q_values = _q_values(studies)
    found = {
        study.name: _page(
            study, q_values, lambda drawn, name=study.name: figure.format(name=name, figure=drawn)
        )
        for study in studies
    }
    others = {path.parent.name: _of_several(path) for path in _several()}
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


def _overview(studies: list[Study], others: Mapping[str, str], page: str) -> str:
    def linked(name: str, answer: str) -> str:
        return f"[{answer}]({page.format(name)})"

    answered = [study for study in studies if not undecided(study)]
    answers = [
        [linked(s.name, s.verdicts["question"]), f"Beside {s.verdicts['base']}: {_words(s)}."]
        for s in answered
    ]
    open_ones = [
        [linked(s.name, s.verdicts["question"]), undecided(s)] for s in studies if s not in answered
    ]
    measured = [
        "- "
        + f"{name}: "
        + linked(name, text.splitlines()[0].removeprefix("# "))
        + (f" Not decided: {WITHDRAWN[name]}." if name in WITHDRAWN else "")
        for name, text in others.items()
    ]
    return "\n".join(
        [
            _HEAD,
            "## Answers",
            "",
            as_markdown(["question", "answer"], answers),
            "## Not decided",
            "",
            "Their pages show what was found, by the same procedure; it does not bear on the "
            "question, for the reason that stands beside it.",
            "",
            as_markdown(["question", "why not"], open_ones),
            "## Over scales, and times",
            "",
            *measured,
            "",
        ]
    )


_HEAD = """# What the studies found

Each study was sealed before its first cell, and its arms are compared over paired seeds; [how to
read a verdict](../docs/verdicts.md) says by which procedure. A question leads to its page: the
answer and what it speaks for, a picture, the command that repeats it, what was predicted, what was
found before. A verdict speaks for its sizes, its data and its budget. `python -m
experiments.results` writes these pages from the scores that lie beside them.
"""


def _words(study: Study) -> str:
    """The word of each arm and of a trend; that none was tuned is said once."""
    said = study.verdicts["arms"]
    if trend := study.verdicts.get("trend"):
        said = said | {f"more {trend['key']}": trend}
    words = "; ".join(f"{name}: {its['words'].removesuffix(UNTUNED)}" for name, its in said.items())
    is_untuned = any(its["words"].endswith(UNTUNED) for its in said.values())
    return words + " (no arm was tuned)" * is_untuned


# ---------------------------------------------------------------- the page of a study


def _page(study: Study, q_values: Mapping[tuple, float], figure: Callable[[str], str]) -> str:
    name, record, verdicts, _ = study
    why_not, base = undecided(study), verdicts["base"]
    means = [
        f"{arm}: {its['words'].removesuffix(UNTUNED)}"
        + (f" ({signed(its['mean'])} {spell_interval(its['interval'])})" if its.get("mean") else "")
        for arm, its in verdicts["arms"].items()
    ]
    means += trend_of(verdicts)
    answer = (
        f"**Not decided:** {why_not}." if why_not else f"**Beside {base}:** {'; '.join(means)}."
    )
    device, packages = record["environment"]["device"], record["environment"]["packages"]
    lines = [
        f"# {verdicts['question']}",
        "",
        answer,
        "",
        f"This speaks for {domain_of(study)}. {_learned(study)}",
        f"Measured by {verdicts['metric']}; + is better. What matters is {verdicts['margin']:g} or "
        f"more: {record['sealed']['margin_reason']}.",
        "",
        f"![Paired differences from {base}]({figure('forest.svg')})",
        "",
        *[f"{line}\n" for line in _limits(record["config_path"])],
        *[f"{line}\n" for line in ([] if why_not else _seeds_needed(verdicts))],
        f"**To repeat it**, {clock(record['seconds'])} on {device['count']} {device['kind']} "
        f"({record['environment']['cores']} cores):",
        "",
        f"```sh\n{record['commands'][0]}\n```",
        "",
        f"**Predicted beforehand:** {verdicts['prediction']}",
        "",
    ]
    came = [] if why_not else expected_of(record["sealed"], verdicts)
    lines += ["**Did it come true?**", "", *[f"- {line}" for line in came], ""] if came else []
    in_words = not came and not why_not and verdicts["prediction"]
    lines += ["(It was predicted in words, without ranges: nothing scores it.)", ""] * bool(
        in_words
    )
    elsewhere = [f"- {line}" for line in _asked_otherwise(name, verdicts)]
    lines += ["**The same in other studies:**", "", *elsewhere, ""] if elsewhere else []
    lines += ["## Figures", "", as_markdown(*_table(study, q_values))]
    tuned = {arm: _chosen(its) for arm, facts in record["arms"].items() if (its := tuned_of(facts))}
    if tuned:
        chosen = "; ".join(f"{arm}: {its}" for arm, its in tuned.items())
        lines += [f"Chosen by each arm: {chosen}.", ""]
    beyond = {
        arm: words for arm, its in verdicts["arms"].items() if (words := beyond_this_text(its))
    }
    if beyond and not why_not:
        words = ", ".join(f"{arm}: {word}" for arm, word in beyond.items())
        lines += [
            "Would it hold for other examples of the same source too (what tuning may have missed "
            f"left out)? {words}.",
            "",
        ]
    rows = budget_rows(verdicts)
    if rows:
        heads = ["arm", "updates", "difference", "interval", "verdict"]
        lines += ["After fewer updates:", "", as_markdown(heads, rows)]
    heads, rows = also_table(verdicts)
    if rows:
        lines += ["Further evaluations, with intervals and no verdicts:", ""]
        lines += [as_markdown(heads, rows)]
    for breakdown, its in BREAKDOWNS.items():
        if verdicts.get(breakdown):
            lines += [its.says, "", as_markdown(*_by_number(verdicts[breakdown]))]
    for file, what in FIGURES.items():
        if file != "forest.svg" and (RESULTS / name / file).exists():
            lines += [f"![{what}]({figure(file)})", ""]
    lines += [
        f"Sealed {record['sealed_at'][:10]} as `{verdicts['seal'][:12]}`; jax {packages['jax']}. "
        "q: the false discovery rate over all studies (Benjamini and Hochberg 1995).",
        "",
    ]
    return "\n".join(lines)


def _chosen(tuned: Tuned) -> str:
    """What an arm chose, and what it may lose as that is not quite its best."""
    setting = spell_setting(tuned.chosen)
    return setting + (f" (may miss {tuned.refined['missed']:.2g} there)" if tuned.refined else "")


def domain_of(study: Study) -> str:
    """Returns what a verdict speaks for: sizes, budget, data, and how options were chosen."""
    record = study.record
    flat = completed(flatten(record["sealed"]["base_config"]))
    cost = record["arms"][study.verdicts["base"]]["cost"]
    sizes = sorted({facts["cost"]["parameters"] for facts in record["arms"].values()})
    spread = f"{cost['parameters']:,} parameters"
    if sizes[0] < 0.95 * sizes[-1]:
        spread += f" (arms {sizes[0]:,} to {sizes[-1]:,})"
    count = len(study.verdicts["seeds"])
    pooled = max(len(its.get("seeds", ())) for its in study.verdicts["arms"].values())
    seeds = f"{count} seeds" + f" ({pooled} with those of an earlier look)" * (pooled > count)
    tuning = record["sealed"].get("tuning")
    keys = (tuning.get("options") or [tuning["key"]]) if tuning else []
    tuned = f"{', '.join(keys)} tuned for each arm" if keys else "no arm tuned"
    share = tuning["rungs"][-1][0] if tuning and tuning.get("rungs") else 1
    tuned += f" in runs of {share:.0%} of the updates" if share < 1 else ""
    windows = f" in windows of {flat['data.length']}" if record["counted"] == "tokens" else ""
    return (
        f"{spread}, {cost['updates']:,} updates ({cost['counted']:,} "
        f"{record['counted']} of {flat['data.source']}{windows}), "
        f"{seeds}, {tuned}"
    )


def _learned(study: Study) -> str:
    """Whether the base has learned; the simple methods and arms on the wrong side of that."""
    learned = study.learned
    if not learned or not learned["passed"]:
        return ""
    sentence = f"It passes its gate: {learned['told']}."
    scores = study.record.get("baselines", {}).get("scores", {})
    of_all = {
        name: its[learned["split"]].get(learned["metric"])
        for name, its in scores.items()
        if name in METHODS
    }
    if learned["metric"] != "loss":
        return sentence
    better = [
        f"{METHODS[name]} ({score:.4g})"
        for name, score in of_all.items()
        if score is not None and score < learned["base"]
    ]
    sentence += f" Better than it are still {' and '.join(better)}." if better else ""
    values = study.verdicts["values"].items()
    below = [arm for arm, its in values if its["mean"] and its["mean"] >= learned["score"]]
    best = min((score for score in of_all.values() if score is not None), default=math.inf)
    above = [arm for arm, its in values if its["mean"] and its["mean"] < best]
    sentence += f" Better than all of them: {', '.join(above)}." if better and above else ""
    return sentence + (f" No better than the gate: {', '.join(below)}." if below else "")


def _limits(config_path: str) -> list[str]:
    """What its author says would change the answer, in the docstring of the study's file."""
    file = HERE.parent / config_path
    if not file.is_file():  # of somebody else's study
        return []
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraphs = [part for part in text.split("\n\n") if part.startswith(_LIMITS)]
    return [
        f"**What would change it:** {' '.join(t.removeprefix(_LIMITS).split())}" for t in paragraphs
    ]


def _seeds_needed(verdicts: Mapping[str, Any]) -> list[str]:
    """How many seeds would decide what is unresolved, by the spread that was seen."""
    needs = []
    for arm, its in verdicts["arms"].items():
        count = its.get("seeds_needed")
        if its["verdict"] == UNRESOLVED and count:
            needs.append(f"{arm}: {f'about {count}' if count <= _MOST_SEEDS else 'more than 64'}")
        elif its["verdict"] == UNRESOLVED and its.get("errors"):
            needs.append(f"{arm}: {NOT_BY_SEEDS}")
    heading = "**Seeds that would decide it**, by the spread that was seen: "
    return [f"{heading}{'; '.join(needs)}."] if needs else []


def _table(study: Study, q_values: Mapping[tuple, float]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the comparison, the base first."""
    name, record, verdicts, _ = study
    rows = [[verdicts["base"], "base", "", "", ""]]
    for arm, its in verdicts["arms"].items():
        difference, interval = signed(its.get("mean")), spell_interval(its.get("interval"))
        words = f"not decided ({its['words']})" if undecided(study) else its["words"]
        rows.append([arm, difference, interval, spell(q_values.get((name, arm)), 3), words])
    for row in rows:
        value, cost = verdicts["values"][row[0]], record["arms"][row[0]]["cost"]
        score = f"{spell(value['mean'])} ± {spell(value['deviation'])}"
        row[1:1] = [spell(cost["parameters"]), score]
    levels = {its["level"] for its in verdicts["arms"].values()}
    together = "interval"
    if len(levels) == 1:
        together += f" ({1 - FOR_MEANS * levels.pop():.3g} together)"
    return ["arm", "parameters", verdicts["metric"], "difference", together, "q", "verdict"], rows


def _asked_otherwise(name: str, verdicts: Mapping[str, Any]) -> list[str]:
    """What the register knows: the same contrasts before, and what this study took the place of."""
    others = [f"{arm}: {t}" for arm, its in verdicts["arms"].items() for t in asked_elsewhere(its)]
    looks = [look for its in verdicts["arms"].values() for look in its.get("related") or ()]
    for other in sorted({look["study"] for look in looks}):
        read = read_study(other)
        if read and withheld(read):
            others.append(f"{other} decides nothing: {withheld(read)}.")
    rows = [row for row in Register(RESULTS).rows() if row["study"] == name]
    for row, later in itertools.pairwise(rows):
        if (row["seal"], row["sealed_at"]) == (later["seal"], later["sealed_at"]):
            continue  # more seeds of the same study
        words = "; ".join(
            f"{arm}: {its['words'].removesuffix(UNTUNED)}" for arm, its in row["arms"].items()
        )
        seeds = f"seeds {row['seeds'][0]} to {row['seeds'][-1]}"
        why = later["why"] or "no reason was noted"
        others.append(f"Superseded ({row['time'][:10]}, {seeds}): {words}. Asked again: {why}.")
    return others


def _by_number(found: dict[str, dict[str, list[float]]]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: an arm a row, up to six numbers, means over seeds."""
    numbers = sorted({int(number) for by in found.values() for number in by})
    step = max(1, -(-len(numbers) // 6))
    kept = [str(number) for number in numbers[::step]]
    rows = [
        [arm, *(spell(sum(by[d]) / len(by[d]), 3) if d in by else "" for d in kept)]
        for arm, by in found.items()
    ]
    return ["arm", *kept], rows


# ---------------------------------------------------------------- what else was measured


def _several() -> list[Path]:
    return sorted([*RESULTS.glob("*/ladder.md"), *RESULTS.glob("*/suite.md")])


def _of_several(path: Path) -> str:
    """What a ladder or a suite says, with why it decides nothing if it does not."""
    head, _, text = path.read_text(encoding="utf-8").partition("\n")
    reason = WITHDRAWN.get(path.parent.name)
    text = text.replace("**", "") if reason else text  # no word stands out that decides nothing
    return "\n".join([head, *(["", f"**Not decided:** {reason}."] if reason else []), text])


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
        f"in a round, {rounds} rounds, by length in tokens; {found['config']} on "
        f"{found['machine']}, by `python -m experiments.speed`. Reading and writing are of one "
        "text, an update of 2,048 tokens.\n"
    )
    return "\n".join([sentence, as_markdown(["times", *lengths], rows)])


def _q_values(studies: Iterable[Study]) -> dict[tuple, float]:
    tested = {
        (study.name, arm): its["p_alone"]
        for study in studies
        for arm, its in study.verdicts["arms"].items()
        if its.get("p_alone") is not None
    }
    return dict(zip(tested, benjamini_hochberg(list(tested.values())), strict=True))

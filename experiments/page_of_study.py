"""The page of a committed study: its answer, what that speaks for, how to repeat it."""

import ast
import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

from experiments.answers import (
    ASKED_AGAIN,
    FIGURES,
    HERE,
    RESULTS,
    SAID_FIRST,
    CommittedStudy,
    below_the_gate,
    domain_of,
    in_the_overview,
    left_out,
    read_study,
    undecided,
    withheld,
    words_of,
)
from transformer_jax.options.config import flatten
from transformer_jax.options.schema import completed
from transformer_jax.studies.asking.gate import METHODS
from transformer_jax.studies.asking.register import Register
from transformer_jax.studies.asking.settings import spell_setting
from transformer_jax.studies.asking.tuning import Tuned, tuned_of
from transformer_jax.studies.inference.power import seeds_needed
from transformer_jax.studies.inference.statistics import FOR_MEANS
from transformer_jax.studies.inference.tuned import Regrets, reach
from transformer_jax.studies.inference.words import BETTER, UNRESOLVED, UNTUNED, WORSE
from transformer_jax.studies.judging.breakdowns import BREAKDOWNS
from transformer_jax.studies.reporting.tables import (
    BUDGET_HEADS,
    NOT_BY_SEEDS,
    also_table,
    as_markdown,
    asked_elsewhere,
    budget_rows,
    clock,
    expected_of,
    of_trials,
    shown_for_new_text,
    signed,
    spell,
    spell_interval,
    trend_lines,
)

_LIMITS, _COMMAND = "Limits:", "Command:"  # how paragraphs of a study's docstring begin
_MOST_SEEDS = 64  # of which a page says that they would decide something


def page_of_study(
    study: CommittedStudy, q_values: Mapping[tuple, float], figure: Callable[[str], str]
) -> str:
    """Returns the page of a study in Markdown.

    Args:
      study: committed.
      q_values: (study, arm) -> the false discovery rate over all studies.
      figure: where the page finds a figure of this name.
    """
    name, record, verdicts, _ = study
    why_not, base = withheld(study), verdicts["base"]
    means = [
        f"{arm}: {its['words'].removesuffix(UNTUNED)}"
        + (f" ({signed(its['mean'])} {spell_interval(its['interval'])})" if its.get("mean") else "")
        for arm, its in verdicts["arms"].items()
    ]
    means += trend_lines(verdicts)
    lead = "forest.svg"
    if record["sealed"].get("target") is not None:
        means, lead = [words_of(study)], "curves.svg"
    answer = (
        f"**Not decided:** {why_not}." if why_not else f"**Beside {base}:** {'; '.join(means)}."
    )
    if undecided(study) and not why_not:
        answer = f"**Not decided.** {answer}"
    answer += "" if why_not else "".join(f" {sentence}." for sentence in left_out(study))
    packages = record["environment"]["packages"]
    lines = [
        f"# {verdicts['question']}",
        "",
        answer,
        "",
        *_said_first(name, verdicts),
        f"This speaks for {domain_of(study)}. {learned_of(study)}".rstrip(),
        _measured_by(study),
        "",
        f"![{FIGURES[lead]} beside {base}]({figure(lead)})",
        "",
        *[f"{line}\n" for line in limits_of(record["config_path"])],
        *[f"{line}\n" for line in ([] if why_not else _seeds_needed(verdicts))],
        *to_repeat(
            record["seconds"],
            record["environment"],
            "\n".join([*commands_before(record["config_path"]), record["commands"][0]]),
        ),
        *_alone(verdicts),
        f"**Predicted beforehand:** {verdicts['prediction']}",
        "",
    ]
    if again := record.get("supersedes"):
        lines += [f"**Why it was asked again:** {again}.", ""]
    if later := read_study(ASKED_AGAIN.get(name, "")):
        said, beside = in_the_overview(later), later.verdicts["base"]
        if why := undecided(later):
            said = f"not decided. {why}"
        lines += [f"**Asked again by {later.name}, beside {beside}:** {said}.", ""]
    came = [] if why_not else expected_of(record["sealed"], verdicts)
    lines += ["**Did it come true?**", "", *[f"- {line}" for line in came], ""] if came else []
    in_words = not came and not why_not and verdicts["prediction"]
    lines += ["(No ranges were sealed beside these words: nothing scores them.)", ""] * bool(
        in_words
    )
    for heading, sentences in (
        ("**The same question before:**", _asked_before(name, verdicts)),
        (
            "**The same changes in other studies**, at another base, task, budget or rate:",
            _of_related(verdicts["arms"]),
        ),
    ):
        lines += [heading, "", *[f"- {line}" for line in sentences], ""] if sentences else []
    lines += ["## Figures", "", as_markdown(*_table(study, q_values)), *_of_tuning(study)]
    lines += _of_other_data_and_budgets(study)
    for file, what in FIGURES.items():
        if file not in ("forest.svg", lead) and (RESULTS / name / file).exists():
            lines += [f"![{what}]({figure(file)})", ""]
    lines += [
        f"Sealed {record['sealed_at'][:10]} as `{verdicts['seal'][:12]}`; jax {packages['jax']}. "
        "q: the false discovery rate over all studies (Benjamini and Hochberg 1995).",
        "",
    ]
    return "\n".join(lines)


def _of_tuning(study: CommittedStudy) -> list[str]:
    """What each arm chose, whether fewer trials would have said the same, and of pooled seeds."""
    _, record, verdicts, _ = study
    lines, count = [], len(verdicts["seeds"])
    pooled = max(len(its.get("seeds", ())) for its in verdicts["arms"].values())
    if pooled > count:
        lines += [f"Scores are of {count} seeds, differences of up to {pooled}.", ""]
    tuned = {arm: _chosen(its) for arm, facts in record["arms"].items() if (its := tuned_of(facts))}
    if tuned:
        chosen = "; ".join(f"{arm}: {its}" for arm, its in tuned.items())
        of_first = [
            f"{arm}: {words}" for arm, its in verdicts["arms"].items() for words in of_trials(its)
        ]
        share = (record["sealed"]["tuning"].get("rungs") or [[1]])[0][0]
        by_trials = f"By trials in runs of {share:.0%} of the updates: {'; '.join(of_first)}."
        lines += [f"Chosen by each arm: {chosen}.", "", by_trials, ""]
    return lines


def _of_other_data_and_budgets(study: CommittedStudy) -> list[str]:
    """What is found for other examples, after fewer updates, in further evaluations, by places."""
    verdicts, lines = study.verdicts, []
    beyond = [
        f"{arm}: {words}"
        for arm, its in verdicts["arms"].items()
        if (words := shown_for_new_text(its))
    ]
    if beyond and not withheld(study) and study.record["sealed"].get("target") is None:
        intervals = [its.get("beyond_this_text") for its in verdicts["arms"].values()]
        # Results that were committed before the level of these was the one of the arm's interval.
        is_older = any(interval and "clusters" not in interval for interval in intervals)
        lines += [
            "Would it hold for other examples of the same source too (what tuning may have missed "
            f"left out)? {', '.join(beyond)}" + " (each at a level of 0.05)" * is_older + ".",
            "",
        ]
    if rows := budget_rows(verdicts):
        lines += ["After fewer updates:", "", as_markdown(BUDGET_HEADS, rows)]
    heads, rows = also_table(verdicts)
    if rows:
        lines += ["Further evaluations, with the interval of each contrast alone and no verdicts:"]
        lines += [""]
        lines += [as_markdown(heads, rows)]
    for breakdown, its in BREAKDOWNS.items():
        if verdicts.get(breakdown):
            lines += [its.says, "", as_markdown(*_by_number(verdicts[breakdown]))]
    return lines


def _measured_by(study: CommittedStudy) -> str:
    sealed = study.record["sealed"]
    metric, target = sealed["metric"], sealed.get("target")
    if target is not None:
        every = completed(flatten(sealed["base_config"]))["evaluation.every"]
        more, high = ("more", "high") if sealed["larger_is_better"] else ("less", "low")
        return (
            f"A run has solved it whose {metric} is {target:g} or {more} at the end. How many have "
            f"is compared, and after how many updates the validation score first was so {high}, "
            f"looked at every {every}; better and worse speak of these. Median: the updates by "
            "which half of the runs have solved it."
        )
    return (
        f"Measured by {metric}; + is better. What matters is {sealed['margin']:g} or more, for the "
        f"reason that was sealed: {sealed['margin_reason']}."
    )


def to_repeat(seconds: float, environment: Mapping[str, Any], command: str) -> list[str]:
    """The command, and how long it took."""
    device = environment["device"]
    on = f"{device['count']} {device['kind']} ({environment['cores']} cores)"
    return [f"**To repeat it**, {clock(seconds)} on {on}:", "", f"```sh\n{command}\n```", ""]


def _alone(verdicts: Mapping[str, Any]) -> list[str]:
    """That earlier looks count here, and not in a folder that knows of none."""
    arms = verdicts["arms"].values()
    if not any(its["level"] < verdicts["level"] for its in arms):
        return []
    return [
        "In a folder of its own it knows nothing of the earlier looks that count here: its "
        f"intervals then are of {len(verdicts['seeds'])} seeds, at the level of a first look.",
        "",
    ]


def _said_first(name: str, verdicts: Mapping[str, Any]) -> list[str]:
    """What was said before the procedure changed, and what half the level would say now."""
    if name not in SAID_FIRST:
        return []
    lows = []
    for arm, its in verdicts["arms"].items():
        if its["verdict"] == BETTER and "regrets" in its:
            size = max(verdicts["contrasts"], its.get("family", 0))
            seeds = (its["standard_error"], len(its["differences"]) - 1)
            level = FOR_MEANS * its["level"] / size / 2
            low = its["mean"] - reach(*seeds, Regrets.of(its["regrets"]).base, level / 2)
            lows.append(f"{arm}: {signed(low)}")
    doubt = "; fresh seeds have to confirm it. At half the level, as for two procedures, "
    doubt = f"{doubt}the lower limits are {'; '.join(lows)}" if lows else ""
    return [
        f"**Said first**, by the procedure it was sealed under: {SAID_FIRST[name]}. How tuning "
        "counts was changed [after its scores were seen](../../../docs/error-rates.md#tuned-arms), "
        f"for all studies{doubt}.",
        "",
    ]


def _chosen(tuned: Tuned) -> str:
    """What an arm chose, and what it may lose as that is not quite its best."""
    setting = spell_setting(tuned.chosen)
    return setting + (
        f" (may miss its best score by {tuned.refined['missed']:.2g}, root mean square)"
        if tuned.refined
        else ""
    )


def learned_of(study: CommittedStudy) -> str:
    """Whether the base has learned; the simple methods and arms on the wrong side of that."""
    learned = study.learned
    if not learned or not learned["passed"]:
        return ""
    scores = study.record.get("baselines", {}).get("scores", {})
    gate = "its gate" if scores else "the usual gate, which was not sealed"
    sentence = f"It passes {gate}: {learned['told']}."
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
    if study.verdicts["metric"] != f"{learned['split']}/loss":
        return sentence  # arms are judged by something else
    values, below = study.verdicts["values"].items(), below_the_gate(study)
    best = min((score for score in of_all.values() if score is not None), default=math.inf)
    above = [arm for arm, its in values if its["mean"] and its["mean"] < best]
    sentence += f" Better than all of them: {', '.join(above)}." if better and above else ""
    return sentence + (f" {below}." if below else "")


def limits_of(config_path: str) -> list[str]:
    """What its author says would change the answer, in the docstring of the study's file."""
    return [f"**What would change it:** {' '.join(t.split())}" for t in _told(config_path, _LIMITS)]


def commands_before(config_path: str) -> list[str]:
    """What has to be run, or fetched, before a study can be, by the docstring of its file."""
    lines = [line.strip() for text in _told(config_path, _COMMAND) for line in text.splitlines()]
    return list(itertools.takewhile(lambda line: "experiments.ablate" not in line, lines))


def _told(config_path: str, heading: str) -> list[str]:
    """The paragraphs under a heading in the docstring of a study's file, without it."""
    file = HERE.parent / config_path
    if not file.is_file():  # of somebody else's study
        return []
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    paragraphs = [part for part in text.split("\n\n") if part.startswith(heading)]
    return [part.removeprefix(heading) for part in paragraphs]


def _seeds_needed(verdicts: Mapping[str, Any]) -> list[str]:
    """How many seeds would decide what is unresolved, by an upper bound of the spread."""
    needs, not_by_seeds = [], {}
    for arm, its in verdicts["arms"].items():
        count = its.get("seeds_needed")
        if its["verdict"] == UNRESOLVED and count:
            needs.append(f"{arm}: {_about(count)}")
        elif its["verdict"] == UNRESOLVED and its.get("regrets") and its["mean"] is not None:
            seeds = len(its["differences"])
            size = max(verdicts["contrasts"], its.get("family", 0))
            error, level = its["standard_error"], FOR_MEANS * its["level"] / size
            # Without regrets an interval is the mean and as much to both sides.
            if reach(error, seeds - 1, (), level / 2) < abs(its["mean"]):
                then = f"{BETTER if its['mean'] > 0 else WORSE} by these {seeds}"
            else:
                count = seeds_needed(error * math.sqrt(seeds), seeds, verdicts["margin"], level)
                then = _about(count)
            not_by_seeds[arm] = f"{arm} {then}"
    if not_by_seeds:
        needs += [
            f"{', '.join(not_by_seeds)}: {NOT_BY_SEEDS}. If what each chose were its best: "
            f"{'; '.join(not_by_seeds.values())}"
        ]
    heading = "**Seeds that would decide it** (power of 80 % at the margin, by an upper bound of "
    return [f"{heading}the spread): {'; '.join(needs)}."] if needs else []


def _about(count: int | None) -> str:
    return f"about {count}" if count and count <= _MOST_SEEDS else f"more than {_MOST_SEEDS}"


def _table(
    study: CommittedStudy, q_values: Mapping[tuple, float]
) -> tuple[list[str], list[list[str]]]:
    """Heads and rows of the comparison, the base first."""
    name, record, verdicts, _ = study
    rows, by_target = [[verdicts["base"], "base", "", "", ""]], False
    for arm, its in verdicts["arms"].items():
        beside = [signed(its.get("mean")), spell_interval(its.get("interval"))]
        if its.get("solved"):
            beside, of_base = map(_solved, zip(its["solved"], its["updates"], strict=True))
            rows[0][1:3], by_target = of_base, True
        words = f"not decided ({its['words']})" if withheld(study) else its["words"]
        rows.append([arm, *beside, spell(q_values.get((name, arm)), 3), words])
    for row in rows:
        value, cost = verdicts["values"][row[0]], record["arms"][row[0]]["cost"]
        score = f"{spell(value['mean'])} ± {spell(value['deviation'])}"
        row[1:1] = [spell(cost["parameters"]), score]
    levels = {its["level"] for its in verdicts["arms"].values()}
    together = "interval"
    if len(levels) == 1:
        together += f" ({1 - FOR_MEANS * levels.pop():.3g} together)"
    beside = ["solved", "median updates"] if by_target else ["difference", together]
    return ["arm", "parameters", verdicts["metric"], *beside, "q", "verdict"], rows


def _solved(found: tuple[list[int], float | None]) -> list[str]:
    """How many runs reach a target, and the median of their updates."""
    (solved, runs), updates = found
    return [f"{solved} of {runs}", "–" if updates is None else f"{updates:,.0f}"]


def _asked_before(name: str, verdicts: Mapping[str, Any]) -> list[str]:
    """What the register knows: the same contrasts before, and what this study took the place of."""
    same = {arm: {**its, "related": None} for arm, its in verdicts["arms"].items()}
    others = [f"{arm}: {text}" for arm, its in same.items() for text in asked_elsewhere(its)]
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


def _of_related(arms: Mapping[str, Any]) -> list[str]:
    """What other studies said of the same changes, of arms there, a line for each look."""
    said: dict[tuple, dict[str, str]] = {}
    for its in arms.values():
        for look in its.get("related") or ():
            words = look["words"].removesuffix(UNTUNED)
            words += f" ({signed(look['mean'])})" * (look["mean"] is not None)
            key = look["time"], look["study"], look["base"], len(look["seeds"]), look["why"]
            said.setdefault(key, {})[look["arm"]] = words
    lines = []
    for (time, study, base, seeds, why), by_arm in sorted(said.items(), key=str):
        again = f" (asked again: {why})" if why else ""
        words = "; ".join(f"{arm}: {words}" for arm, words in by_arm.items())
        line = f"{study}, {time[:10]}, {seeds} seeds{again}, said then, beside {base}: {words}."
        read = read_study(study)
        if read and time < read.record["sealed_at"]:
            line += " It was sealed anew since."
        elif read and read.name in SAID_FIRST:
            line += (
                f" Its page says now: {'not decided; ' * bool(undecided(read))}{words_of(read)}."
            )
        elif read and (nothing := withheld(read)):
            line += f" **It decides nothing:** {nothing}."
        elif read:
            line += " Its question is open." * bool(undecided(read))
            line += "".join(f" {sentence}." for sentence in left_out(read))
        lines.append(line)
    return lines


def _by_number(found: dict[str, dict[str, list[float]]]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows: an arm a row, up to six numbers and the last, means over seeds."""
    numbers = sorted({int(number) for by in found.values() for number in by})
    step = max(1, -(-len(numbers) // 6))
    kept = dict.fromkeys(map(str, [*numbers[::step], numbers[-1]]))
    rows = [
        [arm, *(spell(sum(by[d]) / len(by[d]), 3) if d in by else "" for d in kept)]
        for arm, by in found.items()
    ]
    return ["arm", *kept], rows

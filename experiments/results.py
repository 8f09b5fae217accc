"""Writes experiments/README.md from the verdicts of the studies in experiments/results.

Example:
  python -m experiments.results --add=runs/positions
"""

import itertools
import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.command import Parser, execute
from experiments.speed import RATIOS
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.files import inside
from transformer_jax.studies.asking.ladder import rung_path
from transformer_jax.studies.asking.register import Register, contrasts_of
from transformer_jax.studies.asking.settings import spell_setting
from transformer_jax.studies.asking.study import load_study
from transformer_jax.studies.asking.suite import FILE as SUITE
from transformer_jax.studies.asking.suite import study_path
from transformer_jax.studies.asking.tuning import tuned_of
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.scales import TURNS, turns
from transformer_jax.studies.inference.statistics import (
    FOR_MEANS,
    IDENTICAL,
    benjamini_hochberg,
    level_of_look,
)
from transformer_jax.studies.judging.adequacy import cannot_tell
from transformer_jax.studies.judging.breakdowns import BREAKDOWNS
from transformer_jax.studies.judging.budgets import over_budgets
from transformer_jax.studies.judging.decision import UNTUNED, decide, share_of_level
from transformer_jax.studies.judging.judge import evidence_of, look_of
from transformer_jax.studies.judging.trials import domain_of
from transformer_jax.studies.reporting.figures import draw_forest
from transformer_jax.studies.reporting.tables import (
    also_table,
    as_markdown,
    asked_elsewhere,
    beyond_this_text,
    signed,
    spell,
    spell_interval,
)

HERE = Path(__file__).parent
_KEPT = ("study.json", "cells.csv", "looks.jsonl", "verdicts.json", "forest.svg", "curves.svg")
_HEAD = """# What the studies found

Every study here was sealed before its first cell, and its arms are compared over paired seeds by
the procedure of `transformer_jax/studies/inference/statistics.py`. This page is written from their
`verdicts.json` by `python -m experiments.results`; the folders in [results](results) hold the
seals, every cell's score and every look. Differences are oriented so that + is better than the
base; the intervals are simultaneous over a study's arms; q is the false discovery rate over all
studies (Benjamini and Hochberg 1995). A verdict speaks for these sizes, this data and this budget.
"""


def main(argv: list[str]) -> None:
    """Reads the arguments, takes in a study, and writes the page."""
    parser = Parser("results", __doc__)
    parser.add_argument("--add", action="append", default=[], metavar="DIR", help="a judged study")
    parser.add_argument(
        "--judge_again", action="store_true", help="decide all studies anew from their scores"
    )
    arguments = parser.read(argv)
    if arguments.judge_again:  # changes nothing where the rules are those of before
        for folder in sorted((HERE / "results").iterdir()):
            if (folder / "verdicts.json").exists():
                judge_again(folder)
            if (folder / "ladder.json").exists():
                _judge_ladder_again(folder)
    for path in arguments.add:
        add(Path(path))
    page = HERE / "README.md"
    page.write_text(catalogue(), encoding="utf-8")
    print(page)


def add(path: Path) -> None:
    """Copies what a study, ladder or suite found, no cells; refuses what is not to be shown."""
    if (path / "ladder.json").exists():
        _add_ladder(path)
        return
    if (path / SUITE).exists():
        suite = _read(inside(path, SUITE))
        studies = [study_path(path, name) for name in suite["configs"]]
        _copy(path, studies, (SUITE, "suite.md", "suite.html"))
        return
    study = load_study(path)
    verdicts = study.verdicts()
    if not verdicts:
        raise InvalidInput(f"{path}: not judged yet; python -m experiments.compare {path}")
    if verdicts["exploratory"]:
        raise InvalidInput(f"{path}: exploratory ({verdicts['exploratory'][0]}): no result to show")
    folder = HERE / "results" / study.path.absolute().name
    folder.mkdir(parents=True, exist_ok=True)
    for name in _KEPT:
        file = inside(study.path, name)
        if file.exists():  # figures need matplotlib
            shutil.copy(file, folder / name)
    record = study.record
    (folder / "study.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    register = Register(HERE / "results")
    # Looks at the same contrasts that were not published are a part of the level all the same.
    for row in Register(study.root).about(study.contrasts().values()):
        if (row["seal"], row["sealed_at"]) != study.identity:
            register.note(row)
    register.note(look_of(study, verdicts) | {"study": folder.name})
    judge_again(folder)  # beside what the committed results knew before


def judge_again(folder: Path) -> None:
    """Decides a study from its stored scores, and says which words change."""
    before, verdicts = _read(folder / "verdicts.json"), decided_again(folder)
    for arm, found in before["arms"].items():
        words = verdicts["arms"][arm]["words"]
        if found["words"] != words:
            print(f"{folder.name}, {arm}: {found['words']} -> {words}")
    (folder / "verdicts.json").write_text(json.dumps(verdicts, indent=1) + "\n", encoding="utf-8")
    draw_forest(load_study(folder), verdicts)
    (folder / "forest.pdf").unlink()


def decided_again(folder: Path) -> dict[str, Any]:
    """Returns a study's verdicts by the rules of today, from its stored scores.

    What needs the cells (refusals, what holds beyond this text) stays as it was found with them.
    """
    study, verdicts = load_study(folder), _read(folder / "verdicts.json")
    outcomes = {arm: _outcomes_of(value) for arm, value in verdicts["values"].items()}
    refusals = {arm: found["refusals"] for arm, found in verdicts["arms"].items()}
    shown = {(tuple(look["seeds"]), tuple(look["cells"])): None for look in study.looks()}
    own = [len(seeds) for seeds, _ in shown][: verdicts["look"] - 1]
    contrasts, register = contrasts_of(study.sealed), Register(HERE / "results")
    share = share_of_level(study.sealed)
    evidence, asked_before = {}, {}
    for arm in verdicts["arms"]:
        looks = register.looks(contrasts[arm], "same", study.identity)
        same = None if verdicts["arms"][arm]["verdict"] == IDENTICAL else False
        evidence[arm], has_earlier = evidence_of(study, arm, outcomes, looks, own, same)
        asked_before[arm] = [look.told() for look in looks] if has_earlier else []
    decided = decide(study.sealed, evidence, refusals)
    known = study.record.get("baselines")
    cannot_tell(decided, outcomes, study.sealed, verdicts.get("learned"), known)
    for arm, found in verdicts["arms"].items():
        beyond = {"beyond_this_text": found.get("beyond_this_text")}
        related = register.looks(contrasts[arm], "related", study.identity)
        more = {
            "asked_before": asked_before[arm],
            "related": [look.told() for look in related],
            **({"stopped": study.stopped[arm]} if arm in study.stopped else {}),
            **domain_of(study, arm, decided[arm].get("mean")),
        }
        verdicts["arms"][arm] = decided[arm] | more | ({} if found["refusals"] else beyond)
    over_budgets(verdicts["arms"], verdicts.get("budgets", {}), study.sealed, known)
    level = share * level_of_look(len(verdicts["seeds"]), study.sealed["looks"], own)
    return verdicts | {"level": level, "coverage": 1 - FOR_MEANS * level}


def _outcomes_of(value: dict[str, Any]) -> dict[int, Outcome]:
    """The outcomes of an arm, from its part of verdicts.json."""
    if "outcomes" in value:
        return {int(seed): Outcome(*told) for seed, told in value["outcomes"].items()}
    return {int(seed): Outcome(score, score is None) for seed, score in value["by_seed"].items()}


def _judge_ladder_again(folder: Path) -> None:
    """Reads off stored intervals what they can still say: that an effect rises and falls."""
    ladder = _read(folder / "ladder.json")
    for arm, found in ladder["arms"].items():
        if "intervals" in found and turns(found["intervals"]) and found["word"] != TURNS:
            print(f"{folder.name}, {arm}: {found['word']} -> {TURNS}")
            text = (folder / "ladder.md").read_text(encoding="utf-8")
            text = text.replace(f"- **{arm}: {found['word']}**", f"- **{arm}: {TURNS}**")
            (folder / "ladder.md").write_text(text, encoding="utf-8")
            found["word"] = TURNS
    (folder / "ladder.json").write_text(json.dumps(ladder, indent=1) + "\n", encoding="utf-8")


def _add_ladder(path: Path) -> None:
    ladder = _read(inside(path, "ladder.json"))
    studies = [rung_path(path, ladder["key"], value) for value in ladder["values"]]
    _copy(path, studies, ("ladder.json", "ladder.md", "forecast.json"))


def _copy(path: Path, studies: Iterable[Path], names: Iterable[str]) -> None:
    """Copies what several studies say together; refuses what is not to be shown."""
    for study in map(load_study, studies):
        if study.record["exploratory"]:
            raise InvalidInput(f"{study.path}: exploratory: no result to show")
    folder = HERE / "results" / path.absolute().name
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if inside(path, name).exists():
            shutil.copy(inside(path, name), folder / name)


def catalogue() -> str:
    """Returns the page."""
    studies = _studies()
    q_values = _q_values(studies)
    parts = [_HEAD, _overview(studies, "#{}")]
    parts += [_section(name, study, verdicts, q_values) for name, study, verdicts in studies]
    parts += [text.replace("# ", "## ", 1) for text in _several().values()]
    parts += [_times(name).replace("# ", "## ", 1) for name in _measured()]
    return "\n".join(parts)


def _several() -> dict[str, str]:
    """What ladders and suites say, by their names."""
    paths = [*(HERE / "results").glob("*/ladder.md"), *(HERE / "results").glob("*/suite.md")]
    return {path.parent.name: path.read_text(encoding="utf-8") for path in sorted(paths)}


def _measured() -> list[str]:
    return [path.parent.name for path in sorted((HERE / "results").glob("*/speed.json"))]


def _times(name: str) -> str:
    """What experiments.speed wrote, as a table."""
    found = _read(HERE / "results" / name / "speed.json")
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
    told = (
        f"# {name}\n\nMedian and range of the ratios of two times in a round, {rounds} rounds, by "
        f"length in tokens; {found['config']} on {found['machine']}, by `python -m "
        "experiments.speed`. Reading and writing are of one text, an update of 2,048 tokens.\n"
    )
    return "\n".join([told, as_markdown(["times", *lengths], rows)])


def pages() -> dict[str, str]:
    """Returns the same for a site: the overview under "", and a page a study, with both figures."""
    studies = _studies()
    q_values = _q_values(studies)
    found = {"": "\n".join([_HEAD, _overview(studies, "{}.md")])}
    for name, study, verdicts in studies:
        text = _section(name, study, verdicts, q_values).replace("## ", "# ", 1)
        text = text.replace(f"results/{name}/forest.svg", f"{name}-forest.svg")
        if (HERE / "results" / name / "curves.svg").exists():
            text += f"\n![Learning curves]({name}-curves.svg)\n"
        found[name] = text
    found |= _several()
    return found | {name: _times(name) for name in _measured()}


def _studies() -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    return [
        (folder.name, _read(folder / "study.json"), _read(folder / "verdicts.json"))
        for folder in sorted((HERE / "results").iterdir())
        if (folder / "verdicts.json").exists()
    ]


def _q_values(studies: Iterable[tuple[str, dict, dict]]) -> dict[tuple, float]:
    tested = {
        (name, arm): found["p_alone"]
        for name, _, verdicts in studies
        for arm, found in verdicts["arms"].items()
        if found.get("p_alone") is not None
    }
    return dict(zip(tested, benjamini_hochberg(list(tested.values())), strict=True))


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _overview(studies: Sequence[tuple[str, dict, dict]], link: str) -> str:
    rows = [
        [
            f"[{name}]({link.format(name)})",
            verdicts["question"],
            "; ".join(f"{arm}: {found['words']}" for arm, found in verdicts["arms"].items()),
        ]
        for name, _, verdicts in studies
    ]
    return as_markdown(["study", "question", f"verdicts ({_count(studies)})"], rows)


def _count(studies: Iterable[tuple[str, dict, dict]]) -> str:
    return f"{sum(len(verdicts['arms']) for *_, verdicts in studies)} contrasts"


def _section(
    name: str, study: dict[str, Any], verdicts: dict[str, Any], q_values: dict[tuple, float]
) -> str:
    seeds = len(verdicts["seeds"])
    costs = {arm: facts["cost"] for arm, facts in study["arms"].items()}
    rows = [
        [
            verdicts["base"],
            spell(costs[verdicts["base"]]["parameters"]),
            _score(verdicts, verdicts["base"]),
            "base",
            "",
            "",
            "",
        ]
    ]
    for arm, found in verdicts["arms"].items():
        q = q_values.get((name, arm))
        rows.append(
            [
                arm,
                spell(costs[arm]["parameters"]),
                _score(verdicts, arm),
                signed(found.get("mean")),
                spell_interval(found.get("interval")),
                spell(q, 3),
                found["words"],
            ]
        )
    interval = f"interval ({verdicts['coverage']:.0%} together)"
    heads = ["arm", "parameters", verdicts["metric"], "difference", interval, "q", "verdict"]
    device = study["environment"]["device"]
    minutes = study["seconds"] / 60
    beyond = [
        f"{arm}: {beyond_this_text(found)}"
        for arm, found in verdicts["arms"].items()
        if beyond_this_text(found)
    ]
    tuned = {arm: its.chosen for arm, facts in study["arms"].items() if (its := tuned_of(facts))}
    lines = [
        f"## {name}",
        "",
        f"**{verdicts['question']}**",
        "",
        f"Predicted beforehand: {verdicts['prediction']}",
        "",
        f"```sh\n{study['commands'][0]}\n```",
        "",
        f"{len(study['arms'])} arms x {seeds} seeds, {minutes:.0f} minutes on {device['count']} "
        f"{device['kind']} ({study['environment']['cores']} cores), jax "
        f"{study['environment']['packages']['jax']}. Margin {verdicts['margin']:g}: "
        f"{study['sealed']['margin_reason']}. Seal `{verdicts['seal'][:12]}`, "
        f"{study['sealed_at'][:10]}.",
        "",
        as_markdown(heads, rows),
    ]
    if tuned:
        chosen = "; ".join(f"{arm}: {spell_setting(its)}" for arm, its in tuned.items())
        lines += [f"Chosen by each arm: {chosen}.", ""]
    lines += [f"- {line}" for line in _asked_otherwise(name, verdicts)] + [""]
    if beyond:
        lines += [f"Also beyond this text: {', '.join(beyond)}.", ""]
    heads, rows = also_table(verdicts)
    if rows:
        lines += ["Further evaluations, with intervals and no verdicts:", ""]
        lines += [as_markdown(heads, rows)]
    for breakdown, told in BREAKDOWNS.items():
        if verdicts.get(breakdown):
            lines += [told.says, "", as_markdown(*_by_number(verdicts[breakdown]))]
    lines += [f"![Paired differences from {verdicts['base']}](results/{name}/forest.svg)", ""]
    return "\n".join(lines)


def _asked_otherwise(name: str, verdicts: dict[str, Any]) -> list[str]:
    """What the register knows: the same contrasts before, and what this study took the place of."""
    told = [f"{arm}: {t}" for arm, its in verdicts["arms"].items() for t in asked_elsewhere(its)]
    rows = [row for row in Register(HERE / "results").rows() if row["study"] == name]
    for row, later in itertools.pairwise(rows):
        if (row["seal"], row["sealed_at"]) == (later["seal"], later["sealed_at"]):
            continue  # more seeds of the same study
        words = "; ".join(
            f"{arm}: {its['words'].removesuffix(UNTUNED)}" for arm, its in row["arms"].items()
        )
        seeds = f"seeds {row['seeds'][0]} to {row['seeds'][-1]}"
        why = later["why"] or "no reason was noted"
        told.append(f"Superseded ({row['time'][:10]}, {seeds}): {words}. Asked again: {why}.")
    return told


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


def _score(verdicts: dict[str, Any], arm: str) -> str:
    value = verdicts["values"][arm]
    return f"{spell(value['mean'])} ± {spell(value['deviation'])}"


if __name__ == "__main__":
    execute(main)

"""Writes experiments/README.md from the verdicts of the studies in experiments/results.

Example:
  python -m experiments.results --add=runs/positions
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.command import Parser, execute
from transformer_jax.errors import InvalidInput
from transformer_jax.studies.statistics import benjamini_hochberg
from transformer_jax.studies.study import load_study
from transformer_jax.studies.tables import also_table, as_markdown, signed, spell, spell_interval

HERE = Path(__file__).parent
_KEPT = ("study.json", "cells.csv", "looks.jsonl", "verdicts.json", "forest.svg", "curves.svg")
_HEAD = """# What the studies found

Every study here was sealed before its first cell, and its arms are compared over paired seeds by
the procedure of `transformer_jax/studies/statistics.py`. This page is written from their
`verdicts.json` by `python -m experiments.results`; the folders in [results](results) hold the
seals, every cell's score and every look. Differences are oriented so that + is better than the
base; the intervals are simultaneous over a study's arms; q is the false discovery rate over all
studies (Benjamini and Hochberg 1995). A verdict speaks for these sizes, this data and this budget.
"""


def main(argv: list[str]) -> None:
    """Reads the arguments, takes in a study, and writes the page."""
    parser = Parser("results", __doc__)
    parser.add_argument("--add", action="append", default=[], metavar="DIR", help="a judged study")
    arguments = parser.read(argv)
    for path in arguments.add:
        add(Path(path))
    page = HERE / "README.md"
    page.write_text(catalogue(), encoding="utf-8")
    print(page)


def add(path: Path) -> None:
    """Copies what a study found, without its cells; refuses one that is not to be shown."""
    study = load_study(path)
    verdicts = study.verdicts()
    if not verdicts:
        raise InvalidInput(f"{path}: not judged yet; python -m experiments.compare {path}")
    if verdicts["exploratory"]:
        raise InvalidInput(f"{path}: exploratory ({verdicts['exploratory'][0]}): no result to show")
    folder = HERE / "results" / study.path.absolute().name
    folder.mkdir(parents=True, exist_ok=True)
    for name in _KEPT:
        if (study.path / name).exists():  # figures need matplotlib
            shutil.copy(study.path / name, folder / name)
    record = study.record
    (folder / "study.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


def catalogue() -> str:
    """Returns the page."""
    studies = [
        (folder.name, _read(folder / "study.json"), _read(folder / "verdicts.json"))
        for folder in sorted((HERE / "results").iterdir())
        if (folder / "verdicts.json").exists()
    ]
    tested = {
        (name, arm): found["p"]
        for name, _, verdicts in studies
        for arm, found in verdicts["arms"].items()
        if found.get("p") is not None
    }
    q_values = dict(zip(tested, benjamini_hochberg(list(tested.values())), strict=True))
    parts = [_HEAD, _overview(studies)]
    parts += [_section(name, study, verdicts, q_values) for name, study, verdicts in studies]
    return "\n".join(parts)


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def _overview(studies: Iterable[tuple[str, dict, dict]]) -> str:
    rows = [
        [
            f"[{name}](#{name})",
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
                spell_interval(found.get("simultaneous")),
                spell(q, 3),
                found["words"],
            ]
        )
    heads = ["arm", "parameters", verdicts["metric"], "difference", "interval", "q", "verdict"]
    device = study["environment"]["device"]
    minutes = study["seconds"] / 60
    beyond = [
        f"{arm}: {'yes' if found['beyond_this_text']['holds'] else 'no'}"
        for arm, found in verdicts["arms"].items()
        if found.get("beyond_this_text")
    ]
    tuned = {
        arm: facts["tuning"]["chosen"]
        for arm, facts in study["arms"].items()
        if facts.get("tuning")
    }
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
        key = study["sealed"]["tuning"]["key"]
        lines += [f"Chosen {key}: " + ", ".join(f"{a} {v:g}" for a, v in tuned.items()) + ".", ""]
    if beyond:
        lines += [f"Also beyond this text: {', '.join(beyond)}.", ""]
    heads, rows = also_table(verdicts)
    if rows:
        lines += ["Further evaluations, with intervals and no verdicts:", ""]
        lines += [as_markdown(heads, rows)]
    lines += [f"![Paired differences from {verdicts['base']}](results/{name}/forest.svg)", ""]
    return "\n".join(lines)


def _score(verdicts: dict[str, Any], arm: str) -> str:
    value = verdicts["values"][arm]
    return f"{spell(value['mean'])} ± {spell(value['deviation'])}"


if __name__ == "__main__":
    execute(main)

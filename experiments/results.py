"""Takes in what studies found, and writes experiments/README.md and a page for each of them.

Example:
  python -m experiments.results --add=runs/positions
"""

import csv
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.answers import ABOUT, FIGURES, GATE, RESULTS, CommittedStudy, domain_of
from experiments.command import Parser, execute
from experiments.page_of_study import learned_of
from experiments.pages import write
from transformer_jax.errors import InvalidInput
from transformer_jax.runs.files import inside, read_json, write_json
from transformer_jax.studies.asking.design import load_design
from transformer_jax.studies.asking.gate import gate_of
from transformer_jax.studies.asking.ladder import rung_path
from transformer_jax.studies.asking.register import Register
from transformer_jax.studies.asking.study import changed_since, load_study, plain_cell
from transformer_jax.studies.asking.suite import FILE as SUITE
from transformer_jax.studies.inference.outcome import Outcome
from transformer_jax.studies.inference.statistics import FOR_MEANS
from transformer_jax.studies.inference.words import CANNOT_TELL, IDENTICAL
from transformer_jax.studies.judging.adequacy import whether_learned
from transformer_jax.studies.judging.judge import Scores, decided, look_of
from transformer_jax.studies.reporting.figures import draw_forest

_KEPT = ("study.json", "cells.csv", "looks.jsonl", "verdicts.json", *FIGURES)


def main(argv: list[str]) -> None:
    """Reads the arguments, takes in a study, and writes the page."""
    parser = Parser("results", __doc__)
    parser.add_argument("--add", action="append", default=[], metavar="DIR", help="a judged study")
    parser.add_argument(
        "--judge_again", action="store_true", help="decide all studies anew from their scores"
    )
    parser.add_argument(
        "--score_bases",
        action="store_true",
        help="score simple methods beside the bases of studies that sealed no gate; 2 minutes",
    )
    arguments = parser.read(argv)
    if arguments.judge_again:  # changes nothing where the rules are those of before
        for folder in sorted(RESULTS.iterdir()):
            if (folder / "verdicts.json").exists():
                judge_again(folder)
    for path in arguments.add:
        add(Path(path))
    if arguments.score_bases:
        for file in sorted(RESULTS.glob("*/study.json")):
            try:
                score_base(file.parent)
            except InvalidInput as error:  # data that is made first, see the study's file
                print(f"{file.parent.name}: not scored: {str(error).splitlines()[0]}")
    print(write())


def add(path: Path) -> None:
    """Copies what a study, ladder or suite found, no cells; refuses what is not to be shown."""
    if (path / "ladder.json").exists():
        _add_ladder(path)
        return
    if (path / SUITE).exists():
        suite = read_json(inside(path, SUITE))
        studies = [load_study(inside(path, name)) for name in suite["configs"]]
        if "data" not in suite or not all(study.verdicts() for study in studies):
            raise InvalidInput(f"{path}: not all of its studies are judged; give its command again")
        _copy(path, studies, (SUITE, "suite.md", "suite.html"))
        return
    study = load_study(path)
    verdicts = study.verdicts()
    if not verdicts:
        raise InvalidInput(f"{path}: not judged yet; python -m experiments.compare {path}")
    if verdicts["exploratory"]:
        raise InvalidInput(f"{path}: exploratory ({verdicts['exploratory'][0]}): no result to show")
    folder = RESULTS / study.path.absolute().name
    if folder.resolve() == study.path.resolve():
        raise InvalidInput(f"--add={path}: it is there; --judge_again decides it anew")
    folder.mkdir(parents=True, exist_ok=True)
    for name in _KEPT:
        _replace(inside(study.path, name), folder / name)
    (folder / GATE).unlink(missing_ok=True)
    register = Register(RESULTS)
    # Looks at the same contrasts that were not published are a part of the level all the same.
    for row in Register(study.root).about(study.contrasts().values()):
        if (row["seal"], row["sealed_at"]) != study.identity:
            register.note(row)
    register.note(look_of(study, verdicts) | {"study": folder.name})
    judge_again(folder)  # beside what the committed results knew before


def score_base(folder: Path) -> dict[str, Any] | None:
    """Says whether the base of a study had learned that sealed no gate, beside its verdicts.

    Returns:
      What gate.json holds; None where the study has a gate, and where no simple method is known.
    """
    from transformer_jax.data.baselines import baselines_of
    from transformer_jax.training.build import make_task

    study = load_study(folder)
    if "baselines" in study.record or study.sealed.get("target") is not None:
        return None
    design = load_design(str(RESULTS.parents[1] / study.record["config_path"]))
    if changed_since(study.sealed, design.sealed()):
        raise InvalidInput(f"{study.record['config_path']}: asks no longer what {folder} was asked")
    config = design.config_of(study.base)
    scores, usual = baselines_of(make_task(config), config.training.steps)
    gate = gate_of(None, usual, scores)
    if gate is None:
        return None
    rows = csv.DictReader((folder / "cells.csv").read_text(encoding="utf-8").splitlines())
    column = f"{gate['split']}/{gate['metric']}"
    whole = [row for row in rows if float(row.get("budget") or 1) == 1]
    of_base = [row[column] for row in whole if row["arm"] == plain_cell(study.base)]
    values = [float(score) for score in of_base if score]
    found = whether_learned(gate, values)
    write_json(folder, GATE, found)
    return found


def judge_again(folder: Path) -> None:
    """Decides a study from its stored scores, and says which words change."""
    before, verdicts = read_json(folder / "verdicts.json"), decided_again(folder)
    for arm, verdict in before["arms"].items():
        words = verdicts["arms"][arm]["words"]
        if verdict["words"] != words:
            print(f"{folder.name}, {arm}: {verdict['words']} -> {words}")
    write_json(folder, "verdicts.json", verdicts)
    draw_forest(load_study(folder), verdicts)
    (folder / "forest.pdf").unlink()


def decided_again(folder: Path) -> dict[str, Any]:
    """Returns a study's verdicts by the rules of today, from its stored scores.

    What needs the cells (refusals, what holds beyond this text) stays as it was found with them.
    """
    study, verdicts = load_study(folder), read_json(folder / "verdicts.json")
    before = verdicts["arms"]
    scores = Scores(
        {arm: _outcomes_of(value) for arm, value in verdicts["values"].items()},
        {arm: its["refusals"] for arm, its in before.items()},
        verdicts.get("learned"),
        verdicts.get("budgets", {}),
    )
    shown = {(tuple(look["seeds"]), tuple(look["cells"])): None for look in study.looks()}
    earlier = [len(seeds) for seeds, _ in shown][: verdicts["look"] - 1]
    # Where the base has not learned, it was not kept whether an arm computes the same.
    unknown = (IDENTICAL, CANNOT_TELL)
    same = {arm: None if its["verdict"] in unknown else False for arm, its in before.items()}
    register, seeds = Register(RESULTS), verdicts["seeds"]
    by_arm, level, trend = decided(study, register, scores, seeds, earlier, same)
    for arm, its in before.items():
        by_arm[arm] |= {} if its["refusals"] else {"beyond_this_text": its.get("beyond_this_text")}
    known = {"level": level, "coverage": 1 - FOR_MEANS * level, "arms": by_arm}
    return verdicts | known | ({"trend": trend} if trend else {})


def _outcomes_of(value: dict[str, Any]) -> dict[int, Outcome]:
    """The outcomes of an arm, from its part of verdicts.json."""
    if "outcomes" in value:
        return {int(seed): Outcome(*fields) for seed, fields in value["outcomes"].items()}
    return {int(seed): Outcome(score, score is None) for seed, score in value["by_seed"].items()}


def _add_ladder(path: Path) -> None:
    ladder = read_json(inside(path, "ladder.json"))
    rungs = [load_study(rung_path(path, ladder["key"], value)) for value in ladder["values"]]
    if "arms" not in ladder or not all(rung.verdicts() for rung in rungs):
        raise InvalidInput(f"{path}: not all of its rungs are judged; give its command again")
    folder = _copy(path, rungs, ("ladder.json", "ladder.md", "forecast.json", "ladder.svg"))
    largest, verdicts = rungs[-1], rungs[-1].verdicts()
    about_it = CommittedStudy(folder.name, largest.record, verdicts, verdicts.get("learned"))
    about = {key: largest.record[key] for key in ("config_path", "commands", "environment")}
    changed = {k: v for k, v in largest.record["overrides"].items() if k != ladder["key"]}
    about |= {
        "overrides": {k: v for k, v in changed.items() if k not in ladder.get("together", ())},
        "seconds": sum(rung.record["seconds"] for rung in rungs),
        "prediction": verdicts["prediction"],
        "margin": f"{verdicts['margin']:g} or more: {largest.sealed['margin_reason']}",
        "domain": domain_of(about_it),
        "learned": learned_of(about_it),
    }
    write_json(folder, ABOUT, about)


def _copy(path: Path, studies: Iterable[Any], names: Iterable[str]) -> Path:
    """Copies what several studies say together; refuses what is not to be shown."""
    for study in studies:
        if study.record["exploratory"]:
            raise InvalidInput(f"{study.path}: exploratory: no result to show")
    folder = RESULTS / path.absolute().name
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        _replace(inside(path, name), folder / name)
    return folder


def _replace(file: Path, copy: Path) -> None:
    """Copies a file that may be missing over that of a study whose place it takes."""
    copy.unlink(missing_ok=True)
    if file.exists():  # figures need matplotlib
        shutil.copy(file, copy)


if __name__ == "__main__":
    execute(main)

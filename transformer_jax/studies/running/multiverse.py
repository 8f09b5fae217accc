"""Trains base and arms of a study under other choices, one seed each, and keeps what came out."""

import functools
import math
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.metrics import SCORED
from transformer_jax.options.config import flatten
from transformer_jax.options.schema import completed, renamed
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import as_plain, write_json
from transformer_jax.runs.interruption import StopSignal
from transformer_jax.runs.progress import Progress
from transformer_jax.studies.asking import doubts as asking
from transformer_jax.studies.asking.cells import OUTCOMES, Cell
from transformer_jax.studies.asking.design import Design
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.judging.multiverse import Curve, curve
from transformer_jax.studies.reporting.tables import signed
from transformer_jax.studies.running.planning import Arm, ArmBuilder, nothing_to_run
from transformer_jax.studies.running.workers import Workers
from transformer_jax.training.own import refuse_modules

FILE = "multiverse.json"


def multiverse(
    study: Study,
    arms: Sequence[str],
    own: Sequence[str],
    count: int,
    progress: Progress,
    allow: Collection[str] = (),
) -> dict[str, Any]:
    """Trains what is missing, writes FILE into the study, and returns what it holds.

    Args:
      study: with verdicts.
      arms: that are doubted, without the base.
      own: further doubts, see doubts.doubts_of.
      count: of specifications.
      progress: where to tell how it goes.
      allow: modules that may be imported, of those that the study's runs name.
    Raises:
      InvalidInput: the study has no verdicts, an arm is none, a doubt is wrong, or a run names
        code that is not allowed.
      Interrupted: a signal came; the running cells were saved.
    """
    names = _arms(study, arms)
    seed = study.seeds[0]
    design = _design_of(study, names, seed)
    for name in names:
        refuse_modules(design.config_of(name), allow)
    base = flatten(design.config_of(study.base))
    about = {key for name in names for key in study.sealed["arms"].get(name, {})}
    doubts = asking.doubts_of(base, own, sorted(about))
    specifications = asking.specifications(doubts, count)
    with StopSignal() as stop:
        with progress.busy(f"preparing {len(specifications)} specifications"):
            made, skipped = _made(design, specifications)
        cells = {
            (index, name): arm.cell(study.root, seed)
            for index, by_arm in made.items()
            for name, arm in by_arm.items()
        }
        arms_by_name = {arm.name: arm for by_arm in made.values() for arm in by_arm.values()}
        _train(arms_by_name, [*cells.values()], progress, stop)
    outcomes = {
        key: cell.outcome(study.metric) if cell.state() in OUTCOMES else None
        for key, cell in cells.items()
    }
    verdicts = study.verdicts()["arms"]
    kept = [index for index in range(len(specifications)) if index in made]
    scores = {
        "seed": seed,
        "specifications": [asking.spelled(specifications[index]) for index in kept],
        "skipped": {asking.spelled(specifications[p]): why for p, why in skipped.items()},
        "arms": {
            name: _as_json(
                curve(
                    verdicts[name],
                    [(outcomes[index, name], outcomes[index, study.base]) for index in kept],
                    study.sealed["margin"],
                    study.sealed["larger_is_better"],
                )
            )
            for name in names
            if name != study.base
        },
    }
    write_json(study.path, FILE, scores)
    return scores


def _as_json(its: Curve) -> dict[str, Any]:
    """A difference is infinite where one of both diverged, which JSON has no number for."""
    spelled = [signed(d) if d is not None and math.isinf(d) else d for d in its.differences]
    return as_plain({**its._asdict(), "differences": spelled})


def _arms(study: Study, arms: Sequence[str]) -> list[str]:
    verdicts = study.verdicts().get("arms", {})
    if not verdicts:
        raise InvalidInput(f"{study.path}: no verdicts yet; python -m experiments.ablate first")
    for name in arms:
        if name not in verdicts:
            raise InvalidInput(f"--arms={name}: expected some of {', '.join(verdicts)}")
    return [study.base, *(arms or verdicts)]


def _design_of(study: Study, names: Sequence[str], seed: int) -> Design:
    """The question as it was trained: what was matched and tuned stands in the arms."""
    runs = {name: RunDirectory(study.cell(name, seed).path) for name in names}
    for name, run in runs.items():
        if not run.has_begun():
            raise InvalidInput(f"{study.path}: the cells of {name!r} are not there")
    configs = {name: run.config() for name, run in runs.items()}
    # As the cells have it: what the base alone changes, an arm has as the file says, or not at all.
    keys = {key for name in names for key in renamed(study.arms[name]["changes"])}
    arms = {
        name: {key: value for key, value in flatten(config).items() if key in keys}
        for name, config in configs.items()
    }
    shared = configs[study.base].copy_and_resolve_references().unlock()
    for key in arms[study.base]:
        if any(key not in its for its in arms.values()):
            *sections, name = key.split(".")
            del functools.reduce(operator.getitem, sections, shared)[name]
    # Cells of an earlier study may have been asked for other metrics, and a target of theirs.
    if study.metric not in (*SCORED, *shared.evaluation.metrics):
        shared.evaluation.metrics = (*shared.evaluation.metrics, study.metric)
    sealed = completed(flatten(study.sealed["base_config"]))
    shared.evaluation.target = sealed["evaluation.target"]
    return Design(metric=study.metric, base=study.base, arms=arms, config=shared.lock())


def _made(
    design: Design, specifications: Sequence[asking.Specification]
) -> tuple[dict[int, dict[str, Arm]], dict[int, str]]:
    """Place of a specification -> its arms, and why others are left out."""
    builder, made, skipped = ArmBuilder(design), {}, {}
    for index, specification in enumerate(specifications):
        by_arm = {}
        try:
            for name in design.arms:
                flat = flatten(design.config_of(name))
                more = asking.changes_of(specification, flat)
                its = f"{name}: {asking.spelled(specification)}"
                by_arm[name] = builder.make(its, name, more)
                by_arm[name].find_folder("loop")
        except InvalidInput as error:
            skipped[index] = str(error).splitlines()[0]
            continue
        made[index] = by_arm
    return made, skipped


def _train(
    arms: Mapping[str, Arm], cells: Sequence[Cell], progress: Progress, stop: StopSignal
) -> None:
    waiting = [cell for cell in cells if cell.state() not in OUTCOMES]
    progress.say(f"multiverse {len(cells)} cells, {len(cells) - len(waiting)} there already")
    if not waiting:
        return
    needed = {cell.arm: arms[cell.arm] for cell in waiting}
    workers = Workers(nothing_to_run(needed, "loop"), progress, stop)
    workers.run(needed, waiting, len(waiting))
    stop.end("interrupted, the running cells are saved; the same command goes on")

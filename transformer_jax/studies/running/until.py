"""A study that stops when its arms are decided, or when its time is up: look by look.

Each look is one that was planned, with its own share of the level. An arm that has its word, or is
unlikely to get one by the last look, gets no more seeds; the base always does.
"""

import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from transformer_jax.errors import InvalidInput
from transformer_jax.studies.asking.budgets import cost_of_budgets
from transformer_jax.studies.asking.cells import OUTCOMES
from transformer_jax.studies.asking.design import Design
from transformer_jax.studies.asking.study import Study
from transformer_jax.studies.inference.sequential import FUTILE, chance_of_a_word
from transformer_jax.studies.inference.words import (
    CANNOT_TELL,
    NO_VERDICT,
    NOT_PRIMARY,
    REFUSED,
    UNRESOLVED,
)
from transformer_jax.studies.judging.adequacy import may_have_learned
from transformer_jax.studies.judging.decision import level_of_contrast
from transformer_jax.studies.reporting.tables import clock

LOOKS = (4, 8, 16)  # where a study was made on the command line, and none are planned


class Until(NamedTuple):
    """When a study ends.

    Attributes:
      budget: seconds after which no further look begins; None: no limit.
      looks: how many seeds each look has that is left; see looks_left.
    """

    budget: float | None = None
    looks: tuple[int, ...] = ()


def looks_left(study: Study, design: Design) -> tuple[int, ...]:
    """Returns the planned looks that were not passed yet: how many seeds each has.

    Raises:
      InvalidInput: seeds of earlier launches are not those that looks have, or none is left.
    """
    shown = max((len(look["seeds"]) for look in study.looks()), default=0)
    there = study.record.get("seeds", []) if study.record.get("began") else []
    if there != list(range(len(there))) or (shown and shown not in design.looks):
        raise InvalidInput(
            f"--until: {study.path} was looked at with other seeds than its looks, {design.looks}; "
            "go on with --seeds, or choose another --workdir"
        )
    is_passed = len(there) > shown
    left = tuple(n for n in sorted(design.looks) if n > shown or (n == shown and not is_passed))
    if not left:
        raise InvalidInput(f"--until: {study.path}: no planned look is left; go on with --seeds")
    return left


def until_decided(launch: Any, until: Until, retry: bool) -> None:
    """Takes looks while arms are open and there is time; the first is always taken.

    Args:
      launch: of a study that is sealed, see launch.Launch.
      until: when to end.
      retry: whether cells that failed are tried again.
    """
    study, say, looks = launch.study, launch.progress.say, until.looks
    ends = math.inf if until.budget is None else launch.started + until.budget
    pace = 1.0  # seconds that pass in one that is expected: several cells train at a time, say
    for number, count in enumerate(looks, 1):
        going = [name for name in study.arms if name not in study.stopped]
        expected, began = _seconds_of(launch, going, range(count)), time.monotonic()
        launch.take(range(count), retry)
        pace = (time.monotonic() - began) / expected if expected else pace
        launch.decide()
        _go_on_with_what_was_refused(study)
        if number == len(looks):
            return
        reasons = reasons_to_stop(study, launch.design, looks[-1])
        stopping = {name: why for name, why in reasons.items() if name not in study.stopped}
        for name, why in stopping.items():
            say(f"until  {name}: stops after {count} seeds: {why}")
        going = [name for name in study.arms if name not in {*stopping, *study.stopped}]
        if going == [study.base]:
            return
        next_count, left = looks[number], ends - time.monotonic()
        needed = pace * _seconds_of(launch, going, range(count, next_count))
        if needed > left:
            say(f"until  {next_count} seeds take {clock(needed)} more, {clock(left)} are left")
            return
        stopped = {name: {"seeds": study.seeds, "why": why} for name, why in stopping.items()}
        # In one write with the seeds to come: what is killed here goes on at the next look.
        study.record["stopped"] = {**study.stopped, **stopped}
        study.record["seeds"] = list(range(next_count))
        study.write()


def _go_on_with_what_was_refused(study: Study) -> None:
    """Takes back that an arm stops since its cells were missing, where they are there by now."""
    arms, stopped = study.verdicts()["arms"], study.stopped
    kept = {
        name: its
        for name, its in stopped.items()
        if not its["why"].startswith(REFUSED) or arms[name]["verdict"].startswith(REFUSED)
    }
    if kept != stopped:
        study.record["stopped"] = kept
        study.write()


def _seconds_of(launch: Any, arms: Sequence[str], seeds: Sequence[int]) -> float:
    """About how long these seeds take, one cell after another."""
    shorter = cost_of_budgets(launch.design)
    cells = [launch.study.cell(name, seed) for seed in seeds for name in arms]
    waiting = [cell.arm for cell in cells if cell.state() not in OUTCOMES]
    return sum(launch.estimate.seconds_of(name) * (1 + shorter[name]) for name in waiting)


def reasons_to_stop(study: Study, design: Design, final: int) -> dict[str, str]:
    """Returns arm -> why it needs no more seeds.

    Args:
      study: that was judged.
      design: of it.
      final: seeds at the last look.
    """
    level, reasons = level_of_contrast(study.sealed, sorted(design.looks)), {}
    verdicts, has_target = study.verdicts(), study.sealed.get("target") is not None
    for name, arm in verdicts["arms"].items():
        if arm["verdict"] == CANNOT_TELL and may_have_learned(verdicts.get("learned")):
            continue  # more seeds of the base may show that it has
        if arm["verdict"] not in (UNRESOLVED, NO_VERDICT):
            reasons[name] = arm["words"]
        elif any(diverged for diverged, _ in arm.get("diverged", ())) and not has_target:
            reasons[name] = "runs diverged, so no mean is judged"
        elif arm["verdict"] == UNRESOLVED and arm.get("mean") is not None:
            chance = _chance(arm, final, study.sealed["margin"], level)
            if chance < FUTILE:
                reasons[name] = f"{final} seeds would decide it with a probability of {chance:.0%}"
    # Arms that the question is not about get seeds as long as one of the others does.
    is_primary = {n: arm["verdict"] != NOT_PRIMARY for n, arm in verdicts["arms"].items()}
    if any(is_primary[n] and n not in {**reasons, **study.stopped} for n in is_primary):
        return {name: why for name, why in reasons.items() if is_primary[name]}
    return reasons


def _chance(arm: dict[str, Any], final: int, margin: float, level: float) -> float:
    # Seeds that earlier studies had count too, and may be more than the last look asks for.
    count, final = len(arm["seeds"]), len({*arm["seeds"], *range(final)})
    if final == count:
        return 0.0
    return chance_of_a_word(arm["mean"], arm["standard_error"], count, final, margin, level)

"""The shorter budgets of arms, as runs that begin in states of the whole ones."""

import shutil
from collections.abc import Iterable, Mapping

from transformer_jax.options.config import flatten
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.studies.asking.budgets import (
    Branching,
    branch_points,
    budget_of,
    common_updates,
)
from transformer_jax.studies.asking.cells import OUTCOMES, Cell
from transformer_jax.studies.asking.design import Design
from transformer_jax.studies.running.planning import Arm, ArmBuilder, Estimate
from transformer_jax.training.branching import BRANCHES


def branches_of(
    design: Design, builder: ArmBuilder, arms: Mapping[str, Arm], estimate: Estimate
) -> list[tuple[str, float, Arm]]:
    """Returns (arm, budget, the arm with so many updates, placed); tells arms what to keep.

    Args:
      design: with its budgets.
      builder: makes arms.
      arms: name -> arm of all updates, placed.
      estimate: how all are computed, and how long they take; that of the branches is added.
    """
    those = []
    for name, arm in arms.items():
        flat = flatten(arm.config)
        own = {key: value for key, value in arm.changes.items() if key not in design.arms[name]}
        branches = {
            share: builder.make(
                f"{name} at {share:g} of the updates", name, {**own, **budget_of(flat, share)}
            )
            for share in design.budgets
        }
        common = {share: common_updates(flatten(its.config)) for share, its in branches.items()}
        points = {share: step for share, step in branch_points(common).items() if step}
        for share, step in points.items():
            branches[share].branching = Branching(trunk=arm.hash, step=step)
        arm.branching = Branching(keeps=tuple(sorted(set(points.values()))))
        for share, its in branches.items():
            its.find_folder(estimate.how)
            left = (its.config.training.steps - its.branching.step) / arm.config.training.steps
            estimate.seconds[its.name] = left * estimate.seconds_of(name)
            those.append((name, share, its))
    return those


def drop_kept_states(trunks: Iterable[Cell], branches: Iterable[Cell]) -> None:
    """Removes what trunks keep, once all branches are there."""
    if all(cell.state() in OUTCOMES for cell in branches):
        for cell in trunks:
            shutil.rmtree(RunDirectory(cell.path).file(BRANCHES), ignore_errors=True)

"""Shorter budgets of a study: shares of an arm's updates, whose runs share what is the same.

A run whose rate stays at its peak until it falls (Hu et al. 2024, arXiv:2404.06395; Hägele et al.
2024, arXiv:2405.18392) is, until then, the longer run of the same config. So the short one is a
branch: it begins in a state of the long one, its trunk, and ends with the bits that it would have
alone.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer_jax.errors import InvalidInput
from transformer_jax.options.config import flatten

_CONSTANT = ("constant", "warmup_constant", "inverse_square_root")  # depend on no number of updates
_PARTS = 4  # of the shortest common part: branches begin at multiples of one of them


class Branching(NamedTuple):
    """How a run goes together with others of its config.

    Attributes:
      keeps: updates after which its state is kept for branches.
      trunk: hash of the cells in whose states it may begin; "": it is no branch.
      step: updates that the trunk has taken there.
    """

    keeps: tuple[int, ...] = ()
    trunk: str = ""
    step: int = 0


WHOLE = Branching()


def read_budgets(where: str, asked: Any, target: float | None) -> tuple[float, ...]:
    """Returns the `budgets` of a get_study(), shares of the updates, ascending.

    Args:
      where: of the file, for messages.
      asked: what stands there.
      target: of the study.
    Raises:
      InvalidInput: they are no such shares, or there is a target.
    """
    if not asked:
        return ()
    is_right = all(isinstance(share, float) and 0 < share < 1 for share in asked)
    if not is_right or list(asked) != sorted(set(asked)):
        raise InvalidInput(
            f"{where}: budgets={tuple(asked)}: expected shares of the updates in (0, 1), "
            "ascending: (0.25, 0.5); the whole is there anyway"
        )
    if target is not None:
        raise InvalidInput(f"{where}: budgets: a study with a target says when it is reached")
    return tuple(asked)


def budget_of(flat: Mapping[str, Any], share: float) -> dict[str, int]:
    """Returns what makes a run of a share of its updates."""
    return {"training.steps": max(1, round(share * flat["training.steps"]))}


def refuse_impossible_budgets(design: Any) -> None:
    """Raises InvalidInput where an arm cannot be trained so briefly; its warm-up say is longer."""
    for name in design.arms:
        flat = flatten(design.config_of(name))
        for share in design.budgets:
            try:
                design.config_of(name, budget_of(flat, share))
            except InvalidInput as error:
                raise InvalidInput(f"budgets: {share:g}: {error}") from error


def cost_of_budgets(design: Any) -> dict[str, float]:
    """Returns what the shorter budgets of a seed cost, in whole runs of each arm.

    Args:
      design: a Design.
    """
    costs = {}
    for name in design.arms:
        flat = flatten(design.config_of(name))
        steps = {share: budget_of(flat, share)["training.steps"] for share in design.budgets}
        common = {
            share: common_updates({**flat, "training.steps": n}) for share, n in steps.items()
        }
        points = branch_points(common)
        costs[name] = sum(steps[s] - points[s] for s in steps) / flat["training.steps"]
    return costs


def common_updates(flat: Mapping[str, Any]) -> int:
    """Returns how many first updates a run has in common with longer ones of its config.

    0 where it has hooks, or a schedule of its own: what these do is not known.
    """
    steps, schedule = flat["training.steps"], flat["schedule.name"]
    if flat["hooks.functions"]:
        return 0
    if schedule == "warmup_stable_decay":
        return steps - max(round(flat["schedule.warmup_stable_decay.decay_fraction"] * steps), 1)
    return steps - 1 if schedule in _CONSTANT else 0


def branch_points(common: Mapping[float, int]) -> dict[float, int]:
    """Returns where branches begin: not after their common part, at multiples of one number.

    So a trunk is cut into few calls.

    Args:
      common: updates in common with the trunk, by budget.
    """
    points = [updates for updates in common.values() if updates > 0]
    part = max(min(points, default=1) // _PARTS, 1)
    return {share: updates // part * part for share, updates in common.items()}

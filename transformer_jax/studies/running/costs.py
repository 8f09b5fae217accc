"""What an arm costs, and options solved for so that arms cost the same.

A gradient is taken to cost three times the forward pass, see training/flops.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ml_collections import ConfigDict

from transformer_jax.config_files import flatten
from transformer_jax.data.tasks import Task
from transformer_jax.paths import by_path
from transformer_jax.studies.reporting.tables import spell_share
from transformer_jax.training.prepared import Prepared

_EMBEDDINGS = {"token_embedding", "positions", "type_embedding"}  # names in a parameter's path


class Cost(NamedTuple):
    """What an arm has and uses.

    Attributes:
      parameters: numbers to learn.
      without_embeddings: those outside token and position tables.
      flops: of training on one token (or example), matrix products alone.
      updates: of the optimizer.
      counted: tokens (or examples) in training.
    """

    parameters: int
    without_embeddings: int
    flops: float
    updates: int
    counted: int


def cost_of(prepared: Prepared) -> Cost:
    """Returns what an arm costs; nothing is compiled or drawn."""
    leaves = by_path(prepared.template.params).items()
    sizes = {path: math.prod(leaf.shape) for path, leaf in leaves}
    inside = sum(n for path, n in sizes.items() if not _EMBEDDINGS.intersection(path.split("/")))
    updates, count = prepared.config.training.steps, prepared.count_of_update
    return Cost(
        sum(sizes.values()),
        inside,
        prepared.operations_of_update / count,
        updates,
        updates * count,
    )


def scored_on_other_data(tasks: Mapping[str, Task], base: str) -> list[str]:
    """Returns the arms whose examples are not the base's, so that no score of theirs compares."""
    hashes = {name: task.facts.get("sha256") for name, task in tasks.items()}
    return [name for name, sha256 in hashes.items() if sha256 != hashes[base]]


def unmatched(costs: Mapping[str, Cost], base: str) -> list[str]:
    """Returns what differs from the base by more than 2 %, one line for each arm."""
    lines = []
    for name, cost in costs.items():
        apart = []
        for what in ("parameters", "flops", "counted", "updates"):
            ours, theirs = getattr(cost, what), getattr(costs[base], what)
            if share := spell_share(ours, theirs):
                apart.append(f"{what} {share}")
        if apart:
            lines.append(f"{name}: {', '.join(apart)}")
    return lines


# ---------------------------------------------------------------- making arms equal


def matched_value(
    measure: Callable[[int], float], target: float, start: int, step: int = 1
) -> tuple[int, float]:
    """Returns the multiple of `step` at which a growing measure is nearest to a wanted value.

    Args:
      measure: of a field's value: parameters, FLOPs or seconds.
      target: the base's.
      start: where to begin looking.
      step: the value has to be a multiple of it.
    Returns:
      The value and its measure.
    Raises:
      ValueError: the measure does not grow with the field.
    """
    costs: dict[int, float] = {}

    def at(units: int) -> float:
        if units not in costs:
            costs[units] = measure(units * step)
        return costs[units]

    low, high = 1, max(1, start // step)
    while at(high) < target:
        if at(2 * high) <= at(high):
            raise ValueError("it does not grow with this field")
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(middle) < target else (low, middle)
    best = min((low, high), key=lambda units: abs(at(units) - target))
    return best * step, at(best)


def step_of(field: str, config: ConfigDict) -> int:
    """Returns what a field has to be a multiple of: heads that rotate need pairs of features."""
    if field != "model.width":
        return 1
    return config.model.num_heads * (2 if config.model.position == "rotary" else 1)


def explicit(field: str, config: ConfigDict) -> int:
    """Returns a field's value, 4 * width where mlp_dim says nothing."""
    value = flatten(config)[field]
    return value if value is not None else 4 * config.model.width

"""What runs are compared by: the direction of a metric, whoever wrote it."""

from collections.abc import Mapping
from typing import Any

from transformer_jax.metrics import METRICS, metric_facts


def larger_is_better(metric: str, stored: Mapping[str, Mapping[str, Any]] | None = None) -> bool:
    """Returns the direction of a metric, with or without the split it is of.

    What is no score, a time or a norm say, is better smaller, and a speed larger.

    Args:
      metric: its name.
      stored: what runs keep of metrics that are not this package's; nothing is imported.
    """
    name = metric.rsplit("/", 1)[-1]
    if name in METRICS:
        return metric_facts(name).larger_is_better
    if name == "mfu" or name.endswith("_per_second"):
        return True
    return bool((stored or {}).get(name, {}).get("larger_is_better", False))

"""What a base has to beat before anything is said of its arms, by name."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.suggestions import suggest

_OF_LABELS = {
    "majority": "the most frequent class",
    "linear model": "a linear model",
    "nearest neighbour": "the nearest neighbour",
}
# Of data/baselines, with what they are called in a sentence.
METHODS = {f"{n}-gram": f"a {n}-gram model" for n in range(1, 7)} | _OF_LABELS
FLOORS = ("1-gram", "majority")  # read nothing of an example: what a metric cannot fall below


def read_gate(where: str, asked: dict | None, target: float | None) -> tuple[str, str] | None:
    """Returns method and reason of a `gate` in get_study().

    Args:
      where: of the file, for messages.
      asked: what stands there: by and reason.
      target: of the study.
    Raises:
      InvalidInput: the method is unknown, there is no reason, or there is a target.
    """
    if not asked:
        return None
    method, reason = str(asked.get("by")), asked.get("reason")
    if method not in METHODS:
        raise InvalidInput(
            f"{where}: gate: by={method!r}: expected one of {', '.join(METHODS)}"
            f"{suggest(method, METHODS)}"
        )
    if not isinstance(reason, str) or not reason.strip() or asked.keys() != {"by", "reason"}:
        raise InvalidInput(f"{where}: gate: expected by and reason, why another than the usual one")
    if target is not None:
        raise InvalidInput(f"{where}: gate: a study with a target counts the runs that reach it")
    return method, reason


def gate_of(
    asked: Sequence[str] | None,
    usual: str | None,
    scores: Mapping[str, Any],
    split: str = "test",
) -> dict[str, Any] | None:
    """Returns what a base is held against.

    Args:
      asked: method and reason that a study sealed.
      usual: method of the task.
      scores: method -> split -> metric -> score.
      split: that both are scored on.
    Returns:
      method, metric, its split, score and reason; None where no method is known.
    Raises:
      InvalidInput: what was asked for does not go with the task.
    """
    method, reason = asked or (usual, "the usual one of such a task")
    if method is None:
        return None
    if method not in scores:
        methods = [name for name in scores if name in METHODS]
        raise InvalidInput(
            f"get_study(): gate: by={method!r}: not for this task; expected one of "
            f"{', '.join(methods)}{suggest(method, methods)}"
        )
    metric = "accuracy" if method in _OF_LABELS else "loss"
    score = scores[method][split][metric]
    return {"method": method, "metric": metric, "split": split, "score": score, "reason": reason}

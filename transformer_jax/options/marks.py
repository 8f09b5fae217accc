"""What a function of the user's own says of itself by a mark above it, read without running it.

@metric("share of examples", larger_is_better=True)
def exact(examples): ...
"""

import ast
from typing import Any, NamedTuple

from transformer_jax.options.declared import (
    PACKAGE,
    definition_in,
    definition_of,
    fields_of,
    parsed_file,
)
from transformer_jax.options.rule import is_number, is_own, suggest

# What a metric may declare as its arguments, see metrics.py.
GIVEN_TO_METRICS = (
    *("examples", "logits", "targets", "weights", "curve", "target", "generated"),
    *("run", "task", "split"),
)
# The same of a hook, see training/hooks.py.
GIVEN_TO_HOOKS = ("state", "run", "task", "batch", "step")
_METRICS = PACKAGE / "metrics.py"


class MetricFacts(NamedTuple):
    """What is known of a metric without computing it.

    Attributes:
      unit: of its number.
      larger_is_better: its direction.
      margin: the smallest difference that matters to a question that names none.
    """

    unit: str
    larger_is_better: bool = False
    margin: float = 0.01


def metric_facts(name: str) -> MetricFacts:
    """Returns what a metric says of itself: a row of metrics.METRICS, or MODULE.NAME.

    Raises:
      LookupError: there is no such file or function, or it has no mark; the text tells.
    """
    said = _arguments_of_mark(name, "metric")
    if is_own(name):
        _refuse_unknown_arguments(definition_of(name), "metric", GIVEN_TO_METRICS)
    if said is None:
        raise LookupError(
            "it has no mark; expected @metric('its unit', larger_is_better=...) above it, from "
            "transformer_jax import metric"
        )
    facts = MetricFacts(said.get("unit", ""))._replace(**said)
    if not (isinstance(facts.unit, str) and facts.unit):
        raise LookupError(f"@metric: unit={facts.unit!r}: expected its unit, a text")
    if not (is_number(facts.margin) and facts.margin > 0):
        raise LookupError(f"@metric: margin={facts.margin!r}: expected a number > 0")
    return facts


def arguments_of_metric(name: str) -> list[str]:
    """Returns what a metric is given, by name; nothing is run. [] where its file is not here."""
    try:
        definition = definition_of(name) if is_own(name) else definition_in(_parsed(), name)
    except LookupError:
        return []
    return [field for field, *_ in fields_of(definition)] if definition else []


def measured_by(name: str, code: str, target: float | None) -> str:
    """Returns what a metric was measured by: code of one's own, and the target, if it takes one.

    Args:
      name: see metric_facts.
      code: hash of its file; empty of this package's.
      target: evaluation.target.
    """
    takes_one = target is not None and "target" in arguments_of_metric(name)
    return f"{code} to {target:g}".lstrip() if takes_one else code


def _refuse_unknown_arguments(
    definition: ast.ClassDef | ast.FunctionDef, what: str, arguments: tuple[str, ...]
) -> None:
    if not isinstance(definition, ast.FunctionDef):
        raise LookupError("it is a class; expected a function")
    required = [name for name, _, default in fields_of(definition) if default is None]
    unknown = [name for name in required if name not in arguments]
    if unknown:
        raise LookupError(
            f"it wants {unknown[0]}, which no {what} gets{suggest(unknown[0], arguments)}; "
            f"expected some of {', '.join(arguments)}"
        )


def hook_intervenes(name: str) -> bool:
    """Returns whether a hook, MODULE.NAME, says that it changes what is trained.

    Raises:
      LookupError: there is no such file or function; the text tells.
    """
    if not is_own(name):
        return False
    _refuse_unknown_arguments(definition_of(name), "hook", GIVEN_TO_HOOKS)
    return _arguments_of_mark(name, "intervenes") is not None


def _parsed() -> ast.Module:
    return parsed_file(_METRICS)


def _arguments_of_mark(name: str, mark: str) -> dict[str, Any] | None:
    """The arguments of a mark above a function, by name; None where it has no such mark."""
    definition = definition_of(name) if is_own(name) else definition_in(_parsed(), name)
    if definition is None:
        raise LookupError(f"no such metric: {name}")
    for decorator in definition.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        if ast.unparse(call.func if call else decorator).rpartition(".")[2] != mark:
            continue
        arguments: dict[str, Any] = {}
        for key, node in [
            *zip(("unit",), call.args if call else (), strict=False),
            *((k.arg, k.value) for k in (call.keywords if call else ()) if k.arg != "finish"),
        ]:
            try:
                arguments[str(key)] = ast.literal_eval(node)
            except ValueError as error:
                said = f"{key}={ast.unparse(node)}"
                raise LookupError(f"@{mark}: {said}: expected it written out") from error
        return arguments
    return None

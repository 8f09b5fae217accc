"""Reading jaxprs, the operations that jax traces functions to."""

from collections.abc import Iterator
from typing import Any

from jax.extend import core


def operations_of(program: Any) -> Any:
    """Returns the operations of a jaxpr, closed or not."""
    return program.jaxpr if isinstance(program, core.ClosedJaxpr) else program


def subprograms(equation: Any) -> Iterator[Any]:
    """Yields the jaxprs inside an operation: the body of a loop, the branches of a choice."""
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, core.ClosedJaxpr | core.Jaxpr):
                yield part


def names_in(program: Any) -> set[str]:
    """Returns the names that rematerialisation policies can keep values by."""
    names = set()
    for equation in operations_of(program).eqns:
        if equation.primitive.name == "name":
            names.add(equation.params["name"])
        names.update(*map(names_in, subprograms(equation)))
    return names

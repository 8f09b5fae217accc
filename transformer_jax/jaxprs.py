"""Functions that read jaxprs, the programs into which jax traces functions."""

from collections.abc import Iterator
from typing import Any

from jax.extend import core


def operations_of(program: Any) -> Any:
    """Returns a program as an open jaxpr, whether it is closed or open."""
    return program.jaxpr if isinstance(program, core.ClosedJaxpr) else program


def subprograms(equation: Any) -> Iterator[Any]:
    """Yields the jaxprs inside an operation: the body of a loop, the branches of a cond."""
    for value in equation.params.values():
        for part in value if isinstance(value, tuple | list) else (value,):
            if isinstance(part, core.ClosedJaxpr | core.Jaxpr):
                yield part


def names_in(program: Any) -> set[str]:
    """Returns the names with which rematerialisation policies can select a program's values."""
    names = set()
    for equation in operations_of(program).eqns:
        if equation.primitive.name == "name":
            names.add(equation.params["name"])
        names.update(*map(names_in, subprograms(equation)))
    return names

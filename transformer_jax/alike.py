"""Programs of many parts that compute the same, compiled as one part.

A hundred kernels are drawn alike, and an optimizer treats them alike. One by one they are a hundred
times the code: a model of 48 blocks took half a minute to be drawn, nearly all of it compiling.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend import core

from transformer_jax.programs import Traced, as_traced, differing, opened, with_numbers


def with_results_in_loops(traced: Traced) -> Callable:
    """Returns a traced function whose results are one loop, where whole numbers alone differ.

    So are the initial values of parameters of one shape, whose keys are folded with other numbers.
    What is not whole stays a constant, with which a compiler calculates: the bits are those of the
    results one by one.
    """
    results = _by_result(traced)
    groups: dict[tuple, list[int]] = {}
    for place, result in enumerate(results):
        constants = [number.tobytes() for number in result.numbers if number.dtype.kind not in "iu"]
        groups.setdefault((result.structure, *constants), []).append(place)

    def function(*trees: Any) -> Any:
        leaves: list[Any] = [None] * len(results)
        for members in groups.values():
            alike = [results[place] for place in members]
            places = differing(alike)
            run = with_numbers(alike[0], places)
            if places:
                rows = [np.stack([each.numbers[place] for each in alike]) for place in places]
                values = jax.lax.map(lambda numbers, run=run: run(numbers, *trees), rows)
            else:
                values = [run((), *trees)] * len(members)
            for index, place in enumerate(members):
                leaves[place] = values[index]
        return jax.tree.unflatten(jax.tree.structure(traced.out_shape), leaves)

    return function


def _by_result(traced: Traced) -> list[Traced]:
    """Of each array that a function returns: the operations that it needs."""
    consts, operations = opened(traced.program)
    made_by = {variable: e for e in operations.eqns for variable in e.outvars}
    order = {id(equation): place for place, equation in enumerate(operations.eqns)}
    parts = []
    for result, shape in zip(operations.outvars, jax.tree.leaves(traced.out_shape), strict=True):
        needed, ahead = {}, [result]
        while ahead:
            variable = ahead.pop()
            equation = None if isinstance(variable, core.Literal) else made_by.get(variable)
            if equation is not None and id(equation) not in needed:
                needed[id(equation)] = equation
                ahead += equation.invars
        equations = sorted(needed.values(), key=lambda equation: order[id(equation)])
        inputs = {id(variable) for each in equations for variable in each.invars} | {id(result)}
        read = [place for place, each in enumerate(operations.constvars) if id(each) in inputs]
        part = operations.replace(
            constvars=[operations.constvars[place] for place in read],
            eqns=equations,
            outvars=[result],
            debug_info=operations.debug_info.with_unknown_names(),
        )
        parts.append(as_traced(core.ClosedJaxpr(part, [consts[p] for p in read]), (), shape))
    return parts

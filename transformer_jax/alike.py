"""Programs of many parts that compute the same, compiled as one part.

A hundred kernels are drawn alike, and an optimizer treats them alike. One by one they are a hundred
times the code: a model of 48 blocks took half a minute to be drawn, nearly all of it compiling.
What is alike is found among the operations of the traced function, so nobody has to promise it.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from transformer_jax.programs import (
    Traced,
    as_traced,
    bind,
    differing,
    inner_programs,
    opened,
    with_numbers,
)


@dataclasses.dataclass(frozen=True, eq=False)
class _Stack:
    """An array whose first axis is one of members."""

    array: Any

    def __getitem__(self, index: int) -> "_Member":
        return _Member(self, index)


@dataclasses.dataclass(frozen=True)
class _Member:
    """An array of a stack, still in it."""

    stack: _Stack
    index: int

    @property
    def array(self) -> Any:
        return self.stack.array[self.index]


def _array_of(value: Any) -> Any:
    return value.array if isinstance(value, _Member) else value


def _joined(values: Sequence[Any]) -> Any:
    """One array of several, which may be one array, or every n-th member of a stack."""
    first, *others = values
    if all(value is first for value in others):
        return jnp.broadcast_to(_array_of(first), (len(values), *jnp.shape(_array_of(first))))
    if isinstance(first, _Member):
        step = others[0].index - first.index if isinstance(others[0], _Member) else 0
        same = [_Member(first.stack, first.index + step * n) for n in range(len(values))]
        if step > 0 and all(isinstance(v, _Member) for v in values) and list(values) == same:
            return first.stack.array[first.index : same[-1].index + 1 : step]
    return jnp.stack([_array_of(value) for value in values])


def with_results_in_loops(traced: Traced, stack: Callable = lambda tree, join: tree) -> Callable:
    """Returns a traced function whose results are one loop, where whole numbers alone differ.

    So are the initial values of parameters of one shape, whose keys are folded with other numbers.
    What is not whole stays a constant, with which a compiler calculates: the bits are those of the
    results one by one.

    Args:
      traced: the function.
      stack: what is done to the tree of results in the end, see on_stacks.
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
                values = _Stack(jax.lax.map(lambda row, run=run: run(row, *trees), rows))
            else:
                values = [run((), *trees)] * len(members)
            for index, place in enumerate(members):
                leaves[place] = values[index]
        tree = jax.tree.unflatten(jax.tree.structure(traced.out_shape), leaves)
        return jax.tree.map(_array_of, stack(tree, _joined))

    return function


def _by_result(traced: Traced) -> list[Traced]:
    """Of each array that a function returns: the operations that it needs."""
    consts, operations = opened(traced.program)
    made_by = {variable: e for e in operations.eqns for variable in e.outvars}
    order = {id(equation): index for index, equation in enumerate(operations.eqns)}
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
        read = [index for index, each in enumerate(operations.constvars) if id(each) in inputs]
        part = operations.replace(
            constvars=[operations.constvars[index] for index in read],
            eqns=equations,
            outvars=[result],
            debug_info=operations.debug_info.with_unknown_names(),
        )
        parts.append(as_traced(core.ClosedJaxpr(part, [consts[p] for p in read]), (), shape))
    return parts


# ---------------------------------------------------------------- functions of stacks


def on_stacks(function: Callable, stack: Callable, unstack: Callable) -> Callable:
    """Returns a function of trees as one of the same trees with some arrays stacked.

    An operation that is the same for each member of a stack is one operation. Others (those of one
    member alone, or of several, as in a norm over all) are computed as they stand.

    Args:
      function: of trees of arrays, to a tree of arrays.
      stack: (tree, join) -> the tree with stacks; `join` makes one of a list.
      unstack: the tree with each stack's members, `array[index]`, in their places.
    """

    def run(*trees: Any) -> Any:
        inputs = unstack(jax.tree.map(_Stack, trees))
        shapes = jax.tree.map(_shape_of, inputs)
        program, out_shape = jax.make_jaxpr(function, return_shape=True)(*shapes)
        if any(map(_is_inlined, program.jaxpr.eqns)):
            program = jax.make_jaxpr(functools.partial(_inlined, program))(*program.in_avals)
        results = _run(program, jax.tree.leaves(inputs))
        tree = jax.tree.unflatten(jax.tree.structure(out_shape), results)
        return jax.tree.map(_array_of, stack(tree, _joined))

    return run


def _is_inlined(equation: Any) -> bool:
    """Whether it calls a function whose operations jax will put in its place, since jax 0.11."""
    return equation.primitive.name == "jit" and "JAX_LATE" in str(equation.params["inline"])


def _inlined(program: Any, *arguments: Any) -> list[Any]:
    """Runs a program with those operations in place of the call."""
    consts, operations = opened(program)
    values = dict(zip(operations.invars, arguments, strict=True))
    values |= dict(zip(operations.constvars, consts, strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else values[variable]

    for equation in operations.eqns:
        inputs = [read(variable) for variable in equation.invars]
        if _is_inlined(equation):
            outputs = _inlined(equation.params["jaxpr"], *inputs)
        else:
            outputs = bind(equation, inputs)
        values |= dict(zip(equation.outvars, outputs, strict=True))
    return [read(variable) for variable in operations.outvars]


def _shape_of(value: _Stack | _Member) -> jax.ShapeDtypeStruct:
    is_member = isinstance(value, _Member)
    array = value.stack.array if is_member else value.array
    return jax.ShapeDtypeStruct(array.shape[is_member:], array.dtype)


def _run(program: Any, arguments: Sequence[Any]) -> list[Any]:
    """Runs a program of which some arguments are members; so are results, where they can be."""
    consts, operations = opened(program)
    inputs = [each if isinstance(each, _Member) else each.array for each in arguments]
    values = dict(zip(operations.invars, inputs, strict=True))
    values |= dict(zip(operations.constvars, consts, strict=True))
    group_of = _groups(operations, values)
    results: dict[int, list[Any]] = {}

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else values[variable]

    for index, equation in enumerate(operations.eqns):
        given = [read(variable) for variable in equation.invars]
        group = group_of.get(index)
        if group is None:
            made = bind(equation, [_array_of(each) for each in given])
        else:
            if group.name not in results:
                results[group.name] = _results_of(equation, given)
            made, member = results[group.name], group.members.get(index)
            made = made if member is None else [stack[member] for stack in made]
        values |= dict(zip(equation.outvars, made, strict=True))
    return [read(variable) for variable in operations.outvars]


def _results_of(equation: Any, inputs: Sequence[Any]) -> list[Any]:
    """What an operation gives; of one on members, for all of them."""
    if not any(isinstance(each, _Member) for each in inputs):
        return bind(equation, inputs)
    arrays = [each.stack.array if isinstance(each, _Member) else each for each in inputs]
    axes = [0 if isinstance(each, _Member) else None for each in inputs]
    run = jax.vmap(lambda *each: bind(equation, each), in_axes=axes)
    return [_Stack(array) for array in run(*arrays)]


@dataclasses.dataclass(frozen=True)
class _Group:
    """Operations that are the same: for each member of a stack, or on what is of none."""

    name: int
    members: dict[int, int]  # by the place of an operation in its program: which member's it is


def _groups(operations: Any, values: dict[Any, Any]) -> dict[int, _Group]:
    """By the place of an operation: its group, where that has one for every member.

    Operations are looked at once their inputs are settled. One that waits for those of other
    members, when nothing else can be looked at, has none; the first such one stands alone.
    """
    # A name is the same for what was computed alike: of all members, or of no stack.
    names: dict[Any, Any] = {}
    members: dict[Any, tuple[int, int]] = {}  # of a stack of how many, and which
    for variable, value in values.items():
        names[variable] = id(variable)
        if isinstance(value, _Member):
            names[variable] = id(value.stack)
            members[variable] = (value.stack.array.shape[0], value.index)
    readers: dict[Any, list[int]] = {}
    unsettled: dict[int, int] = {}
    for place, equation in enumerate(operations.eqns):
        inputs = {v for v in equation.invars if not isinstance(v, core.Literal)} - names.keys()
        unsettled[place] = len(inputs)
        for variable in inputs:
            readers.setdefault(variable, []).append(place)
    ready = [place for place, count in unsettled.items() if not count]
    waiting: dict[tuple, dict[int, int]] = {}
    key_of: dict[int, tuple] = {}  # of those that wait, in no order
    ahead = list(range(len(operations.eqns)))[::-1]  # for the first of them
    numbers: dict[Any, int] = {}
    groups: dict[int, _Group] = {}

    def settle(place: int, name: Any, member: tuple[int, int] | None) -> None:
        for index, variable in enumerate(operations.eqns[place].outvars):
            names[variable] = (name, index)
            if member is not None:
                members[variable] = member
            for reader in readers.get(variable, ()):
                unsettled[reader] -= 1
                if not unsettled[reader]:
                    ready.append(reader)

    while ready or key_of:
        if not ready:
            while ahead[-1] not in key_of:
                ahead.pop()
            place = ahead.pop()
            del waiting[key_of.pop(place)][place]
            settle(place, ("alone", place), None)
            continue
        place = ready.pop()
        equation = operations.eqns[place]
        variables = [v for v in equation.invars if not isinstance(v, core.Literal)]
        of = {members[variable] for variable in variables if variable in members}
        inputs = [
            (str(v.aval), np.asarray(v.val).tobytes())
            if isinstance(v, core.Literal)
            else (names[v], v in members)
            for v in equation.invars
        ]
        key = (equation.primitive, *inputs, _spelled(equation), *{count for count, _ in of})
        name = numbers.setdefault(key, len(numbers))
        if not of:
            groups[place] = _Group(name, {})
        if len(of) != 1:
            settle(place, ("across", place) if of else name, None)
            continue
        ((count, member),) = of
        group = waiting.setdefault(key, {})
        group[place], key_of[place] = member, key
        if len(set(group.values())) == count:
            whole = _Group(name, dict(group))
            for each, which in whole.members.items():
                groups[each] = whole
                del key_of[each]
                settle(each, name, (count, which))
            del waiting[key]
    return groups


def _spelled(equation: Any) -> str:
    """The parameters of an operation; programs are those that jax made once, so their id tells."""
    inner = inner_programs(equation)
    plain = {name: value for name, value in equation.params.items() if name not in inner}
    held = [id(program) for programs in inner.values() for program in programs]
    return f"{sorted(plain.items(), key=str)} {held}"

"""Programs that compute the same, found by what they compute."""

import hashlib
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from transformer_jax.programs import Traced, hash_of, inner_programs, opened


def canonical(traced: Traced) -> str:
    """Returns a hash of what a function computes, whatever its parts are called and lie in.

    Calls are put in their places and what nobody reads is left out; names, places in files and
    addresses say nothing, every number and constant array does.
    """
    consts, operations = opened(traced.program)
    lines = _canonical_lines(operations, consts)
    structure = jax.tree.structure(traced.out_shape)
    tree = jax.tree.unflatten(structure, range(structure.num_leaves))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(tree)]
    return hash_of("\n".join([*paths, *lines]))


_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
# Operations that are what they call.
_CALLS = ("jit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call")


def _canonical_lines(operations: Any, consts: Sequence[Any]) -> list[str]:
    """A program written down: inputs, operations in their order, outputs, all by number."""
    fresh = itertools.count()
    inputs = [next(fresh) for _ in operations.invars]
    inlined, outputs = _inlined(operations, consts, inputs, fresh)
    read, kept = set(outputs), []
    for equation, arguments, results in reversed(inlined):
        if read.intersection(results) or equation.effects:
            read.update(arguments)
            kept.append((equation, arguments, results))
    places: dict[Any, int] = {}

    def spelled(value: Any) -> str:  # a number is a text, a variable an int
        return value if isinstance(value, str) else str(places.setdefault(value, len(places)))

    lines = [
        f"{spelled(i)} {v.aval.str_short()}" for i, v in zip(inputs, operations.invars, strict=True)
    ]
    for equation, arguments, results in reversed(kept):
        held = inner_programs(equation)
        plain = {k: v for k, v in equation.params.items() if k not in held and not callable(v)}
        plain.pop("weak_type", None)
        types = [variable.aval.str_short() for variable in equation.outvars]
        lines.append(
            f"{equation.primitive.name} {[*map(spelled, arguments)]} "
            f"{[*map(spelled, results)]} {types} {_ADDRESS.sub('', str(sorted(plain.items())))}"
        )
        for program in (each for programs in held.values() for each in programs):
            consts, inner = opened(program)
            lines += ["(", *_canonical_lines(inner, consts), ")"]
    return [*lines, " ".join(map(spelled, outputs))]


def _inlined(
    operations: Any, consts: Sequence[Any], inputs: Sequence[Any], fresh: Iterator[int]
) -> tuple[list[tuple], list[Any]]:
    """The operations of a program with those of its calls in their places, and its outputs."""
    values = dict(zip(operations.invars, inputs, strict=True))
    values |= dict(zip(operations.constvars, map(_spell_number, consts), strict=True))

    def read(variable: Any) -> Any:
        is_number = isinstance(variable, core.Literal)
        return _spell_number(variable.val) if is_number else values[variable]

    listed = []
    for equation in operations.eqns:
        arguments = [read(variable) for variable in equation.invars]
        if equation.primitive.name in _CALLS:
            ((program, *_),) = inner_programs(equation).values()
            inner_consts, inner = opened(program)
            more, results = _inlined(inner, inner_consts, arguments, fresh)
            listed += more
        elif equation.primitive.name == "name":  # of a site, which computes nothing
            results = arguments
        else:
            results = [next(fresh) for _ in equation.outvars]
            listed.append((equation, arguments, results))
        values |= dict(zip(equation.outvars, results, strict=True))
    return listed, [read(variable) for variable in operations.outvars]


def _spell_number(value: Any) -> str:
    number = np.asarray(value)
    return f"={number.dtype}{number.shape}{hashlib.sha256(number.tobytes()).hexdigest()[:16]}"

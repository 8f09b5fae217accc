"""Programs that differ in numbers alone are one program, with those numbers as arguments.

Compiling takes seconds and a step milliseconds, so runs with other seeds, learning rates, decays,
dropout rates or initial deviations share what is compiled. Nobody has to say which options can be
shared: each run's step is traced, and two traces that are equal but for their numbers are one
program. A number that is equal in all of them stays a constant.
"""

import contextlib
import functools
import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core


class Traced(NamedTuple):
    """A function as a list of operations.

    Attributes:
      program: the operations, jax's jaxpr.
      out_shape: what the function returns, a tree of shapes and dtypes.
      structure: a hash of all but the numbers, the trees of arguments and results included.
      exact: a hash of all but the numbers that are neither divisors nor exponents. Those are
        compiled otherwise as constants (a division as a product with the reciprocal), so they
        change some bits as arguments. Of the options here no other number does, as tests show; in
        code of the user's own, constants that could be folded into one might.
      numbers: every number and constant array in it, in order.
    """

    program: Any
    out_shape: Any
    structure: str
    exact: str
    numbers: tuple[np.ndarray, ...]


def trace(function: Callable, *arguments: Any) -> Traced:
    """Returns a function as operations on arguments of these shapes.

    Args:
      function: pure; one that jax.jit gave is not traced again when it is called.
      *arguments: trees of arrays or ShapeDtypeStructs.
    """
    jitted: Any = function if hasattr(function, "trace") else jax.jit(function)
    made = jitted.trace(*arguments)
    return as_traced(made.jaxpr, arguments, made.out_info)


def trace_open(function: Callable, *arguments: Any) -> tuple[Traced, list[Any]]:
    """Returns a function that reads arrays around it: as operations on these and the arguments.

    Args:
      function: pure but for what it reads.
      *arguments: trees of arrays.
    Returns:
      The function whose first arguments are what it reads; and these, in order.
    """
    program, out_shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    return as_traced(_closed(program.jaxpr), (program.consts, arguments), out_shape), program.consts


def names_in(program: Any) -> set[str]:
    """Returns the names that policies of rematerialisation can keep values by."""
    _, operations = opened(program)
    names = {each.params["name"] for each in operations.eqns if each.primitive.name == "name"}
    inner = [inner_programs(equation).values() for equation in operations.eqns]
    return names.union(*(names_in(each) for held in inner for some in held for each in some))


def has_own_derivative(program: Any) -> bool:
    """Whether a part of a program has a rule for its derivative that jax does not bring.

    Such rules are functions, and two of them cannot be compared. Those of jax's own functions
    follow from what the functions compute.
    """
    _, operations = opened(program)
    for equation in operations.eqns:
        inner = [each for held in inner_programs(equation).values() for each in held]
        if equation.primitive.name in ("custom_jvp_call", "custom_vjp_call"):
            said = opened(inner[0])[1].debug_info
            if not str(said.func_filename).startswith(os.path.dirname(jax.__file__)):
                return True
        if any(map(has_own_derivative, inner)):
            return True
    return False


def _closed(program: Any) -> Any:
    """A program that gets its constants as its first arguments."""
    inputs = (*program.constvars, *program.invars)
    said = program.debug_info.with_unknown_names()
    return core.ClosedJaxpr(program.replace(constvars=(), invars=inputs, debug_info=said), ())


def as_traced(program: Any, arguments: Any, out_shape: Any) -> Traced:
    """Returns a closed program, whose arguments and results are these trees, with its hashes."""
    reader = _Reader()
    reader.read(program)
    trees = (jax.tree.structure(arguments), jax.tree.structure(out_shape))
    structure, divisors = "\n".join([*map(str, trees), *reader.lines]), str(reader.divisors)
    return Traced(
        program,
        out_shape,
        hash_of(structure),
        hash_of(structure + divisors),
        tuple(reader.numbers),
    )


def hash_of(text: str) -> str:
    """Returns the sha256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def differing(traces: Sequence[Traced]) -> tuple[int, ...]:
    """Returns which numbers of traces of one structure are not the same in all of them."""
    first, *others = [traced.numbers for traced in traces]
    return tuple(
        place
        for place, number in enumerate(first)
        if any(number.tobytes() != numbers[place].tobytes() for numbers in others)
    )


def with_numbers(traced: Traced, places: Sequence[int]) -> Callable:
    """Returns the traced function with some of its numbers as its first argument.

    Args:
      traced: the function.
      places: which numbers, as `differing` gives them.
    """
    arguments = {index_there: index for index, index_there in enumerate(places)}

    def function(numbers: Sequence[Any], *trees: Any) -> Any:
        leaves = jax.tree.leaves(trees)
        values = {index_there: numbers[index] for index_there, index in arguments.items()}
        outputs = _Evaluator(values).run(traced.program, leaves)
        return jax.tree.unflatten(jax.tree.structure(traced.out_shape), outputs)

    return function


class _Reader:
    """Writes a program down without its numbers, and the numbers apart."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.numbers: list[np.ndarray] = []
        self.divisors: list[float] = []

    def read(self, program: Any) -> None:
        names: dict[Any, int] = {}

        def name(variable: Any) -> str:
            place = names.setdefault(variable, len(names))
            return f"{place}:{variable.aval.str_short()}{variable.aval.weak_type:d}"

        consts, operations = opened(program)
        for variable in (*operations.constvars, *operations.invars):
            self.lines.append(name(variable))
        for constant in consts:
            self._add(constant)
        for equation in operations.eqns:
            inputs = []
            for variable in equation.invars:
                if isinstance(variable, core.Literal):
                    inputs.append(f"number:{variable.aval.str_short()}")
                    self._add(variable.val)
                else:
                    inputs.append(name(variable))
            outputs = [name(variable) for variable in equation.outvars]
            primitive, inner = equation.primitive.name, _followed_programs(equation)
            if primitive in ("div", "pow") and isinstance(equation.invars[1], core.Literal):
                self.divisors.append(float(np.asarray(equation.invars[1].val)))
            plain = {k: v for k, v in equation.params.items() if k not in inner}
            self.lines.append(f"{primitive} {inputs} {outputs} {_spell(plain)}")
            for programs in inner.values():
                for each in programs:
                    self.lines.append("(")
                    self.read(each)
                    self.lines.append(")")
        for variable in operations.outvars:
            if isinstance(variable, core.Literal):
                self._add(variable.val)
            else:
                self.lines.append(name(variable))

    def _add(self, value: Any) -> None:
        if jax.dtypes.issubdtype(getattr(value, "dtype", None), jax.dtypes.prng_key):
            raise ValueError("programs: a key is a constant; give the seed as an argument")
        number = np.asarray(value)
        self.lines.append(f"{number.dtype}{number.shape}")
        self.numbers.append(number)


class _Evaluator:
    """Runs a program operation by operation, in the order in which _Reader reads it."""

    def __init__(self, values: dict[int, Any]) -> None:
        self._given = values
        self._places: dict[int, int] = {}  # of each inner program, where its numbers begin
        self._count = 0

    def run(self, program: Any, arguments: Sequence[Any], start: int = 0) -> list[Any]:
        consts, operations = opened(program)
        values: dict[Any, Any] = dict(zip(operations.invars, arguments, strict=True))
        index = start

        def number(value: Any) -> Any:
            nonlocal index
            index += 1
            return self._given.get(index - 1, value)

        values |= dict(zip(operations.constvars, map(number, consts), strict=True))

        def read(variable: Any) -> Any:
            literal = isinstance(variable, core.Literal)
            return number(variable.val) if literal else values[variable]

        for equation in operations.eqns:
            inputs = [read(variable) for variable in equation.invars]
            inner = _followed_programs(equation)
            # A rule for the derivative stays, where no number inside differs.
            if equation.primitive.name == "custom_jvp_call":
                ((rule, *_),) = inner.values()
                count = _count_numbers(rule)
                if not self._given.keys() & set(range(index, index + count)):
                    inner, index = {}, index + count
            if inner:
                runners = []
                for each in (each for programs in inner.values() for each in programs):
                    runners.append(self._runner(each, index))
                    index += _count_numbers(each)
                evaluate = functools.partial(
                    _OPERATIONS[equation.primitive.name], equation, runners
                )
            else:
                evaluate = functools.partial(bind, equation)
            scope = str(equation.source_info.name_stack)  # of profiles
            with jax.named_scope(scope) if scope else contextlib.nullcontext():
                outputs = evaluate(inputs)
            values |= dict(zip(equation.outvars, outputs, strict=True))
        return [read(variable) for variable in operations.outvars]

    def _runner(self, program: Any, start: int) -> Callable:
        return lambda *arguments: self.run(program, arguments, start)


def bind(equation: Any, inputs: Sequence[Any]) -> list:
    """Returns the results of an operation on other inputs."""
    params = equation.primitive.get_bind_params(equation.params)
    outputs = equation.primitive.bind(*inputs, **params)
    return outputs if equation.primitive.multiple_results else [outputs]


def _call(equation: Any, runners: list, inputs: list) -> list:
    (function,) = runners
    return function(*inputs)


def _scan(equation: Any, runners: list, inputs: list) -> list:
    """A loop of known length, which reads constants, a carry, and an element of each array."""
    (body,), params = runners, equation.params
    if "ft_in" in params:  # since jax 0.11
        num_consts, num_carry, _ = map(len, params["ft_in"].unpack())
    else:
        num_consts, num_carry = params["num_consts"], params["num_carry"]
    first, last = num_consts, num_consts + num_carry

    def step(carry: list, elements: list) -> tuple[list, list]:
        outputs = body(*inputs[:first], *carry, *elements)
        return outputs[: len(carry)], outputs[len(carry) :]

    options = {name: params[name] for name in ("length", "reverse", "unroll")}
    carry, stacked = jax.lax.scan(step, inputs[first:last], inputs[last:], **options)
    return [*carry, *stacked]


def _remat(equation: Any, runners: list, inputs: list) -> list:
    """What is computed again, still marked as a part of a derivative where it is one."""
    program = jax.make_jaxpr(runners[0])(*inputs)
    changed = {**equation.params, "jaxpr": _closed(program.jaxpr).jaxpr}
    return equation.primitive.bind(*program.consts, *inputs, **changed)


def _cond(equation: Any, runners: list, inputs: list) -> list:
    index, *operands = inputs
    platforms = equation.params.get("branches_platforms")
    if platforms is None:
        return jax.lax.switch(index, runners, *operands)
    # A branch is compiled for its platforms alone, and may be no program for others.
    ways = dict(zip(platforms, runners, strict=True))
    default = ways.pop(None)
    by_name = {name: run for names, run in ways.items() for name in names}
    return jax.lax.platform_dependent(*operands, **by_name, default=default)


def _while(equation: Any, runners: list, inputs: list) -> list:
    params = equation.params
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    goes_on, body = runners
    for_cond, for_body = inputs[:num_cond], inputs[num_cond : num_cond + num_body]
    return jax.lax.while_loop(
        lambda carry: goes_on(*for_cond, *carry)[0],
        lambda carry: body(*for_body, *carry),
        inputs[num_cond + num_body :],
    )


# Operations whose inner programs may hold numbers that differ; of any other with inner programs
# (the addition in a scatter) numbers are a part of the structure.
_OPERATIONS: dict[str, Callable] = {
    "jit": _call,
    "closed_call": _call,
    "custom_jvp_call": _call,
    "cond": _cond,
    "while": _while,
    "scan": _scan,
    "remat2": _remat,
}


def inner_programs(equation: Any) -> dict[str, list]:
    """Returns the inner programs of an operation, by the parameter that holds them."""
    kinds, held = (core.ClosedJaxpr, core.Jaxpr), {}
    for name, value in equation.params.items():
        listed = value if isinstance(value, (tuple, list)) else (value,)
        held[name] = [each for each in listed if isinstance(each, kinds)]
    return {name: programs for name, programs in held.items() if programs}


def opened(program: Any) -> tuple[Sequence[Any], Any]:
    """The constants and the operations of a program, closed or not."""
    if isinstance(program, core.ClosedJaxpr):
        return program.consts, program.jaxpr
    return (), program


def _followed_programs(equation: Any) -> dict[str, list]:
    """The inner programs of an operation that may hold numbers, by the parameter's name."""
    if equation.primitive.name not in _OPERATIONS:
        return {}
    return dict(sorted(inner_programs(equation).items(), reverse=True))


def _count_numbers(program: Any) -> int:
    reader = _Reader()
    reader.read(program)
    return len(reader.numbers)


def _spell(params: dict) -> str:
    """The parameters of an operation; functions are named, since their address says nothing."""
    spelled = {
        name: getattr(value, "__qualname__", value) if callable(value) else value
        for name, value in sorted(params.items())
    }
    return str(spelled)


def stacked(trees: Sequence[Any]) -> Any:
    """Returns trees of arrays as one tree with a leading axis of members."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def unstacked(tree: Any, count: int) -> list[Any]:
    """Returns the members of a stacked tree."""
    return [jax.tree.map(lambda leaf, i=index: leaf[i], tree) for index in range(count)]

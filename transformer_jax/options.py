"""Types of options, and the marks that annotate them.

A field of a config's section, or a field or argument of a variant, is an option if its type is
defined here, is `Annotated` with constraints of its own, or is a `Literal`:

    max_wavelength: Positive = 10_000.0
    scaling: Literal["none", "linear"] = "none"
"""

import dataclasses
import functools
import importlib
import math
import operator
import re
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt, Predicate

from transformer_jax.errors import InvalidInput, how_to_install

FINITE = Predicate(math.isfinite)


@dataclasses.dataclass(frozen=True)
class Form:
    """Description of allowed values, for types that bounds alone cannot describe.

    Attributes:
      words: Allowed values, as text.
      example: One allowed value, as written on the command line.
      names: Allowed names for completion, if they can be listed.
    """

    words: str
    example: str
    names: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Variant:
    """Mark of an option whose value names an entry of a table, or user-defined code MODULE:NAME.

    Attributes:
      table: Location of the table: "module:NAME" within this package.
      section: Section of a config that holds the options of the chosen entry; "" if there is none.
    """

    table: str
    section: str = ""

    def entries(self) -> Mapping[str, Any]:
        """Returns the variants by name: classes, functions, or "module:NAME" (imported lazily)."""
        return imported(f"transformer_jax.{self.table}")


@dataclasses.dataclass(frozen=True)
class UserDefined:
    """Mark of an option whose value may also be user-defined code, MODULE:NAME."""


@dataclasses.dataclass(frozen=True)
class Given:
    """Mark of a field that a model sets, so that it is no option of a variant."""


@dataclasses.dataclass(frozen=True)
class Initial:
    """Mark of an option that affects only the initial values of parameters."""


@dataclasses.dataclass(frozen=True)
class Traced:
    """Mark of a number that the compiled training step takes as an argument.

    Runs that differ only in such numbers share one program; see training/prepared.py.
    """


def imported(place: str) -> Any:
    """Returns the object at "module:NAME"; raises InvalidInput if a package is not installed."""
    module, _, name = place.partition(":")
    try:
        return functools.reduce(getattr, name.split("."), importlib.import_module(module))
    except ModuleNotFoundError as error:
        install = how_to_install("train")
        raise InvalidInput(f"this needs the package {error.name}: {install}") from error


def entry_of(table: Mapping[str, Any], name: str) -> Any:
    """Returns an entry of a table of variants, imported if the table holds "module:NAME"."""
    entry = table[name]
    return imported(entry) if isinstance(entry, str) else entry


Positive = Annotated[float, Gt(0), FINITE]
NonNegative = Annotated[float, Ge(0), FINITE]
AboveOne = Annotated[float, Gt(1), FINITE]
Number = Annotated[float, FINITE]
Share = Annotated[float, Ge(0), Lt(1)]
Fraction = Annotated[float, Ge(0), Le(1)]
OpenShare = Annotated[float, Gt(0), Lt(1)]
PositiveShare = Annotated[float, Gt(0), Le(1)]
Count = Annotated[int, Ge(1)]
Natural = Annotated[int, Ge(0)]
Switch = Annotated[bool, Form("True or False", "True", ("True", "False"))]
Text = Annotated[str, Predicate(bool), Form("a non-empty string", "shakespeare")]
GivenCount = Annotated[int, Ge(1), Given()]
GivenNatural = Annotated[int, Ge(0), Given()]
GivenShare = Annotated[float, Ge(0), Lt(1), Given()]
InitialSize = Annotated[float, Gt(0), FINITE, Initial()]
InitialNumber = Annotated[float, FINITE, Initial()]
TracedPositive = Annotated[float, Gt(0), FINITE, Traced()]
TracedNonNegative = Annotated[float, Ge(0), FINITE, Traced()]
TracedShare = Annotated[float, Ge(0), Lt(1), Traced()]


class FrozenOptions(dict):
    """A hashable mapping of options."""

    def __hash__(self) -> int:
        """Returns a hash of the names and values."""
        return hash(frozenset(self.items()))

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> "FrozenOptions":
        """Returns a mapping as frozen options; inner mappings are frozen, lists become tuples."""
        made = {k: cls.of(v) if isinstance(v, Mapping) else v for k, v in options.items()}
        return cls({k: tuple(v) if isinstance(v, list) else v for k, v in made.items()})


@dataclasses.dataclass(frozen=True)
class SameAs:
    """A default that is the value of a different option, named by its full key."""

    key: str


def allows(kind: Any, value: Any) -> bool:
    """Returns whether a value has a type as annotated, within its constraints."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        is_code = callable(value) or dataclasses.is_dataclass(value)
        if is_code and any(isinstance(mark, Variant) for mark in parts):
            return True  # in place of a name
        is_of_type = allows(parts[0], value)
        return is_of_type and (value is None or all(_holds(m, value) for m in parts[1:]))
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if origin in (typing.Union, types.UnionType):
        return any(allows(part, value) for part in parts)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        kinds = parts[:1] * len(value) if parts[1:] == (...,) else parts
        return len(value) == len(kinds) and all(map(allows, kinds, value))
    if kind in (int, float):  # a bool is an int
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return kind is Any or isinstance(value, origin or kind)


_TESTS = {Ge: operator.ge, Gt: operator.gt, Le: operator.le, Lt: operator.lt}


def _holds(mark: Any, value: Any) -> bool:
    """Returns whether a value is within the constraint that annotates its type, if it is one."""
    try:
        if isinstance(mark, Predicate):
            return bool(mark.func(value))
        return type(mark) not in _TESTS or _TESTS[type(mark)](value, *dataclasses.astuple(mark))
    except (ValueError, TypeError, OverflowError):
        return False


def check_values(owner: Any, values: Mapping[str, Any]) -> None:
    """Raises ValueError, naming the option, if a typed field of `owner` does not allow its value.

    Arrays of jax are not checked, as they may be traced.
    """
    for name, kind in kinds_of(owner).items():
        value = values.get(name)
        if name not in values or hasattr(value, "aval"):
            continue
        if not allows(kind, value.item() if hasattr(value, "item") else value):
            option = imported("transformer_jax.declarations:Option")(kind, None)
            raise ValueError(f"{name}: expected {option.allowed}, got {value!r}")


@functools.cache
def kinds_of(owner: Any) -> dict[str, Any]:
    """Returns, by name, the annotated types of the fields or arguments of `owner`."""
    hints = typing.get_type_hints(owner, include_extras=True)
    return {name: kind for name, kind in hints.items() if _is_annotated(kind)}


def _is_annotated(kind: Any) -> bool:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    inside = (tuple, typing.Union, types.UnionType)
    return origin in (Annotated, Literal) or (origin in inside and _is_annotated(parts[0]))


def is_user_defined(value: Any) -> bool:
    """Returns whether a value has the form MODULE:NAME of user-defined code."""
    pattern = r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*"
    return isinstance(value, str) and re.fullmatch(pattern, value) is not None


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite number and not a bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def nearest_divisor(number: int, target: int) -> int:
    """Returns the divisor of a number that is nearest to the target."""
    small = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    divisors = sorted({*small, *(number // d for d in small)})
    return min(divisors, key=lambda divisor: abs(divisor - target))

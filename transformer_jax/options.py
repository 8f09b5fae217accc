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
import re
from collections.abc import Mapping
from typing import Annotated, Any

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

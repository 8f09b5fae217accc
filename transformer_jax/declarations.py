"""Options declared by typed fields of a section or a variant: their checks and descriptions.

`--help`, docs/options.md and error messages use the descriptions.
"""

import ast
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from typing_extensions import Doc

from transformer_jax.errors import suggest
from transformer_jax.options import (
    FINITE,
    Form,
    Given,
    SameAs,
    Variant,
    allows,
    entry_of,
    is_user_defined,
    kinds_of,
)

NO_VALUE = ("None", "none", "null")
SWITCHES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclasses.dataclass(frozen=True)
class Option:
    """An option of a config: its type, default and description.

    Attributes:
      kind: Type, as annotated.
      default: Value if none is stated; a SameAs if the value of another option is the default.
      meaning: Description, with the unit if there is one.
    """

    kind: Any
    default: Any
    meaning: str = ""

    @functools.cached_property
    def _parts(self) -> tuple[Any, tuple[Any, ...], bool]:
        return _unwrapped(self.kind)

    def mark(self, *kinds: type) -> Any:
        """Returns the first mark of one of these kinds, e.g. Initial; None if there is none."""
        return next((mark for mark in self._parts[1] if isinstance(mark, kinds)), None)

    @property
    def variant(self) -> Variant | None:
        """Mark that names the table of allowed entries, or None."""
        return self.mark(Variant)

    @property
    def names(self) -> tuple[str, ...]:
        """Allowed names, or () if they cannot be listed."""
        if self.variant is not None:
            return tuple(self.variant.entries())
        form = self.mark(Form)
        return _literals(self._parts[0]) or (form.names if form else ())

    @property
    def allowed(self) -> str:
        """Description of the allowed values."""
        base, metadata, optional = self._parts
        form = self.mark(Form)
        if form and self.variant is None:
            words = form.words
        elif self.names:
            several = typing.get_origin(base) is tuple
            words = f"{'some' if several else 'one'} of: {', '.join(self.names)}"
            words += ", or your own MODULE:NAME" * (self.variant is not None)
        else:
            words = _within(base, metadata)
        return f"{words}, or None" if optional else words

    @property
    def example(self) -> str:
        """An allowed value, as written on the command line."""
        if self.default not in (None, (), "") and not isinstance(self.default, SameAs):
            return as_text(self.default)
        if form := self.mark(Form):
            return form.example
        return self.names[0] if self.names else _number_within(*self._parts[:2])

    def accepts(self, value: Any) -> bool:
        """Returns whether a value is allowed."""
        if not allows(self.kind, value):
            return False
        if self.variant is None or value is None:
            return True
        values = value if isinstance(value, tuple) else (value,)
        known = all(is_user_defined(one) or one in self.variant.entries() for one in values)
        return known and len(set(values)) == len(values)

    def parse(self, text: str) -> Any:
        """Parses a command-line string into a value of this type.

        Raises:
          ValueError: The string cannot be parsed as this type.
        """
        base, _, optional = self._parts
        if optional and text in NO_VALUE:
            return None
        if base is bool:
            if text.lower() not in SWITCHES:
                raise ValueError(text)
            return SWITCHES[text.lower()]
        if base is int:
            number = float(text.replace("_", ""))  # accepts 1e3 too
            if number != int(number):
                raise ValueError(text)
            return int(text) if text.lstrip("+-").isdigit() else int(number)
        if base is float:
            return float(text.replace("_", ""))
        return _parsed_tuple(text) if typing.get_origin(base) is tuple else text


def _unwrapped(kind: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Splits a type into its base type, its annotations, and whether None is allowed."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [part for part in parts if part is not types.NoneType]
        return (*_unwrapped(inner[0])[:2], len(inner) < len(parts))
    if origin is Annotated:
        base, marks, optional = _unwrapped(parts[0])
        return base, (*marks, *parts[1:]), optional
    return kind, (), False


def _literals(base: Any) -> tuple[str, ...]:
    """Returns the names in a Literal, or in a tuple of Literals; () for other types."""
    if typing.get_origin(base) is tuple:
        base = typing.get_args(base)[0]
    return typing.get_args(base) if typing.get_origin(base) is Literal else ()


def _bounds(metadata: tuple[Any, ...]) -> tuple[Any, Any]:
    """Returns the lower and the upper bound, each (number, whether it is allowed), or None."""
    low = next(((m.ge, True) for m in metadata if isinstance(m, Ge)), None)
    high = next(((m.le, True) for m in metadata if isinstance(m, Le)), None)
    low = low or next(((m.gt, False) for m in metadata if isinstance(m, Gt)), None)
    return low, high or next(((m.lt, False) for m in metadata if isinstance(m, Lt)), None)


def _within(base: Any, metadata: tuple[Any, ...]) -> str:
    """Describes the values that a type and its bounds allow, e.g. "a number > 0"."""
    low, high = _bounds(metadata)
    noun = {int: "an integer", float: "a number", str: "a string"}.get(base, str(base))
    if low and high:
        return f"{noun} in {'(['[low[1]]}{low[0]}, {high[0]}{')]'[high[1]]}"
    if low:
        return f"{noun} {'>=' if low[1] else '>'} {low[0]}"
    return f"a finite {noun.partition(' ')[2]}" if FINITE in metadata else noun


def _number_within(base: Any, metadata: tuple[Any, ...]) -> str:
    low, high = _bounds(metadata)
    if base is int:
        return str(low[0] if low else 1)
    if low and high:
        return f"{(low[0] + high[0]) / 2:g}"
    return f"{low[0] + 0.1:g}" if low else "0.5"


def _parsed_tuple(text: str) -> tuple:
    """Parses `(a, b, c)` or `a,b,c` into a tuple."""
    try:
        value = ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError):
        if text.count("(") != text.count(")"):
            raise ValueError(f"{text}: brackets do not match") from None
        value = [part.strip() for part in text.strip("()").split(",")]
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def as_text(value: Any) -> str:
    """Returns a value as written on the command line."""
    return (",".join(map(str, value)) or "()") if isinstance(value, tuple) else str(value)


def split_values(text: str) -> list[str]:
    """Returns the parts of VALUE,VALUE, split at commas outside brackets."""
    return re.split(r",(?![^(]*\))", text)


def options_of_section(section: type) -> dict[str, Option]:
    """Returns the options that a section of a config declares, by name."""
    kinds, meanings = kinds_of(section), _meanings(section)
    # `python -OO` drops docstrings, and with them the meanings.
    return {n: Option(kinds[n], getattr(section, n), meanings.get(n, "")) for n in kinds}


def declared_options(variant: Callable[..., Any]) -> dict[str, Option]:
    """Returns the options of a variant (a class or function) by name.

    Raises:
      ValueError: An option has no default.
    """
    parameters, meanings = inspect.signature(variant).parameters, _meanings(variant)
    kinds = {name: kind for name, kind in kinds_of(variant).items() if name in parameters}
    kinds = {name: kind for name, kind in kinds.items() if not Option(kind, None).mark(Given)}
    for name in kinds:
        if parameters[name].default is inspect.Parameter.empty:
            raise ValueError(f"{name}: an option needs a default")
    options = {name: Option(kind, parameters[name].default) for name, kind in kinds.items()}
    for name, option in options.items():
        shared = option.mark(Doc)  # description of a type that several variants share
        meaning = shared.documentation if shared else meanings.get(name, "")
        options[name] = dataclasses.replace(option, meaning=meaning)
    return options


def refuse_unknown(section: str, options: Iterable[str], table: Mapping[str, Any]) -> None:
    """Raises ValueError if no variant in a table has one of the options."""
    entries = [entry_of(table, name) for name, entry in table.items() if entry is not None]
    names = sorted({option for entry in entries for option in declared_options(entry)})
    for name in options:
        if name not in names:
            raise ValueError(f"{section}: {name}: no such option{suggest(name, names)}")


def _meanings(owner: Any) -> dict[str, str]:
    """Returns the descriptions in the docstrings of an object and its base classes, by name.

    Fields are described under "Attributes:", arguments under "Args:".
    """
    described = {}
    for part in reversed(getattr(owner, "__mro__", (owner,))):
        text = inspect.cleandoc(part.__doc__ or "")
        if block := re.search(r"^(?:Attributes|Args):\n((?: +.*\n?)+)", text, re.MULTILINE):
            entries = re.findall(r"^( +)(\w+): (.*(?:\n\1 +.*)*)", block[1], re.MULTILINE)
            described |= {name: " ".join(words.split()) for _, name, words in entries}
    return described

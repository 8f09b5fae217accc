"""Options declared by typed fields of a section or a variant, with their checks and texts.

pydantic checks values against the types. `--help`, docs/options.md and error messages use them.
"""

import ast
import dataclasses
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt
from typing_extensions import Doc

from transformer_jax.options import (
    FINITE,
    Form,
    Initial,
    SameAs,
    Traced,
    UserDefined,
    Variant,
    is_user_defined,
)


@dataclasses.dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
      key: Full key in a config.
      kind: Type, as annotated.
      default: Value if none is stated; a SameAs if it defaults to another option's value.
      meaning: Description, with the unit.
    """

    key: str
    kind: Any
    default: Any
    meaning: str = ""

    @functools.cached_property
    def _parts(self) -> tuple[Any, tuple[Any, ...], bool]:
        return _unwrapped(self.kind)

    @property
    def variant(self) -> Variant | None:
        """Table that the value names an entry of, or None."""
        return next((m for m in self._parts[1] if isinstance(m, Variant)), None)

    @property
    def may_be_user_defined(self) -> bool:
        """Returns whether MODULE:NAME is allowed."""
        return any(isinstance(m, Variant | UserDefined) for m in self._parts[1])

    @property
    def is_initial(self) -> bool:
        """Returns whether it decides only where parameters start."""
        return any(isinstance(m, Initial) for m in self._parts[1])

    @property
    def is_traced(self) -> bool:
        """Returns whether runs that differ only in it share a compiled training step."""
        return any(isinstance(m, Traced) for m in self._parts[1])

    @property
    def names(self) -> tuple[str, ...]:
        """Allowed names, or () if any value of the type is allowed."""
        base, metadata, _ = self._parts
        if self.variant is not None:
            return tuple(self.variant.entries())
        if literals := _literals(base):
            return literals
        return next((m.names for m in metadata if isinstance(m, Form)), ())

    @property
    def allowed(self) -> str:
        """Allowed values in words."""
        base, metadata, optional = self._parts
        if self.variant is not None:
            several = typing.get_origin(base) is tuple
            words = f"{'some' if several else 'one'} of: {', '.join(self.names)}"
            words += ", or your own MODULE:NAME"
        else:
            words = _words(base, metadata)
        return f"{words}, or None" if optional else words

    @property
    def example(self) -> str:
        """An allowed value, as written on the command line."""
        if self.default not in (None, (), "") and not isinstance(self.default, SameAs):
            return as_text(self.default)
        base, metadata, _ = self._parts
        form = [m for m in metadata if isinstance(m, Form)]
        return form[0].example if form else (self.names or (_number_within(base, metadata),))[0]

    @functools.cached_property
    def _adapter(self) -> Any:
        from pydantic import ConfigDict, TypeAdapter

        base, metadata, optional = self._parts
        kind: Any = Annotated[base, *metadata] if metadata else base
        kind = kind | None if optional else kind
        return TypeAdapter(kind, config=ConfigDict(strict=True))

    def accepts(self, value: Any) -> bool:
        """Returns whether a value is allowed."""
        from pydantic import ValidationError

        try:
            self._adapter.validate_python(value)
        except ValidationError:
            return False
        if self.variant is None or value is None:
            return True
        values = value if isinstance(value, tuple) else (value,)
        known = all(is_user_defined(one) or one in self.variant.entries() for one in values)
        return known and len(set(values)) == len(values)

    def parse(self, text: str) -> Any:
        """Returns the value of a text from the command line.

        Raises:
          ValueError: The text is not such a value.
        """
        base, _, optional = self._parts
        if optional and text in ("None", "none", "null"):
            return None
        if base is bool:
            words = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
            if text.lower() not in words:
                raise ValueError(text)
            return words[text.lower()]
        if base is int:
            number = float(text.replace("_", ""))  # 1e3 is what people write
            if number != int(number):
                raise ValueError(text)
            return int(text) if text.lstrip("+-").isdigit() else int(number)
        if base is float:
            return float(text.replace("_", ""))
        return _parsed_tuple(text) if typing.get_origin(base) is tuple else text


def _unwrapped(kind: Any) -> tuple[Any, tuple[Any, ...], bool]:
    """Splits a type into its base type, its annotations, and whether None is allowed."""
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        inner = [part for part in typing.get_args(kind) if part is not types.NoneType]
        base, metadata, _ = _unwrapped(inner[0])
        return base, metadata, len(inner) < len(typing.get_args(kind))
    if origin is Annotated:
        inner, *metadata = typing.get_args(kind)
        base, more, optional = _unwrapped(inner)
        return base, (*more, *metadata), optional
    return kind, (), False


def _literals(base: Any) -> tuple[str, ...]:
    """Returns the names of a Literal, or of a tuple of them."""
    if typing.get_origin(base) is tuple:
        base = typing.get_args(base)[0]
    return typing.get_args(base) if typing.get_origin(base) is Literal else ()


def _words(base: Any, metadata: tuple[Any, ...]) -> str:
    if form := [m for m in metadata if isinstance(m, Form)]:
        return form[0].words
    if names := _literals(base):
        return f"{'some' if typing.get_origin(base) is tuple else 'one'} of: {', '.join(names)}"
    low, high = _bounds(metadata)
    noun = {int: "an integer", float: "a number", str: "a string"}.get(base, str(base))
    if low and high:
        left, right = "(["[isinstance(low, Ge)], ")]"[isinstance(high, Le)]
        return f"{noun} in {left}{_edge(low)}, {_edge(high)}{right}"
    if low:
        return f"{noun} {'>=' if isinstance(low, Ge) else '>'} {_edge(low)}"
    return f"a finite {noun.partition(' ')[2]}" if FINITE in metadata else noun


def _bounds(metadata: tuple[Any, ...]) -> tuple[Any, Any]:
    low = next((m for m in metadata if isinstance(m, Ge | Gt)), None)
    return low, next((m for m in metadata if isinstance(m, Le | Lt)), None)


def _edge(bound: Any) -> Any:
    return getattr(bound, type(bound).__name__.lower())


def _number_within(base: Any, metadata: tuple[Any, ...]) -> str:
    low, high = _bounds(metadata)
    if base is int:
        return str(_edge(low) if low else 1)
    if low and high:
        return f"{(_edge(low) + _edge(high)) / 2:g}"
    return f"{_edge(low) + 0.1:g}" if low else "0.5"


def _parsed_tuple(text: str) -> tuple:
    """Reads (a, b, c) or a,b,c."""
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
    """Returns the values of VALUE,VALUE, split at commas outside of brackets."""
    return re.split(r",(?![^(]*\))", text)


def is_option(kind: Any) -> bool:
    """Returns whether the type of a field makes it an option."""
    base, metadata, _ = _unwrapped(kind)
    return bool(metadata or _literals(base))


def options_of_section(section: type, prefix: str) -> dict[str, Option]:
    """Returns the options that a section of a config declares: full key -> option."""
    hints = typing.get_type_hints(section, include_extras=True)
    return {
        f"{prefix}{name}": Option(f"{prefix}{name}", kind, getattr(section, name), _doc(kind))
        for name, kind in hints.items()
        if is_option(kind)
    }


def declared_options(variant: Callable[..., Any]) -> dict[str, Option]:
    """Returns the options of a variant, a class or function: name -> option.

    Raises:
      ValueError: An option has no default.
    """
    hints = typing.get_type_hints(variant, include_extras=True)
    parameters = inspect.signature(variant).parameters
    meanings, options = described_fields(variant), {}
    for name, kind in hints.items():
        if name not in parameters or not is_option(kind):
            continue
        default = parameters[name].default
        if default is inspect.Parameter.empty:
            raise ValueError(f"{name}: an option needs a default")
        options[name] = Option(name, kind, default, _doc(kind) or meanings.get(name, ""))
    return options


def _doc(kind: Any) -> str:
    return next((m.documentation for m in _unwrapped(kind)[1] if isinstance(m, Doc)), "")


def described_fields(variant: Any) -> dict[str, str]:
    """Returns the descriptions of fields ("Attributes:") or arguments ("Args:") in a docstring."""
    described, name, indent = {}, "", 0
    lines = (inspect.getdoc(variant) or "").splitlines()
    begins = {line.strip(): number for number, line in enumerate(lines)}
    for line in lines[begins.get("Attributes:", begins.get("Args:", len(lines))) + 1 :]:
        entry = re.match(r"( +)(\w+): (.*)", line)
        if entry and (not indent or len(entry[1]) == indent):
            indent, name = len(entry[1]), entry[2]
            described[name] = entry[3]
        elif line.startswith(" " * (indent + 1)) and name:
            described[name] += " " + line.strip()
        else:
            break
    return described

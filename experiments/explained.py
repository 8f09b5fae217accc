"""Descriptions of all options, as text for the command line and as a page for the docs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from transformer_jax.config import OPTIONS, SECTIONS
from transformer_jax.declarations import Option, as_text
from transformer_jax.options import SameAs, Traced
from transformer_jax.resolve import all_options, options_read

_HEAD = """# Options

Every option of a config: its default, its allowed values, and its meaning. This page is written by
`python -m experiments.options --out=docs/options.md` from the typed fields in
`transformer_jax/config.py` and of the variants. On the command line an option is
`--config.KEY=VALUE`. Options of variants name in brackets the variants that have them; the
[catalogue](catalogue.md) describes these. Your own classes (`MODULE:NAME`) have their options in
the same sections. *Traced* options are arguments of the compiled training step: runs that differ in
nothing else but their seeds share one program.
"""


def rows(flat: Mapping[str, Any] = MappingProxyType({})) -> list[tuple[str, Option, str]]:
    """Returns (key, option, names of variants that have it) for every option, by section.

    The options of user-defined components that the flat config chooses are included.
    """
    shared: dict[str, dict[Any, tuple[Option, list[str]]]] = {}
    for key, owners in all_options().items():
        for name, option in owners:
            kind = (option.allowed, repr(_default(option)), option.meaning)
            shared.setdefault(key, {}).setdefault(kind, (option, []))[1].append(name)
    for key, option in options_read(flat).items() if flat else ():
        shared.setdefault(key, {"": (option, [])})
    found = []
    for prefix in SECTIONS:
        found += [(key, option, "") for key, option in OPTIONS.items() if _prefix(key) == prefix]
        for key in (key for key in shared if _prefix(key) == prefix):
            for option, names in shared[key].values():  # two choices can share a family
                found.append((key, option, ", ".join(dict.fromkeys(names))))
    return found


def as_lines(name: str = "", flat: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Returns descriptions of options as lines for a terminal.

    Args:
      name: Name of an option or a section; "" for all.
      flat: A flat config, whose user-defined components have options too.
    """
    lines = []
    for key, option, owners in rows(flat):
        if not name or key == name or key.startswith(f"{name}."):
            lines += [f"  --config.{key}={_default(option)}", f"      {_sentence(option, owners)}"]
    return "\n".join(lines)


def as_markdown() -> str:
    """Returns the page of all options, with a table per section."""
    parts = [_HEAD]
    for prefix, section in SECTIONS.items():
        title, text = prefix.removesuffix(".") or "of a run", says(section)
        parts.append(
            f"\n## {title}\n\n{text}\n\n| option | default | allowed | meaning |\n|---|---|---|---|"
        )
        for key, option, owners in rows():
            if _prefix(key) == prefix:
                meaning = _meaning(option, owners)
                cells = (f"`{key}`", f"`{_default(option)}`", option.allowed, meaning)
                parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(parts) + "\n"


def says(section: type) -> str:
    """Returns the description of a section of options in one line, from its docstring."""
    return " ".join((section.__doc__ or "").partition("Attributes:")[0].split())


def _prefix(key: str) -> str:
    first, dot, _ = key.partition(".")
    return first + dot if dot else ""


def _sentence(option: Option, owners: str) -> str:
    return f"{_meaning(option, owners).rstrip('.')}; {option.allowed}."


def _meaning(option: Option, owners: str) -> str:
    meaning = option.meaning[:1].upper() + option.meaning[1:]
    meaning += " Traced." if option.mark(Traced) else ""
    return f"({owners}) {meaning}" if owners else meaning


def _default(option: Option) -> str:
    if isinstance(option.default, SameAs):
        return option.default.key
    return as_text(option.default)

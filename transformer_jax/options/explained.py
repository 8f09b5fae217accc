"""Every option in words: as text for the command line, as a page for the docs."""

from typing import Any

from transformer_jax.options import SameAs
from transformer_jax.options.schema import OPTIONS
from transformer_jax.options.tables import SECTIONS, Option, says_of_section

_HEAD = """# Options

Every option of a config: its default, what it may be, and what it means; written by
`python -m experiments.options --out=docs/options.md` from where the options are declared
(`transformer_jax/options/sections.py` and the components). On the command line an option is
`--config.KEY=VALUE`. What the rows of a table are is said in [Components](catalogue.md); where a
class of your own may be named, its options stand under `own`.
"""


def as_text(name: str = "") -> str:
    """Returns options as lines for a terminal.

    Args:
      name: of an option, or a section; all of them if empty.
    """
    lines = []
    for key, option in OPTIONS.items():
        if not name or key == name or (name not in OPTIONS and key.startswith(f"{name}.")):
            lines += [f"  --config.{key}={_default(option)}", f"      {sentence(option)}"]
    return "\n".join(lines)


def as_markdown() -> str:
    """Returns the page of all options, a table for each section."""
    parts = [_HEAD]
    for prefix in SECTIONS:
        keys = [key for key in OPTIONS if _section_of(key) == prefix]
        parts.append(
            f"\n## {prefix.removesuffix('.') or 'of a run'}\n\n{says_of_section(prefix)}\n"
        )
        parts.append("| option | default | allowed | meaning |\n|---|---|---|---|")
        for key in keys:
            option = OPTIONS[key]
            cells = (f"`{key}`", f"`{_default(option)}`", option.rule.allowed, _begun(option))
            parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(parts) + "\n"


def sentence(option: Option) -> str:
    """Returns what an option means and may be, in one line."""
    meaning = _begun(option).rstrip(".")
    return f"{meaning}; {option.rule.allowed}." if meaning else f"{option.rule.allowed}."


def _begun(option: Option) -> str:
    """The meaning with a capital, as a sentence begins."""
    return option.meaning[:1].upper() + option.meaning[1:]


def _section_of(key: str) -> str:
    first, dot, _ = key.partition(".")
    return first + dot if dot else ""


def _default(option: Option) -> Any:
    value = option.default
    if isinstance(value, SameAs):
        return value.key
    return (",".join(map(str, value)) or "()") if isinstance(value, tuple) else value

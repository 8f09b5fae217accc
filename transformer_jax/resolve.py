"""Checks a flattened config: full key -> value.

A flat config states options. `completed` adds the defaults of options that the chosen variants
have; `stated` is the reverse.
"""

import functools
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from transformer_jax.config import DEFAULTS, OPTIONS, VARIANT_SECTIONS
from transformer_jax.constraints import problems_between
from transformer_jax.declarations import Option, as_text, declared_options
from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.model_options import LAYER_FIELDS
from transformer_jax.options import SameAs, entry_of, is_user_defined
from transformer_jax.own import HOOK_ARGUMENTS, check_arguments, find, load, names_own

_TYPES = "model.layer_types."
_ANYTHING = Option("", Any, None)  # an option of user-defined code that is not imported

# ---------------------------------------------------------------- types of layers


def letter_of(key: str) -> str | None:
    """Returns the letter of the layer type that a key belongs to, or None."""
    letter, dot, _ = key.removeprefix(_TYPES).partition(".")
    return letter if key.startswith(_TYPES) and dot and len(letter) == 1 else None


def plain_key(key: str) -> str:
    """Returns the model option that a key of a layer type stands for.

    Any other key is returned unchanged, also one that no type may have.
    """
    rest = key.removeprefix(f"{_TYPES}{letter_of(key)}.")
    may_be = letter_of(key) is not None and rest.partition(".")[0] in LAYER_FIELDS
    return f"model.{rest}" if may_be else key


def letters_of(flat: Mapping[str, Any]) -> list[str]:
    """Returns the letters of the layer types in a flat config."""
    return sorted({letter for key in flat if (letter := letter_of(key)) is not None})


def of_type(flat: Mapping[str, Any], letter: str | None) -> dict[str, Any]:
    """Returns the flat config of a model whose blocks all have one layer type."""
    own = {plain_key(key): value for key, value in flat.items() if letter_of(key) == letter}
    return {**flat, **own} if letter is not None else dict(flat)


# ---------------------------------------------------------------- options of variants


def variant_options(key: str, choice: Any) -> dict[str, Option] | None:
    """Returns the options of a variant by their full keys.

    Args:
      key: The option that chooses it, "model.norm" for example.
      choice: Its value.
    Returns:
      None for user-defined code that is not imported, whose options are unknown.
    """
    if not is_user_defined(choice):
        return _table_options(key, choice) if choice in _entries(key) else {}
    variant = find(choice)
    return None if variant is None else _under(VARIANT_SECTIONS[key], declared_options(variant))


def _entries(key: str) -> Mapping[str, Any]:
    variant = OPTIONS[key].variant
    return {} if variant is None else variant.entries()


@functools.cache
def _table_options(key: str, name: str) -> dict[str, Option]:
    entry = entry_of(_entries(key), name) if _entries(key)[name] is not None else None
    return {} if entry is None else _under(VARIANT_SECTIONS[key], declared_options(entry))


def _under(section: str, options: Mapping[str, Option]) -> dict[str, Option]:
    """Returns options by full keys, except those that every config has in the section."""
    keyed = {f"{section}.{name}": option for name, option in options.items()}
    return {key: option for key, option in keyed.items() if key not in OPTIONS}


def _value(key: str, flat: Mapping[str, Any]) -> Any:
    return flat.get(key, DEFAULTS[key])


def _choices(key: str, flat: Mapping[str, Any]) -> Iterator[Any]:
    """Returns the variants that a config uses: that of a key, and the one to match in size."""
    yield _value(key, flat)
    if key == "model.architecture" and _value("model.match_parameters", flat):
        yield _value("model.match_parameters", flat)


def options_read(flat: Mapping[str, Any]) -> dict[str, Option]:
    """Returns the options of the variants that a config chooses, by full key."""
    found: dict[str, Option] = {}
    for key in VARIANT_SECTIONS:
        for choice in _choices(key, flat):
            found = (variant_options(key, choice) or {}) | found
    return found


def all_options() -> dict[str, list[tuple[str, Option]]]:
    """Returns all options of all variants: full key -> (name of the variant, option) of each."""
    found: dict[str, list[tuple[str, Option]]] = {}
    for key in VARIANT_SECTIONS:
        for name in _entries(key):
            for full_key, option in _table_options(key, name).items():
                found.setdefault(full_key, []).append((name, option))
    return found


def option_for(key: str, flat: Mapping[str, Any]) -> Option | None:
    """Returns the option that a key names, even if no chosen variant reads it; None if none."""
    plain, letter = plain_key(key), letter_of(key)
    if letter is not None and plain == key:
        return None
    if plain in OPTIONS:
        return OPTIONS[plain]
    typed = of_type(flat, letter)
    for chooser in _choosers_of(plain):
        for choice in _choices(chooser, typed):
            options = variant_options(chooser, choice)
            if options is None:
                return _ANYTHING
            if plain in options:
                return options[plain]
    for chooser in _choosers_of(plain):
        for name in _entries(chooser):
            if plain in _table_options(chooser, name):
                return _table_options(chooser, name)[plain]
    return None


def _choosers_of(key: str) -> list[str]:
    """Returns the options that choose the variants whose section has this key."""
    section = key.rpartition(".")[0]
    return [chooser for chooser, known in VARIANT_SECTIONS.items() if known == section]


def read_instead(key: str, flat: Mapping[str, Any]) -> str:
    """Returns the choice because of which an option is not read, e.g. "model.position=rotary".

    Returns:
      "" if it is read, by the model or by a layer type.
    """
    plain, letter = plain_key(key), letter_of(key)
    choosers = _choosers_of(plain)
    if plain in OPTIONS or not choosers:
        return ""
    letters = [None, *letters_of(flat)] if letter is None else [letter]
    for typed in (of_type(flat, letter) for letter in letters):
        for chooser in choosers:
            for choice in _choices(chooser, typed):
                options = variant_options(chooser, choice)
                if options is None or plain in options:
                    return ""
    return f"{choosers[0]}={_value(choosers[0], of_type(flat, letters[0]))}"


def unread(flat: Mapping[str, Any]) -> dict[str, str]:
    """Returns the stated options that are not read: full key -> the choice that ignores them."""
    found = {key: read_instead(key, flat) for key in flat}
    return {key: choice for key, choice in found.items() if choice}


# ---------------------------------------------------------------- defaults


def completed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a flat config with the defaults of all options that are read."""
    defaults = {key: option.default for key, option in options_read(flat).items()}
    whole = {**DEFAULTS, **defaults, **flat}
    followed = {key: whole[v.key] for key, v in whole.items() if isinstance(v, SameAs)}
    return whole | followed


def stated(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a flat config that are not at their default."""
    usual = completed({key: flat[key] for key in flat if key in _CHOICES})
    usual |= {
        key: flat.get(default.key, DEFAULTS[default.key])
        for key, default in DEFAULTS.items()
        if isinstance(default, SameAs)
    }
    usual |= {key: DEFAULTS[key] for key in _CHOICES}
    return {key: value for key, value in flat.items() if key not in usual or usual[key] != value}


_CHOICES = (*VARIANT_SECTIONS, "model.match_parameters")


# ---------------------------------------------------------------- checks


def problems_of(flat: Mapping[str, Any]) -> list[str]:
    """Returns all problems of a flat config, one line each."""
    options = {key: option_for(key, flat) for key in flat}
    problems = [unknown_key(key, flat) for key, option in options.items() if option is None]
    problems += [
        refused_value(key, flat[key], option)
        for key, option in options.items()
        if option not in (None, _ANYTHING) and not option.accepts(flat[key])
    ]
    if problems:
        return problems
    problems = list(problems_between(completed(flat)))
    for letter in letters_of(flat):
        problems += [
            f"in layers of type {letter}: {problem}"
            for problem in problems_between(completed(of_type(flat, letter)))
            if problem not in problems
        ]
    return problems


def import_own(flat: Mapping[str, Any]) -> list[str]:
    """Imports the user-defined code that a config names; returns the errors."""
    problems = []
    for key, choice in own_choices_of(flat):
        try:
            function = load(choice, key)
            if key == "evaluation.metrics":
                from transformer_jax.metrics import metric_facts

                metric_facts(choice)
            if key == "hooks.functions":
                check_arguments(function, "hook", HOOK_ARGUMENTS)
        except InvalidInput as error:
            problems.append(str(error))
        except (LookupError, ValueError) as error:
            problems.append(f"{key}={choice}: {error}")
    return problems


def own_choices_of(flat: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns (key, MODULE:NAME) of all user-defined code that a flat config names."""
    choices = []
    for key, value in flat.items():
        for one in value if isinstance(value, tuple) else (value,):
            if names_own(plain_key(key), one):
                choices.append((key, one))
    return choices


def unknown_key(key: str, flat: Mapping[str, Any] | None = None) -> str:
    """Returns the message that an option does not exist, with the nearest one.

    Args:
      key: The given key.
      flat: The config; its user-defined code has options too.
    """
    flat = flat or {}
    letter, name = letter_of(key), key.rpartition(".")[2]
    for chooser in _choosers_of(plain_key(key)):
        choice = _value(chooser, of_type(flat, letter))
        variant = find(choice) if is_user_defined(choice) else None
        if variant is None:
            continue
        options = variant_options(chooser, choice) or {}
        if name in inspect.signature(variant).parameters:
            return (
                f"{key}: no option of {choice}, because of its type; give it one of "
                "transformer_jax.options (Count, Share, ...) and a default"
            )
        near = suggest(key, options)
        if not near:
            own = ", ".join(known.rpartition(".")[2] for known in options) or "none"
            near = f"; it has {own}"
        return f"{key}: {choice} has no such option{near}"
    names = [*OPTIONS, *sorted(all_options(), key=lambda known: bool(read_instead(known, flat)))]
    if letter is not None:
        typed = [name.replace("model.", f"{_TYPES}{letter}.", 1) for name in names]
        near = suggest(key, [name for name in typed if plain_key(name) != name])
        return f"{key}: no option that a type of layer has{near}"
    return f"{key}: no such option{suggest(key, names)}"


def refused_value(key: str, value: Any, option: Option) -> str:
    """Returns the message that a value is not allowed, with the nearest name and an example."""
    near = suggest(value, option.names)
    from transformer_jax.suggestions import OTHER_NAMES

    elsewhere = OTHER_NAMES.get(str(value).lower(), "")
    if option.names and "=" in elsewhere and elsewhere.partition("=")[2] not in option.names:
        near = f"; did you mean {elsewhere}?"  # a value of another option
    example = f", e.g. {key}={option.example}" if not near else ""
    return f"{key}={as_text(value)}: expected {option.allowed}{near}{example}"

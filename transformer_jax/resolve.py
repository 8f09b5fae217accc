"""Flat configs (full key -> value): their options, defaults and checks.

A flat config holds the stated options. `completed` adds the defaults of all other options that the
chosen variants use; `stated` removes values that equal their defaults.
"""

import functools
import inspect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from transformer_jax.config import DEFAULTS, OPTIONS, VARIANT_SECTIONS
from transformer_jax.constraints import problems_between
from transformer_jax.declarations import Option, as_text, declared_options
from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.model_options import LAYER_FIELDS
from transformer_jax.options import SameAs, entry_of, is_user_defined
from transformer_jax.own import HOOK_ARGUMENTS, check_arguments, find, load, names_own

# Options that decide which others are read, and therefore which defaults apply.
CHOICES = (*VARIANT_SECTIONS, "model.match_parameters")
_FOLLOWED = tuple(usual.key for usual in DEFAULTS.values() if isinstance(usual, SameAs))
_TYPES = "model.layer_types."
_READ_WITH = {  # options that are read only if another one is set
    "adapters.alpha": "adapters.rank",
    "adapters.maps": "adapters.rank",
    "evaluation.benchmark_begin": "evaluation.benchmark",
    "hooks.every": "hooks.functions",
    "sample.temperature": "sample.num_tokens",
}
_ANYTHING = Option(Any, None)  # an option of user-defined code that is not imported


def split_type(key: str) -> tuple[str, str | None]:
    """Splits `model.layer_types.L.mask` into the option `model.mask` and the letter of the type.

    Any other key is returned unchanged, with None. If layer types may not override the option, the
    whole key is returned with the letter.
    """
    letter, dot, rest = key.removeprefix(_TYPES).partition(".")
    if not key.startswith(_TYPES) or not dot or len(letter) != 1:
        return key, None
    return (f"model.{rest}" if rest.partition(".")[0] in LAYER_FIELDS else key), letter


def letters_of(flat: Mapping[str, Any]) -> list[str]:
    """Returns the letters of the layer types in a flat config."""
    return sorted({letter for key in flat if (letter := split_type(key)[1])})


def of_type(flat: Mapping[str, Any], letter: str | None) -> dict[str, Any]:
    """Returns the flat config of a model whose blocks all have layer type `letter`, if given."""
    if letter is None:
        return dict(flat)
    plain = {key: split_type(key) for key in flat}
    return {**flat, **{plain[key][0]: v for key, v in flat.items() if plain[key][1] == letter}}


def variant_options(key: str, choice: Any) -> dict[str, Option] | None:
    """Returns the options of a variant, e.g. rms_norm for model.norm, by their full keys.

    Returns None for user-defined code that is not imported, since its options are unknown.
    """
    if is_user_defined(choice):
        variant = find(choice)
        return None if variant is None else _options_in(VARIANT_SECTIONS[key], variant)
    table = _entries(key)
    if table.get(choice) is None:
        return {}
    return _options_in(VARIANT_SECTIONS[key], entry_of(table, choice))


def _entries(key: str) -> Mapping[str, Any]:
    variant = OPTIONS[key].variant
    return {} if variant is None else variant.entries()


@functools.cache
def _options_in(section: str, variant: Any) -> dict[str, Option]:
    """Returns a variant's options by full key, except those that every config has."""
    keyed = {f"{section}.{name}": option for name, option in declared_options(variant).items()}
    return {key: option for key, option in keyed.items() if key not in OPTIONS}


def _chosen(flat: Mapping[str, Any], choosers: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Yields (key, value) for each choice; for model.architecture, also the one to be matched."""
    for key in choosers:
        yield key, flat.get(key, DEFAULTS[key])
        if key == "model.architecture" and (matched := flat.get("model.match_parameters")):
            yield key, matched


def options_read(flat: Mapping[str, Any]) -> dict[str, Option]:
    """Returns the options of the variants that a config chooses, by full key."""
    found: dict[str, Option] = {}
    for key, choice in _chosen(flat, VARIANT_SECTIONS):
        found = (variant_options(key, choice) or {}) | found
    return found


def all_options() -> dict[str, list[tuple[str, Option]]]:
    """Returns the options of all variants: lists of (variant's name, option) by full key."""
    found: dict[str, list[tuple[str, Option]]] = {}
    for key in VARIANT_SECTIONS:
        for name in _entries(key):
            for full_key, option in (variant_options(key, name) or {}).items():
                found.setdefault(full_key, []).append((name, option))
    return found


def option_for(key: str, flat: Mapping[str, Any]) -> Option | None:
    """Returns the option of a key, even if no chosen variant reads it, or None if unknown."""
    plain, letter = split_type(key)
    if letter is not None and plain == key:
        return None
    if plain in OPTIONS:
        return OPTIONS[plain]
    choosers = _choosers_of(plain)
    others = ((chooser, name) for chooser in choosers for name in _entries(chooser))
    for chooser, choice in (*_chosen(of_type(flat, letter), choosers), *others):
        options = variant_options(chooser, choice)
        if options is None:
            return _ANYTHING
        if plain in options:
            return options[plain]
    return None


def _choosers_of(key: str) -> list[str]:
    """Returns the keys that choose the variants whose options are in this key's section."""
    section = key.rpartition(".")[0]
    return [chooser for chooser, known in VARIANT_SECTIONS.items() if known == section]


def read_instead(key: str, flat: Mapping[str, Any]) -> str:
    """Returns the choice that makes an option unused, e.g. "model.position=rotary".

    Returns:
      "" if the model or a layer type reads the option.
    """
    plain, letter = split_type(key)
    choosers = _choosers_of(plain)
    if plain in OPTIONS or not choosers:
        return ""
    letters = [None, *letters_of(flat)] if letter is None else [letter]
    chosen = [pair for one in letters for pair in _chosen(of_type(flat, one), choosers)]
    for options in itertools.starmap(variant_options, chosen):
        if options is None or plain in options:
            return ""
    return "{}={}".format(*chosen[0])


def unread(flat: Mapping[str, Any]) -> dict[str, str]:
    """Returns the choice that makes a stated option unused, by full key of each unused option."""
    found = {key: choice for key in flat if (choice := read_instead(key, flat))}
    whole = {**DEFAULTS, **flat}
    task, tokenizer = whole["data.task"], whole["data.tokenizer"]
    own = is_user_defined(task)
    arguments = None if own else inspect.signature(entry_of(_entries("data.task"), task)).parameters
    for key in (key for key, default in DEFAULTS.items() if whole[key] != default):
        (section, _, name), switch = key.partition("."), _READ_WITH.get(key)
        if switch and not whole[switch]:
            found[key] = f"{switch}={whole[switch]}"
        elif section == "data" and name != "task" and arguments and name not in arguments:
            found[key] = f"data.task={task}"
        elif key == "data.vocab_size" and re.fullmatch(r"byte|char|.*\.json", tokenizer):
            found[key] = f"data.tokenizer={tokenizer}"
    return found


def completed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a flat config, with defaults added for every option that the chosen variants use."""
    defaults = {key: option.default for key, option in options_read(flat).items()}
    whole = {**DEFAULTS, **defaults, **flat}
    return {key: whole[v.key] if isinstance(v, SameAs) else v for key, v in whole.items()}


def stated(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a flat config that are not at their default."""
    deciding = (*CHOICES, *_FOLLOWED)
    usual = completed({key: flat[key] for key in deciding if key in flat})
    usual |= {key: DEFAULTS[key] for key in deciding}
    return {key: value for key, value in flat.items() if key not in usual or usual[key] != value}


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
    if flat.get("training.scheduled"):
        from transformer_jax.curves import problems_of_curves

        whole = completed(flat)
        is_read = lambda key: split_type(key)[1] in letters_of(flat) and not read_instead(key, flat)  # noqa: E731
        found = problems_of_curves(whole, lambda key: option_for(key, whole), is_read)
        problems += [f"training.scheduled: {problem}" for problem in found]
    for letter in letters_of(flat):
        problems += [
            f"in layers of type {letter}: {problem}"
            for problem in problems_between(completed(of_type(flat, letter)))
            if problem not in problems
        ]
    return problems


def import_own(flat: Mapping[str, Any]) -> list[str]:
    """Imports the user-defined code that a config names; returns error messages."""
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
    """Returns (key, MODULE:NAME) for all user-defined code that a flat config names."""
    return [
        (key, one)
        for key, value in flat.items()
        for one in (value if isinstance(value, tuple) else (value,))
        if names_own(split_type(key)[0], one)
    ]


def unknown_key(key: str, flat: Mapping[str, Any]) -> str:
    """Returns the message that a config has no such option, with the nearest valid option."""
    (plain, letter), name = split_type(key), key.rpartition(".")[2]
    for chooser, choice in _chosen(of_type(flat, letter), _choosers_of(plain)):
        variant = find(choice) if is_user_defined(choice) else None
        if variant is None:
            continue
        if name in inspect.signature(variant).parameters:
            return (
                f"{key}: this argument of {choice} is not an option; give it a type of "
                "transformer_jax.options (Count, Share, ...) and a default"
            )
        if name in getattr(variant, "__annotations__", {}):
            return f"{key}: {choice} must be decorated with @dataclasses.dataclass(frozen=True)"
        options = variant_options(chooser, choice) or {}
        names = ", ".join(known.rpartition(".")[2] for known in options) or "none"
        return f"{key}: {choice} has no such option{suggest(key, options) or f'; it has {names}'}"
    names = [*OPTIONS, *sorted(all_options(), key=lambda known: bool(read_instead(known, flat)))]
    if letter is None:
        return f"{key}: no such option{suggest(key, names)}"
    typed = [name.replace("model.", f"{_TYPES}{letter}.", 1) for name in names]
    near = suggest(key, [name for name in typed if split_type(name)[0] != name])
    return f"{key}: a type of layer has no such option{near}"


def refused_value(key: str, value: Any, option: Option) -> str:
    """Returns the message that a value is not allowed, with the nearest name or an example."""
    from transformer_jax.suggestions import OTHER_NAMES

    near, elsewhere = suggest(value, option.names), OTHER_NAMES.get(str(value).lower(), "")
    if option.names and "=" in elsewhere and elsewhere.partition("=")[2] not in option.names:
        near = f"; did you mean {elsewhere}?"  # a value of a different option
    near = near or f", e.g. {key}={option.example}"
    return f"{key}={as_text(value)}: expected {option.allowed}{near}"

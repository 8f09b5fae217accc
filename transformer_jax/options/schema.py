"""Every option of a config: what it may be, its default, and what it means. Nothing imports jax.

The declarations are read from where they stand (tables.py): sections.py, and the components.
"""

from collections.abc import Callable, Mapping
from typing import Any

from transformer_jax.options import SameAs
from transformer_jax.options.constraints import problems_between
from transformer_jax.options.layer_types import letter_of, letters_of, of_type, plain_key
from transformer_jax.options.marks import hook_intervenes, metric_facts
from transformer_jax.options.other_names import OTHER_NAMES
from transformer_jax.options.rule import ValueRule, is_own, suggest
from transformer_jax.options.tables import (
    OWN,
    OWN_SECTIONS,
    SECTIONS,
    TABLES,
    Option,
    names_own,
    options_of_rows,
    options_of_section,
    own_row,
    rows_of,
)


def _all_options() -> dict[str, Option]:
    """By section, the options of rows behind those of their section."""
    of_rows = options_of_rows()
    options: dict[str, Option] = {}
    for prefix in SECTIONS:
        options |= options_of_section(prefix)
        options |= {k: o for k, o in of_rows.items() if prefix and k.startswith(prefix)}
    return options


OPTIONS: dict[str, Option] = _all_options()
RULES: dict[str, ValueRule] = {key: option.rule for key, option in OPTIONS.items()}
DEFAULTS: dict[str, Any] = {key: option.default for key, option in OPTIONS.items()}
_CHOOSERS = {section: key for key, section in OWN_SECTIONS.items()}


def completed(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a flattened config with the default of every option that it leaves out."""
    whole = {**DEFAULTS, **flat}
    followed = {key: whole[v.key] for key, v in whole.items() if isinstance(v, SameAs)}
    return whole | followed


def stated(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a flattened config that are not at their default."""
    unsaid = dict(DEFAULTS)
    for key, value in unsaid.items():
        if isinstance(value, SameAs):  # following the other option is the default
            unsaid[key] = flat.get(value.key)
    return {key: value for key, value in flat.items() if key not in unsaid or unsaid[key] != value}


def rule_for(key: str, flat: Mapping[str, Any]) -> ValueRule | None:
    """Returns the rule of a key; None if there is no such option.

    Options of a user's own class are looked up in its source, which is not run.
    """
    said = _options_of_own(key, of_type(flat, letter_of(key)))
    if said is None:
        return RULES.get(plain_key(key))
    option = said[1].get(key.rsplit(".", 1)[-1])
    return option.rule if option else None


def _options_of_own(
    key: str, flat: Mapping[str, Any]
) -> tuple[str, dict[str, Option], tuple[str, ...]] | None:
    """The class of the user's own whose option a key is, its options, its fields; None: none's."""
    chooser = _chooser_of_own(key)
    choice = flat.get(chooser, "")
    if not is_own(choice):
        return None
    try:
        row = own_row(choice, chooser)
    except LookupError:
        return choice, {}, ()
    return choice, row.options, row.takes


def _chooser_of_own(key: str) -> str:
    """The key that names the class of the user's own of whose options a key is one; "": none."""
    section, is_own_row, _ = plain_key(key).partition(".own.")
    return _CHOOSERS.get(section, "") if is_own_row else ""


def problems_of(flat: Mapping[str, Any]) -> list[str]:
    """Returns everything that is wrong with a flattened config, one line each."""
    rules = {key: RULES.get(plain_key(key)) for key in flat if not _chooser_of_own(key)}
    problems = unknown_keys(flat)
    problems += [
        refused_value(key, flat[key], rule)
        for key, rule in rules.items()
        if rule is not None and not rule.accepts(flat[key])
    ]
    return problems or _with_those_of_types(problems_between, flat)


def _with_those_of_types(find: Callable[[Any], list[str]], flat: Mapping[str, Any]) -> list[str]:
    """The problems of a config, and those that the values of a type of layer make with it."""
    problems = find(flat)
    for letter in letters_of(flat):
        problems += [
            f"in layers of type {letter}: {problem}"
            for problem in find(of_type(flat, letter))
            if problem not in problems
        ]
    return problems


def problems_of_own_rows(flat: Mapping[str, Any]) -> list[str]:
    """Returns what is wrong with the user's own classes, and with their options, one line each."""
    return _with_those_of_types(_problems_of_own_rows, flat)


def _problems_of_own_rows(flat: Mapping[str, Any]) -> list[str]:
    problems = []
    for key in OWN:
        start = f"{OWN_SECTIONS.get(key)}.own."
        given = {name.removeprefix(start): flat[name] for name in flat if name.startswith(start)}
        if not names_own(key, flat[key]):
            problems += [f"{start}{name}: {key} names no class of your own" for name in given]
            continue
        try:
            options = own_row(flat[key], key).options
        except LookupError as error:
            near = suggest(flat[key], rows_of(key) if key in TABLES else ())
            problems.append(f"{key}={flat[key]}: {error}{near}")
            continue
        for name, value in given.items():
            if name not in options:
                near = suggest(name, options)
                problems.append(f"{start}{name}: {flat[key]} has no such option{near}")
            elif not options[name].rule.accepts(value):
                problems.append(refused_value(start + name, value, options[name].rule))
    for key, read in (("evaluation.metrics", metric_facts), ("hooks.functions", hook_intervenes)):
        for choice in filter(is_own, flat[key]):
            try:
                read(choice)
            except LookupError as error:
                problems.append(f"{key}={choice}: {error}")
    return problems


def read_instead(key: str, flat: Mapping[str, Any]) -> str:
    """Returns what chooses another row than the one that an option is of: `schedule.name=constant`.

    Args:
      key: of the option, that of a type of layer too.
      flat: the config.
    Returns:
      "" where the option is read: its row is chosen, by the model or by a type of its layers.
    """
    section, _, row = plain_key(key).rpartition(".")[0].rpartition(".")
    chooser, letter = _CHOOSERS.get(section, ""), letter_of(key)
    readers = [None, *letters_of(flat)] if letter is None else [letter]
    chosen = [of_type(flat, reader).get(chooser) for reader in readers]
    if chooser == "model.architecture":  # it may be as large as another one, which is made too
        chosen += [flat["model.match_parameters"]] if flat.get("model.match_parameters") else []
    is_read = None in chosen or row == "own" or row in chosen
    return "" if is_read else f"{chooser}={chosen[0]}"


def unknown_keys(flat: Mapping[str, Any]) -> list[str]:
    """Says of every key that there is no such option; those of the user's own classes are left."""
    return [
        unknown_key(key) for key in flat if plain_key(key) not in RULES and not _chooser_of_own(key)
    ]


def unknown_key(key: str, flat: Mapping[str, Any] | None = None) -> str:
    """Says that there is no such option, and which is nearest.

    Args:
      key: that was given.
      flat: the config, whose classes of the user's own have options too.
    """
    letter = letter_of(key)
    said = _options_of_own(key, of_type(flat or {}, letter))
    if said is not None:
        section, _, name = key.rpartition(".")
        shared = key.replace(".own.", ".")
        if shared in RULES:
            return f"{key}: no such option; {said[0]} gets {shared}"
        if name in said[2]:
            return (
                f"{key}: no option of {said[0]}, because of its type; give it one of "
                "transformer_jax.options (Count, Share, ...) and a default"
            )
        near = suggest(name, said[1]).replace("did you mean ", f"did you mean {section}.")
        return f"{key}: {said[0]} has no such option{near}"
    if letter is not None:
        keys = (name.replace("model.", f"model.layer_types.{letter}.", 1) for name in RULES)
        near = suggest(key, (name for name in keys if plain_key(name) != name))
        return f"{key}: no option that a type of layer has{near}"
    names = sorted(
        RULES, key=lambda name: bool(read_instead(name, flat or {}))
    )  # what is read first
    return f"{key}: no such option{suggest(key, names)}"


def refused_value(key: str, value: Any, rule: ValueRule) -> str:
    """Says what a key may be, with the nearest name and an example."""
    near = suggest(value, rule.allowed.removeprefix("one of: ").split(", "))
    elsewhere, names = OTHER_NAMES.get(str(value).lower(), ""), rule.allowed.startswith("one of")
    if names and "=" in elsewhere and not rule.accepts(elsewhere.partition("=")[2]):
        near = f"; did you mean {elsewhere}?"  # a value of another option
    return f"{key}={value}: expected {rule.allowed}{near}, e.g. {key}={rule.example}"

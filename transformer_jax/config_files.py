"""Configs: running their files, changing values from the command line, storing them as JSON."""

import ast
import contextlib
import copy
import importlib.util
import json
import warnings
from collections.abc import Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict, FieldReference, FrozenConfigDict
from ml_collections.config_dict import RequiredValueError

from transformer_jax.config import DEFAULTS, VARIANT_SECTIONS
from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.options import SameAs
from transformer_jax.own import frames_in, hashes_of, importable_from, intervenes, refuse_module
from transformer_jax.resolve import (
    CHOICES,
    completed,
    import_own,
    option_for,
    own_choices_of,
    problems_of,
    refused_value,
    split_type,
    unknown_key,
    variant_options,
)

_UNREADABLE = object()  # no option accepts it

# Keys that every version has stored; a config without one of them is incomplete.
_ALWAYS_STORED = (
    *("seed", "data.source", "data.length", "model.width", "training.steps", "optimizer.name"),
    *("schedule.name", "evaluation.every", "logging.every", "checkpoint.every"),
    "sample.num_tokens",
)

# Changing these changes no bit of the trained parameters, so a resumed run may have other values.
CADENCE = (
    *("evaluation.every", "evaluation.batch_size", "evaluation.metrics", "evaluation.target"),
    *("evaluation.benchmark", "logging.", "checkpoint.", "sample."),
)

# Options that name code which observes training without changing it, unless a hook intervenes.
WATCHING = ("evaluation.metrics", "hooks.functions")

# These change only the order of sums: a resumed run may have other values, and a message says so.
PLACEMENT = ("mesh.",)

# Options that `train --extend` may change for the following updates.
EXTENDABLE = ("training.steps", "optimizer.learning_rate", "schedule.")


def is_among(key: str, names: tuple[str, ...]) -> bool:
    """Returns whether `names` holds a full key, or its section with a final dot (`data.`)."""
    return key in names or key.startswith(tuple(name for name in names if name.endswith(".")))


def flatten(config: ConfigDict | Mapping) -> dict[str, Any]:
    """Returns a config's values by full key, in the config's order, with references resolved."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, (ConfigDict, Mapping)):
            flat |= {f"{name}.{inner}": leaf for inner, leaf in flatten(value).items()}
        else:
            flat[name] = tuple(value) if isinstance(value, list) else value
    return flat


def resolved(config: ConfigDict | Mapping) -> dict[str, Any]:
    """Returns a config's values by full key, with the defaults of the chosen variants."""
    return completed(flatten(config))


def report(problems: list[str]) -> None:
    """Raises InvalidInput if there are problems; the message lists at most seven."""
    if len(problems) > 7:
        problems = [*problems[:7], f"... and {len(problems) - 7} more"]
    if problems:
        raise InvalidInput("\n".join(problems))


def load_config(path: str, overrides: Mapping[str, str]) -> ConfigDict:
    """Returns the config made by a file's `get_config`, with command-line overrides applied.

    The result is checked and locked. `overrides` maps full keys to values as strings.

    Raises:
      InvalidInput: The file cannot be used, or any key or value is wrong.
    """
    return ConfigFile(path).config(overrides)


class ConfigFile:
    """A config file, executed once: its path and the resulting module.

    `given` is the command-line argument that named the file, `--config=PATH`.
    """

    def __init__(self, path: str) -> None:
        """Executes the file.

        Raises:
          InvalidInput: The file does not exist, is not Python, or raised an error.
        """
        file, self.path, self.given = Path(path), path, f"--config={path}"
        if file.is_dir():
            raise InvalidInput(f"{self.given}: a folder; expected a Python file (.py)")
        if not file.is_file():
            nearby = map(str, file.parent.glob("*.py"))
            raise InvalidInput(f"{self.given}: no such file{suggest(path, nearby)}")
        spec = importlib.util.spec_from_file_location("config_file", file)
        if spec is None or spec.loader is None:
            raise InvalidInput(f"{self.given}: expected a Python file (.py)")
        self.module = importlib.util.module_from_spec(spec)
        with self._faults():
            spec.loader.exec_module(self.module)
        for node in ast.walk(ast.parse(file.read_bytes())):
            constants = node.keys if isinstance(node, ast.Dict) else ()
            keys = [key.value for key in constants if isinstance(key, ast.Constant)]
            if twice := [key for key in keys if keys.count(key) > 1]:
                where = f"{self.given}, line {node.lineno}"  # ty: ignore
                raise InvalidInput(f"{where}: a dict has the key {twice[0]!r} twice")

    def call(self, name: str) -> Any:
        """Calls one of the file's functions and returns its result.

        Raises:
          InvalidInput: The function does not exist or raised an error.
        """
        with self._faults():
            return getattr(self.module, name)()

    def config(self, overrides: Mapping[str, str]) -> ConfigDict:
        """Returns the config with overrides from the command line; see load_config."""
        config = self.stated(overrides)
        _complete(config)
        return changed(config, texts=overrides)

    def stated(self, overrides: Mapping[str, str]) -> ConfigDict:
        """Returns the config as the file states it, without defaults for the options it leaves out.

        Placeholders for required values that overrides set are filled with defaults, or removed.

        Raises:
          InvalidInput: The result is not a config, lacks a required value, or has unknown keys.
        """
        config = self.call("get_config")
        if not isinstance(config, ConfigDict) or isinstance(config, FrozenConfigDict):
            kind = type(config).__name__
            raise InvalidInput(f"{self.given}: get_config() returned {kind}; expected ConfigDict")
        with self._faults():  # e.g. in a list that holds a reference
            _fill_required(config, overrides)
            flat = flatten(config)
            problems = import_own({k: v for k, v in flat.items() if k not in overrides})
            # Checked before defaults, which would replace a dict given in place of a value.
            changes = {**flat, **{key: v for key, v in overrides.items() if key in CHOICES}}
            unknown = [unknown_key(key, changes) for key in flat if not option_for(key, changes)]
            report(problems + unknown)
        return config

    @contextlib.contextmanager
    def _faults(self) -> Generator[None]:
        """Re-raises errors in the user's file as InvalidInput with the line number."""
        try:
            with importable_from(Path.cwd()):  # so that a config finds its base config
                yield
        except Exception as error:
            frames = frames_in(error, Path(self.path).absolute())
            line = f" at line {frames[-1].lineno}" if frames else ""
            if isinstance(error, InvalidInput):  # raised by our code, which the file called
                raise InvalidInput(f"{self.given}{line}: {error}") from error
            is_one = "of original type" in str(error)
            hint = "\ngive a list of values as a tuple, e.g. ('one',)" if is_one else ""
            kind = type(error).__name__
            raise InvalidInput(f"{self.given}: {kind}{line}: {error}{hint}") from error


def defaults() -> ConfigDict:
    """Returns a config with every option at its default, as a starting point.

    The options of variants are left out; they have their defaults unless they are stated.
    """
    config = ConfigDict()
    _complete(config)
    return config


def _complete(config: ConfigDict) -> None:
    """Adds, for each option left out, its default or a reference to the option that it follows."""
    flat = flatten(config)
    missing = (key for key in DEFAULTS if key not in flat)
    for key in sorted(missing, key=lambda key: isinstance(DEFAULTS[key], SameAs)):
        default = DEFAULTS[key]
        if isinstance(default, SameAs):  # the other value was added before
            section, _, name = default.key.rpartition(".")
            default = _section_of(config, section).get_oneway_ref(name)
        _assign(config, key, default)
    for section in VARIANT_SECTIONS.values():  # for the options of variants that are stated later
        _section_of(config, section)


def _assign(config: ConfigDict, key: str, value: Any, apart: bool = False) -> None:
    """Sets a value, also where it shares its reference, or instead of the reference if `apart`."""
    section, _, name = key.rpartition(".")
    holder = _section_of(config, section)
    with holder.unlocked(), holder.ignore_type():
        if apart:
            del holder[name]
        holder[name] = value


def _section_of(config: ConfigDict, section: str) -> ConfigDict:
    """Returns a section of a config, adding it if it is missing."""
    for name in section.split(".") if section else ():
        with config.unlocked():
            if name not in config:
                config[name] = ConfigDict()
        config = config[name]
    return config


def changed(
    config: ConfigDict,
    changes: Mapping[str, Any] | None = None,
    texts: Mapping[str, str] | None = None,
) -> ConfigDict:
    """Returns a copy of a config with changes, checked and locked.

    References to other values of the config stay references in the copy. A change of a value also
    changes those that share its reference, with a warning, unless they have changes of their own.

    Args:
      config: A config with every option.
      changes: Full key -> value.
      texts: Full key -> value as a string, which is parsed.
    Raises:
      InvalidInput: A key or value is wrong; one message reports all problems.
    """
    config, texts = copy.deepcopy(config), texts or {}
    all_changes, problems, flat = {**texts, **(changes or {})}, [], flatten(config)
    references, done = {key: reference for key, _, reference in _references(config)}, set()
    # A variant is chosen before its options are looked up in it.
    for key in sorted(all_changes, key=lambda key: split_type(key)[0] not in CHOICES):
        value, option = all_changes[key], option_for(key, flat)
        if option is None:
            problems.append(unknown_key(key, flat))
            continue
        try:
            parsed = option.parse(value) if key in texts else value
        except (ValueError, OverflowError):
            parsed = _UNREADABLE
        if not option.accepts(parsed):
            problems.append(refused_value(key, value, option))
            continue
        problems += import_own({key: parsed})
        sharing = [other for other in references if references[other] is references.get(key)]
        is_new = done.isdisjoint(sharing)
        others = [other for other in sharing if other not in all_changes]
        if is_new and others and parsed != flat.get(key):
            warnings.warn(f"{key}={parsed} also sets {', '.join(others)} (get_ref)", stacklevel=2)
        _assign(config, key, parsed, apart=not is_new)  # what was set before is kept
        done.add(key)
        flat = flatten(config)  # others may refer to this value
    # A value that was refused above still has its default, so nothing is reported twice.
    report(problems or problems_of(flatten(config)))
    return config.lock()


def _fill_required(config: ConfigDict, overrides: Mapping[str, str]) -> None:
    """Fills, or removes, the required placeholders of ml_collections that overrides set.

    Raises:
      InvalidInput: No override sets a placeholder.
    """
    for key, holder, reference in list(_unset(config)):
        default = DEFAULTS.get(key)
        if key in overrides and default is not None and not isinstance(default, SameAs):
            reference.set(default, type_safe=False)
        elif key in overrides:
            del holder[key.rpartition(".")[2]]
    report([
        f"{key}: required but not set; give --config.{key}=VALUE" for key, *_ in _unset(config)
    ])  # fmt: skip


def _unset(config: ConfigDict) -> Iterator[tuple[str, ConfigDict, FieldReference]]:
    """Yields (key, section, reference) for each required placeholder without a value."""
    for found in _references(config):
        try:
            found[-1].get()
        except RequiredValueError:
            yield found


def _references(
    config: ConfigDict, prefix: str = ""
) -> Iterator[tuple[str, ConfigDict, FieldReference]]:
    """Yields (key, section, reference) for each value that is a reference."""
    for name, value in config.items(preserve_field_references=True):
        if isinstance(value, ConfigDict):
            yield from _references(value, f"{prefix}{name}.")
        elif isinstance(value, FieldReference):
            yield f"{prefix}{name}", config, value


def to_json(config: ConfigDict) -> str:
    """Returns the resolved config as plain JSON, sorted by key."""
    return json.dumps(plain(config), indent=1, sort_keys=True) + "\n"


def plain(config: ConfigDict) -> dict[str, Any]:
    """Returns the resolved config as nested dicts."""
    return _nested(resolved(config))


def _nested(flat: Mapping[str, Any]) -> dict:
    nested: dict = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[name] = value
    return nested


def from_json(text: str, origin: str, stated: Collection[str] | None = None) -> ConfigDict:
    """Returns a stored config, read as data and checked against this version's options.

    Args:
      text: Result of to_json.
      origin: Source of the text, for messages.
      stated: Keys that were not at their default in the version that stored them; other keys are
        dropped if this version does not know them. None means all keys.
    Raises:
      InvalidInput: The text is not JSON, or has a key or value that this version does not know.
    """
    try:
        flat = flatten(json.loads(text))
    except (ValueError, AttributeError) as error:
        raise InvalidInput(f"{origin}: expected a config as JSON: {error}") from error
    if lost := [key for key in _ALWAYS_STORED if key not in flat]:
        raise InvalidInput(f"{origin}: incomplete config: missing {', '.join(lost)}")
    if stated is not None:
        flat = {k: v for k, v in flat.items() if k in stated or option_for(k, flat) is not None}
    try:
        report(problems_of(flat))
    except InvalidInput as error:
        raise InvalidInput(f"{origin}: not a config of this version\n{error}") from error
    return ConfigDict(_nested(completed(flat))).lock()


def options_of(config: ConfigDict, key: str) -> dict[str, Any]:
    """Returns the stated options of the variant that `key` chooses, by name."""
    flat = flatten(config)
    read = variant_options(key, flat.get(key, DEFAULTS[key])) or {}
    return {name.rpartition(".")[2]: flat[name] for name in read if name in flat}


def fingerprint_of_own(config: ConfigDict) -> dict[str, str]:
    """Returns the sha256 of user-defined code that affects training, by MODULE:NAME.

    Hooks that intervene or are not imported are included; metrics are not.
    """
    return hashes_of([
        choice
        for key, choice in own_choices_of(flatten(config))
        if key not in WATCHING or (key == "hooks.functions" and intervenes(choice))
    ])  # fmt: skip


def own_modules(config: ConfigDict) -> set[str]:
    """Returns the names of the modules of all user-defined code that a config names."""
    return {choice.partition(":")[0] for _, choice in own_choices_of(flatten(config))}


def refuse_foreign_modules(config: ConfigDict, allow: Collection[str]) -> None:
    """Raises InvalidInput if a stored config names a module that is not in `allow`."""
    for key, choice in own_choices_of(flatten(config)):
        refuse_module(key, choice, allow)


def differences(
    old: ConfigDict, new: ConfigDict, but: tuple[str, ...] = ()
) -> dict[str, tuple[Any, Any]]:
    """Returns (old, new) for each value that differs, by full key, without keys among `but`."""
    before, after = resolved(old), resolved(new)
    return {
        key: (before.get(key), after.get(key))
        for key in before | after
        if before.get(key) != after.get(key) and not is_among(key, but)
    }

"""Classes and functions of the user's own that a config names by MODULE.NAME.

A config file is a program that its user started, so what it names is imported. A stored run may be
somebody else's: what it names is imported only if its module is allowed by name.
"""

import contextlib
import hashlib
import importlib.util
import sys
import traceback
from collections.abc import Collection, Generator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.errors import InvalidInput, Stop
from transformer_jax.models.families import row
from transformer_jax.options.config import flatten
from transformer_jax.options.declared import own_file, own_files
from transformer_jax.options.layer_types import plain_key
from transformer_jax.options.marks import hook_intervenes
from transformer_jax.options.rule import is_own
from transformer_jax.options.tables import SEVERAL, names_own, own_row


def chosen(table: Mapping[str, Any], choice: str, key: str, allow: Collection[str]) -> Any:
    """Returns the row that a config chooses, or the user's own in its place.

    Args:
      table: name -> row.
      choice: a name in it, or MODULE.NAME.
      key: of the config.
      allow: modules that may be imported.
    Raises:
      InvalidInput: the module is not allowed, not there, or has no such name.
    """
    return _import(choice, key, allow) if is_own(choice) else row(table, choice, key)


def own_choices(config: ConfigDict) -> dict[str, str]:
    """Returns key -> MODULE.NAME for every row of a config that is the user's own.

    Hooks are among them that intervene; what only looks on decides nothing.
    """
    flat = flatten(config)
    choices = {key: value for key, value in flat.items() if names_own(plain_key(key), value)}
    hooks = [hook for hook in flat["hooks.functions"] if is_own(hook)]
    for hook in hooks:
        with contextlib.suppress(LookupError):  # a stored run's file may be gone
            choices |= {f"hooks.functions: {hook}": hook} if hook_intervenes(hook) else {}
    return choices


def own_tokenizer(config: ConfigDict, allow: Collection[str]) -> Any:
    """Returns the class of the user's own that a config's tokenizer is of; None: it is ours."""
    key, value = "data.tokenizer", config.data.tokenizer
    return _import(value, key, allow) if names_own(key, value) else None


@contextlib.contextmanager
def faults_of(*choices: str) -> Generator[None]:
    """Turns an error in the user's own code into a refusal that names the line.

    Args:
      *choices: what is called, KEY=MODULE.NAME.
    """
    try:
        yield
    except (Stop, AssertionError):  # a law that was broken says so itself
        raise
    except Exception as error:
        files = {str(own_file(choice.partition("=")[2])) for choice in choices}
        lines = [
            f" at line {frame.lineno} of {Path(frame.filename).name}"
            for frame in traceback.extract_tb(error.__traceback__)
            if frame.filename in files
        ]
        what = str(error).partition("\n")[0]
        who, where = ", ".join(choices), lines[-1] if lines else ""
        raise InvalidInput(f"{who}: {type(error).__name__}{where}: {what}") from error


def own_modules(config: ConfigDict) -> set[str]:
    """Returns the modules that a config names, of those that look on too."""
    return {choice.rpartition(".")[0] for choice in _all_own(config).values()}


def _all_own(config: ConfigDict) -> dict[str, str]:
    flat = flatten(config)
    looking = {f"{key}: {choice}": choice for key in SEVERAL for choice in flat[key]}
    return own_choices(config) | {k: choice for k, choice in looking.items() if is_own(choice)}


def refuse_modules(config: ConfigDict, allow: Collection[str]) -> None:
    """Raises InvalidInput where a stored config names a module that is not allowed."""
    for key, choice in _all_own(config).items():
        _refuse_module(key, choice, allow)


def fingerprint_of_own(config: ConfigDict) -> dict[str, str]:
    """Returns the sha256 of the files of every own row, by MODULE.NAME."""
    hashes = {choice: hash_of_file(choice) for choice in own_choices(config).values()}
    return {choice: digest for choice, digest in hashes.items() if digest}


def hash_of_file(choice: str) -> str:
    """Returns the sha256 of the file that MODULE.NAME stands in, with those that it imports.

    Empty where there is none; see own_files.
    """
    files = own_files(choice)
    return hashlib.sha256(b"".join(map(Path.read_bytes, files))).hexdigest() if files else ""


def changed_code(manifest: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Returns every MODULE.NAME of a stored run whose file is not what it was."""
    stored = manifest.get("own_rows", {})
    return [choice for choice, digest in stored.items() if digest != now.get(choice)]


def _refuse_module(key: str, choice: str, allow: Collection[str]) -> None:
    module = choice.rpartition(".")[0]
    if module not in allow:
        raise InvalidInput(
            f"{key}={choice}: this run names code of its author's own, which is not run unasked; "
            f"if you trust it: --allow={module} (load_run(..., allow=['{module}']))"
        )


def _import(choice: str, key: str, allow: Collection[str]) -> Any:
    module_name, _, name = choice.rpartition(".")
    _refuse_module(key, choice, allow)
    try:
        own_row(choice, key)  # defined in that file: not what it imports, a shell say
    except LookupError as error:
        raise InvalidInput(f"{key}={choice}: {error}") from error
    file = own_file(choice)
    module = sys.modules.get(module_name)
    if module is not None and getattr(module, "__file__", None) != str(file):
        raise InvalidInput(f"{key}={choice}: a module of that name is in use; rename {file}")
    if module is None:
        spec = importlib.util.spec_from_file_location(module_name, file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            del sys.modules[module_name]
            raise InvalidInput(f"{file}: {type(error).__name__}: {error}") from error
    return getattr(module, name)

"""User-defined code that a config names as MODULE:NAME.

A config file is a program that its user started, so the code it names is imported. A stored run may
be somebody else's: the code it names is imported only if its module is allowed by name.
"""

import ast
import contextlib
import hashlib
import importlib
import inspect
import itertools
import sys
import traceback
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax.config import OPTIONS
from transformer_jax.errors import InvalidInput, Stop, suggest
from transformer_jax.options import UserDefined, Variant, entry_of, is_user_defined

PACKAGE = Path(__file__).parent
# Arguments that a hook may declare; see training/hooks.py.
HOOK_ARGUMENTS = ("state", "run", "task", "batch", "step")


def names_own(key: str, value: Any) -> bool:
    """Returns whether a value of a config names user-defined code rather than a file."""
    if not is_user_defined(value) or Path(value).exists():
        return False
    return key not in OPTIONS or OPTIONS[key].mark(Variant, UserDefined) is not None


def intervenes(hook: str) -> bool:
    """Returns whether a user-defined hook is marked as changing training, or is not imported."""
    found = find(hook)
    return is_user_defined(hook) and (found is None or getattr(found, "intervenes", False))


def find(choice: str) -> Any:
    """Returns the object MODULE:NAME if its module has been imported, else None."""
    module, _, name = choice.partition(":")
    return getattr(sys.modules.get(module), name, None)


def load(choice: str, key: str) -> Any:
    """Imports MODULE:NAME and returns the object.

    The module is in the current folder or on Python's path; `key` is the option that names it.

    Raises:
      InvalidInput: There is no such file, or the file raises an error or does not define the name.
    """
    module_name, _, name = choice.partition(":")
    file, module = own_file(choice), sys.modules.get(module_name)
    if file is None:
        path = f"{module_name.replace('.', '/')}.py"
        raise InvalidInput(f"{key}={choice}: no file {path} in this folder or on Python's path")
    if module is None:
        importlib.invalidate_caches()
        try:
            with importable_from(_root(file, module_name)):
                module = importlib.import_module(module_name)
        except Exception as error:
            frames = frames_in(error, file)
            line = getattr(error, "lineno", None) or (frames[-1].lineno if frames else 1)
            raise InvalidInput(f"{file}, line {line}: {type(error).__name__}: {error}") from error
    if getattr(module, "__file__", None) != str(file):
        raise InvalidInput(f"{key}={choice}: a module of that name is imported; rename {file}")
    found = getattr(module, name, None)
    # A name that the file only imports, e.g. a function that starts a shell, is refused.
    if found is None or getattr(found, "__module__", None) != module_name:
        raise InvalidInput(f"{key}={choice}: {file} defines no {name}")
    return found


def _root(file: Path, module: str) -> Path:
    """Returns the folder from which a file's module is imported."""
    return file.parents[module.count(".") + (file.name == "__init__.py")]


@contextlib.contextmanager
def importable_from(folder: Path) -> Generator[None]:
    """Puts a folder first on Python's path while the context is open."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the imported code may have changed the path itself
            sys.path.remove(str(folder))


def frames_in(error: BaseException, *files: Path | None) -> list[traceback.FrameSummary]:
    """Returns the frames of an error's traceback that are in these files, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame for frame in frames if Path(frame.filename) in files]


def check_arguments(function: Callable, kind: str, arguments: tuple[str, ...]) -> None:
    """Raises LookupError if a metric or hook (`kind`) requires an argument not in `arguments`."""
    for name, parameter in inspect.signature(function).parameters.items():
        if name not in arguments and parameter.default is parameter.empty:
            raise LookupError(
                f"it requires the argument {name}, which no {kind} receives"
                f"{suggest(name, arguments)}; "
                f"expected some of {', '.join(arguments)}"
            )


def chosen(table: Mapping[str, Any], choice: str, key: str, allow: Collection[str]) -> Any:
    """Returns the variant that a config chooses: an entry of a table, or user-defined code.

    `key` is the option that chooses it; only the modules in `allow` may be imported.

    Raises:
      InvalidInput: The module is not allowed, does not exist, or has no such name.
      ValueError: The table has no such name.
    """
    if is_user_defined(choice):
        refuse_module(key, choice, allow)
        return load(choice, key)
    if choice not in table:
        raise ValueError(f"{key}: expected one of {', '.join(table)}, got {choice!r}")
    return entry_of(table, choice)


def refuse_module(key: str, choice: str, allow: Collection[str]) -> None:
    """Raises InvalidInput if the module of a stored config's MODULE:NAME is not in `allow`."""
    module = choice.partition(":")[0]
    if module not in allow:
        raise InvalidInput(
            f"{key}={choice}: this run uses its author's code, which needs your permission; "
            f"if you trust it, give --allow={module} (load_run(..., allow=['{module}']))"
        )


@contextlib.contextmanager
def faults_of(*choices: str) -> Generator[None]:
    """Re-raises errors in the code of `choices` (KEY=MODULE:NAME) as InvalidInput with the line."""
    try:
        yield
    except (Stop, AssertionError):  # a broken law has its own message
        raise
    except Exception as error:
        frames = frames_in(error, *(own_file(choice.partition("=")[2]) for choice in choices))
        at = [f" at line {frame.lineno} of {Path(frame.filename).name}" for frame in frames[-1:]]
        first_line, who = str(error).partition("\n")[0], ", ".join(choices)
        raise InvalidInput(f"{who}: {type(error).__name__}{''.join(at)}: {first_line}") from error


def own_file(choice: str) -> Path | None:
    """Returns the file of MODULE:NAME, or None if it does not exist."""
    relative = choice.partition(":")[0].replace(".", "/")
    for folder in (Path.cwd(), *map(Path, sys.path)):
        for file in (folder / f"{relative}.py", folder / relative / "__init__.py"):
            if file.is_file():
                return file
    return None


def own_files(choice: str) -> list[Path]:
    """Returns the file of MODULE:NAME, and the user's other files that it imports.

    The user's files are those in the folder from which the module is imported, or in its package if
    it is installed; their imports count too. Returns [] if there is no such file.
    """
    first, module = own_file(choice), choice.partition(":")[0]
    if first is None:
        return []
    root, files = _root(first, module), [first]
    is_installed = bool({"site-packages", "dist-packages"} & {*root.parts})
    for file in files:  # the list grows meanwhile
        for parts in _imports_of(file, root):
            if parts[0] == PACKAGE.name or (is_installed and parts[0] != module.split(".")[0]):
                continue
            *above, place = itertools.accumulate(parts, Path.joinpath, initial=root)
            inits = (folder / "__init__.py" for folder in (*above[1:], place))
            for found in (*inits, place.with_suffix(".py")):
                if found.is_file() and found not in files:
                    files.append(found)
    return files


def _imports_of(file: Path, root: Path) -> Iterator[list[str]]:
    """Yields the imports in a file as lists of path parts: modules, and names that may be such."""
    package = file.relative_to(root).parent.parts
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # the file is not valid Python, so it cannot be imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = [part for part in (*above, *(node.module or "").split(".")) if part]
            yield from (parts for parts in (base, *([*base, a.name] for a in node.names)) if parts)


def hash_of_file(choice: str) -> str:
    """Returns the sha256 of the file of MODULE:NAME and its imports; "" if there is no file."""
    files = own_files(choice)
    return hashlib.sha256(b"".join(map(Path.read_bytes, files))).hexdigest() if files else ""


def hashes_of(choices: Collection[str]) -> dict[str, str]:
    """Returns the sha256 of user-defined code by MODULE:NAME; code without files is left out."""
    return {choice: digest for choice in choices if (digest := hash_of_file(choice))}


def changed_code(manifest: Mapping[str, Any], now: Mapping[str, str]) -> list[str]:
    """Returns each MODULE:NAME in a run's manifest whose hash differs from that in `now`."""
    stored = manifest.get("own_rows", {})
    return [choice for choice, digest in stored.items() if digest != now.get(choice)]

"""Errors that end a command with a message instead of a traceback."""

import importlib.util
from collections.abc import Iterable


class Stop(Exception):
    """An expected end of a command, with a message for the user; not a fault of the program."""

    exit_code = 1


class InvalidInput(Stop, ValueError):
    """Invalid config, file, prompt or run directory; nothing was lost.

    The message names the place (config key, argument or file), the given value, the allowed values
    and the nearest valid choice, in at most eight lines.
    """

    exit_code = 2


def in_one_line(error: BaseException) -> str:
    """Returns an error's type and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def how_to_install(extra: str) -> str:
    """Returns the command that installs an extra from a clone, as no index has the package."""
    return f"pip install -e '.[{extra}]' in the clone of transformer_jax"


def require(package: str, who: str, extra: str = "train") -> None:
    """Raises InvalidInput, with the extra to install, if `who` needs a package that is missing."""
    if importlib.util.find_spec(package) is None:
        raise InvalidInput(f"{who} needs {package}: {how_to_install(extra)}")


def suggest(wrong: object, candidates: Iterable[str]) -> str:
    """Returns '; did you mean X?' for the nearest candidate, or ''; see suggestions.py."""
    from transformer_jax import suggestions  # imported only if something is wrong

    return suggestions.suggest(wrong, candidates)

"""The errors that end a command with a message instead of a traceback."""

import importlib.util
from collections.abc import Iterable


class Stop(Exception):
    """Something that the person at the keyboard has to know, and no fault of the program."""

    exit_code = 1


class InvalidInput(Stop, ValueError):
    """A bad config, file, prompt or run directory: nothing was lost, here is what to change.

    The text says where (config key, argument or file), what came, what is allowed and the nearest
    valid choice, in at most eight lines.
    """

    exit_code = 2


def in_one_line(error: BaseException) -> str:
    """Returns an error's type and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


def how_to_install(extra: str) -> str:
    """Returns how an extra is installed; the package is in no index, so its clone is named."""
    return f"pip install -e '.[{extra}]' in the clone of transformer_jax"


def require(package: str, who: str, extra: str = "train") -> None:
    """Raises InvalidInput where a package is not installed that `who` needs: it names the extra."""
    if importlib.util.find_spec(package) is None:
        raise InvalidInput(f"{who} needs {package}: {how_to_install(extra)}")


def suggest(wrong: object, candidates: Iterable[str]) -> str:
    """Returns '; did you mean X?' for the nearest candidate, or nothing; see suggestions.py."""
    from transformer_jax import suggestions  # only where something is wrong

    return suggestions.suggest(wrong, candidates)

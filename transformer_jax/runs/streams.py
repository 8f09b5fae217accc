"""Standard streams that lose what they cannot take, so that printing fails no run."""

import contextlib
import os
import warnings
from collections.abc import Generator
from typing import Any, TextIO


class Tolerant:
    """A text stream that writes as much as it can.

    Characters that its encoding lacks are written as escapes. Once closed or full, it drops all.
    """

    def __init__(self, stream: TextIO | None) -> None:
        """Wraps a stream; None is that of a process without one."""
        self._stream: Any = stream or open(os.devnull, "w")  # noqa: SIM115
        if hasattr(self._stream, "reconfigure"):
            self._stream.reconfigure(errors="backslashreplace")

    def write(self, text: str) -> int:
        """Writes a text, and returns its length."""
        self._try(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        """Writes what is buffered."""
        self._try(self._stream.flush)

    def _try(self, call: Any, *arguments: str) -> None:
        try:
            call(*arguments)
        except ValueError:  # a closed file
            pass
        except OSError:
            with contextlib.suppress(OSError, ValueError):  # else Python writes again as it ends
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def plain_warnings() -> Generator[None]:
    """Lets warnings be printed as one line each, without the line of code that gave them."""
    usual = warnings.formatwarning
    warnings.formatwarning = lambda message, *_: f"warning: {message}\n"  # ty: ignore
    try:
        yield
    finally:
        warnings.formatwarning = usual

"""Orderly end of a run that receives a signal."""

import contextlib
import os
import signal
from typing import Any

from transformer_jax.errors import Stop

_SAID = b"\nstopping once the current work is finished and saved; Ctrl-C again ends immediately\n"
_BEFORE_THE_LIMIT = getattr(signal, "SIGUSR2", None)  # Windows lacks it


class Interrupted(Stop):
    """A signal was received, and the run was saved."""

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


class StopSignal:
    """Context that remembers SIGTERM, SIGINT or SIGUSR2 until the current step is done.

    A second SIGINT ends the process at once. Before a time limit, Slurm's --signal sends SIGUSR2.

    Attributes:
      signal: Number of the received signal, or None.
    """

    def __init__(self, agrees: bool = False) -> None:
        """Installs no handlers yet.

        If `agrees`, a signal counts only once `agree` has told the other processes.
        """
        self.signal: int | None = None
        self._came: int | None = None
        self._agrees = agrees

    def agree(self) -> None:
        """Shares signals between the processes of a run, so that all act on them together."""
        from transformer_jax.processes import largest

        if self._agrees:
            self.signal = largest(self._came or 0) or None

    def end(self, message: str) -> None:
        """Raises Interrupted with this message if a signal was received."""
        if self.signal is not None:
            raise Interrupted(self.signal, message)

    def __enter__(self) -> "StopSignal":
        self._before: dict[int, Any] = {}
        with contextlib.suppress(ValueError):  # only the main thread may set handlers
            for number in filter(None, (signal.SIGTERM, signal.SIGINT, _BEFORE_THE_LIMIT)):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _remember(self, number: int, _: Any) -> None:
        if self._came is not None and number == signal.SIGINT:
            os._exit(130)  # as safe as SIGKILL: files are replaced as a whole, or cut on resume
        self._came = number
        if not self._agrees:
            self.signal = number
        with contextlib.suppress(OSError):  # the signal may have interrupted print()
            os.write(2, _SAID)

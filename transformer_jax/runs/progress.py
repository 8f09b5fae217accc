"""Progress of a run: live lines on a terminal, plain lines elsewhere."""

import contextlib
import itertools
import math
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TextIO

_BLOCKS = "▁▂▃▄▅▆▇█"


def in_a_line(values: Sequence[float | None]) -> str:
    """Returns a one-line chart of at most 40 blocks, each for the mean of consecutive values.

    The first and last means are appended. Only finite numbers count; fewer than two give "".
    """
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if len(finite) < 2:
        return ""
    count = min(40, len(finite))
    ends = [len(finite) * n // count for n in range(count + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(ends)]
    low, high = min(means), max(means)
    step = (high - low) / (len(_BLOCKS) - 1) or 1.0
    blocks = "".join(_BLOCKS[round((mean - low) / step)] for mean in means)
    return f"{blocks} {means[0]:.3g} to {means[-1]:.3g}"


class Progress:
    """Display of the progress of a run; the estimated time left covers training steps only.

    On a terminal the last lines are redrawn by rich: the current step, and below it the lines of
    `details`. Elsewhere (a file, a pipe, CI) a plain line is printed every few seconds.

    Attributes:
      details: Function that returns further lines for a terminal.
    """

    def __init__(self, stream: TextIO | None = None, seconds_between_lines: float = 5.0) -> None:
        """Sets the stream to write to; None means standard output."""
        self._stream = stream or sys.stdout
        self._seconds = seconds_between_lines
        self._last_line = 0.0
        self._live = None
        self.details: Callable[[], Sequence[str]] = tuple

    def say(self, text: str) -> None:
        """Prints a permanent line."""
        self.close()
        with contextlib.suppress(BrokenPipeError):
            print(text, file=self._stream, flush=True)

    @contextlib.contextmanager
    def busy(self, what: str) -> Generator[None]:
        """Announces an activity, repeats the line every few seconds, and prints its duration."""
        started = time.monotonic()
        finished = threading.Event()

        def beat() -> None:
            while not finished.wait(1.0 if self._is_terminal else self._seconds):
                self._show(f"{what} ... {time.monotonic() - started:.0f} s")

        self._show(f"{what} ...")
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            finished.set()
            thread.join()
        self.say(f"{what}: {time.monotonic() - started:.1f} s")

    def note(self, text: str) -> None:
        """Shows the current activity, on a terminal only."""
        if self._is_terminal:
            self._show(text)

    def step(self, step: int, steps: int, loss: float, speed: str, seconds_left: float) -> None:
        """Shows the updates so far and in total, the recent mean loss, the speed and the time left.

        `loss` is in nats per target, and `speed` is text that includes the unit.
        """
        line = (
            f"step {step:>{len(str(steps))}}/{steps}  loss {loss:.4f}  "
            f"{speed}  ETA {_clock(seconds_left)}"
        )
        if self._is_terminal:
            full = round(20 * step / steps)
            bar = "━" * full + "╌" * (20 - full)
            self._show("\n".join([f"{bar} {line}", *filter(None, self.details())]))
        elif time.monotonic() - self._last_line >= self._seconds or step == steps:
            self._last_line = time.monotonic()
            self._show(line)

    def close(self) -> None:
        """Ends the live display, which restores the terminal."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    @property
    def _is_terminal(self) -> bool:
        return self._stream.isatty()

    def _show(self, text: str) -> None:
        """Redraws the live lines on a terminal, or prints plain ones."""
        if not self._is_terminal:
            self.say(text)
            return
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        if self._live is None:
            console = Console(file=self._stream)
            self._live = Live(console=console, transient=True, auto_refresh=False)
            self._live.start()
        self._live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)


class Silent(Progress):
    """Progress that shows nothing, for tests and for training from Python."""

    def _show(self, text: str) -> None: ...

    def say(self, text: str) -> None:
        """Prints nothing."""


def _clock(seconds: float) -> str:
    """Returns a time as M:SS or H:MM:SS; a dash if it is negative or unknown."""
    if not 0 <= seconds < 1e9:
        return "-"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"

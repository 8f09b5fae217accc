"""The directory of a run that several processes train: the first writes it, others a scratch copy.

So all of them are the same code with the same files before them, and decide the same. Checkpoints
alone are one folder for all, since each process holds a part of them.
"""

import contextlib
import shutil
import tempfile
import zlib
from collections.abc import Generator
from pathlib import Path

from transformer_jax.errors import InvalidInput
from transformer_jax.processes import (
    is_first,
    largest,
    others_missed,
    others_watched,
    wait_for_all,
)
from transformer_jax.runs.directory import RunDirectory

_READ = ("config.json", "tokenizer.json", "manifest.json", "metrics.jsonl", "STATUS")


class Scratch(RunDirectory):
    """A copy of a run's small files, with the checkpoints of the run itself."""

    def __init__(self, path: Path, shared: RunDirectory) -> None:
        """Copies nothing.

        Args:
          path: of the copy.
          shared: the run.
        """
        super().__init__(path)
        self._shared = shared

    def file(self, name: str) -> Path:
        """Returns the path of one of its files or folders."""
        return self._shared.file(name) if name == "checkpoints" else super().file(name)


@contextlib.contextmanager
def directory_of_process(shared: RunDirectory) -> Generator[RunDirectory]:
    """Gives each process of a run its directory: the run's to the first, a copy to the others.

    While it is open each ends where another does.

    Raises:
      OtherProcessEnded: another one did.
      InvalidInput: the processes do not see the same folder.
    """
    seen = 0
    for name in _READ:
        file = shared.file(name)
        seen = zlib.crc32(file.read_bytes(), seen) if file.exists() else seen + 1
    seen &= 0x7FFFFFFF  # a number that jax's 32 bits hold
    if {largest(seen), -largest(-seen)} != {seen}:
        raise InvalidInput(
            f"--workdir={shared.path}: the processes of this run see different files there; "
            "expected a folder that all hosts share"
        )

    def say_failed(reason: str) -> None:
        if is_first():
            shared.write_status("failed", reason)

    with others_missed(), others_watched(say_failed), contextlib.ExitStack() as stack:
        own = shared
        if not is_first():
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name in _READ:
                if shared.file(name).exists():
                    shutil.copy(shared.file(name), place / name)
            own = Scratch(place, shared)
        wait_for_all("every process has read the run's files")
        yield own

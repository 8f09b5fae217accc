"""The directory of a run that several processes train: the first writes it, others a scratch copy.

So all of them are the same code with the same files before them, and decide the same. Checkpoints
alone are one folder for all, since each process holds a part of them.
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path

from ml_collections import ConfigDict

from transformer_jax.config_files import to_json
from transformer_jax.processes import (
    agreed,
    is_first,
    others_missed,
    others_watched,
    refuse_other,
    wait_for_all,
)
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.interruption import Interrupted
from transformer_jax.runs.provenance import surroundings

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
def directory_of_process(shared: RunDirectory, config: ConfigDict) -> Generator[RunDirectory]:
    """Gives each process of a run its directory: the run's to the first, a copy to the others.

    While it is open each ends where another does.

    Args:
      shared: the run's.
      config: of the run.
    Raises:
      InvalidInput: the processes have other configs, or do not see the same folder.
      OtherProcessEnded: another one did.
    """
    own = shared

    def say_failed(reason: str) -> None:
        if is_first():
            shared.write_status("failed", reason)

    with others_missed(), others_watched(say_failed), contextlib.ExitStack() as stack:
        refuse_other("configs", to_json(config))
        around, _ = surroundings()
        refuse_other("code (by git) or packages", repr([around["packages"], around["git"]]))
        _refuse_other_folder(shared)
        if not is_first():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name in _READ:
                if shared.file(name).exists():
                    shutil.copy(shared.file(name), folder / name)
            own = Scratch(folder, shared)
        wait_for_all("every process has read the run's files")
        try:
            yield own
        except Interrupted:  # in all of them; the first may still be at work
            wait_for_all("the run is interrupted")
            raise
        wait_for_all("the run has ended")


def _refuse_other_folder(shared: RunDirectory) -> None:
    """Raises InvalidInput where processes do not see one folder; its files have to be the same."""
    mark = shared.path / f".processes-{agreed(os.getpid())}"
    if is_first():
        with contextlib.suppress(OSError):  # it is told where the folder is locked
            shared.path.mkdir(parents=True, exist_ok=True)
            mark.touch()
    wait_for_all("there is a mark in the folder")
    files = [mark, *map(shared.file, _READ)]
    seen = [(file.name, file.read_bytes()) for file in files if file.is_file()]
    refuse_other(f"folders behind --workdir={shared.path}", repr(seen))
    if is_first():
        mark.unlink(missing_ok=True)

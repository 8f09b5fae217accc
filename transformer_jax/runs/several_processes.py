"""Coordination of the processes of one run, which agree, fail together and write one folder.

All processes run the same code with the same files and make the same decisions. The first writes
the run's directory, and the others write scratch copies of it. Only checkpoints are shared by all,
since each process writes a part of them.
"""

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils
from ml_collections import ConfigDict

from transformer_jax.config_files import to_json
from transformer_jax.errors import InvalidInput, Stop
from transformer_jax.processes import SILENT_SECONDS, agreed, is_first, largest, wait_for_all
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.interruption import Interrupted
from transformer_jax.runs.provenance import surroundings

_OWN_ERRORS = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT", "UNIMPLEMENTED")  # of this process alone
_BARRIERS = ("async_write_complete", "async_commit_complete")  # of orbax, in this order
_COUNT = itertools.count()
_LONGEST_WRITE = 20 * 60_000  # milliseconds, as in orbax
_A_DAY = 24 * 3_600_000  # milliseconds; a dead process is found sooner; see _others_watched
_READ = ("config.json", "tokenizer.json", "manifest.json", "metrics.jsonl", "STATUS")


class OtherProcessEnded(Stop):
    """Another process of the run was killed, failed, or cannot be reached."""


@contextlib.contextmanager
def _others_missed() -> Generator[None]:
    """Raises OtherProcessEnded if the code inside fails because another process is gone."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).partition("\n")[0][:200]
        if jax.process_count() == 1 or reason.startswith(_OWN_ERRORS):
            raise
        raise OtherProcessEnded(
            f"another process of this run has ended or cannot be reached: {reason}\n"
            "start all of them again to resume from the last checkpoint"
        ) from error


@contextlib.contextmanager
def _others_watched(say: Callable[[str], None]) -> Generator[None]:
    """Ends this process, passing `say` the reason, if another is silent for SILENT_SECONDS.

    jax would also end this process, but later and with a trace of jax's own code. An operation over
    all devices never returns if those of one host are gone.
    """
    client: Any = multihost_utils.distributed.global_state.client  # has no public name
    if jax.process_count() == 1 or client is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        seen: dict[str, tuple[str, float]] = {}  # process -> its last beat, and when it came
        for beat in itertools.count():
            now = time.monotonic()
            with contextlib.suppress(jax.errors.JaxRuntimeError):  # jax reports this itself
                client.key_value_set(f"alive/{jax.process_index()}", str(beat), True)
                for key, word in client.key_value_dir_get("alive/"):
                    if seen.get(key, ("", now))[0] != word:
                        seen[key] = (word, now)
            silent = [key for key, (_, when) in seen.items() if now - when > SILENT_SECONDS]
            if silent:
                # The first process keeps the beats: if even one's own is stale, the first is gone.
                gone = "alive/0" if f"alive/{jax.process_index()}" in silent else silent[0]
                reason = f"process {gone.rpartition('/')[2]} of this run has ended"
                with contextlib.suppress(Exception):  # a full disk must not prevent the exit
                    say(reason)
                print(f"error: {reason}; start all of them again to resume", file=sys.stderr)
                sys.stderr.flush()
                os._exit(1)  # the main thread waits for the process that has ended
            if ended.wait(1.0):
                return

    thread = threading.Thread(target=watch, name="others watched", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(timeout=5.0)


def refuse_other(what: str, text: str) -> None:
    """Raises InvalidInput, naming `what`, in all processes unless all have the same `text`."""
    own = zlib.crc32(text.encode()) & 0x7FFFFFFF
    if largest(own) != -largest(-own):
        raise InvalidInput(
            f"the processes of this run have different {what}; expected one command for all, on "
            "hosts that share the same files"
        )


class Barriers:
    """Barriers between the processes of a run while orbax writes one checkpoint.

    A process that failed to write enters the rest too, or the others wait for 20 minutes.
    """

    def __init__(self) -> None:
        from orbax.checkpoint import multihost

        self._wait: Any = multihost.get_barrier_sync_fn()
        self._name, self._left = f"checkpoint-{next(_COUNT)}", list(_BARRIERS)
        self._questions = itertools.count()

    def __call__(self, *, key: str, timeout_ms: int) -> None:
        """Waits at a barrier; orbax calls this with its own key."""
        name = next((name for name in self._left if name in key), None)
        if name is not None:
            self._left.remove(name)
            key = f"{self._name}.{name}"
        self._wait(key=key, timeout_ms=timeout_ms)

    def any(self, flag: bool) -> bool:
        """Returns whether a flag is set in any process.

        The flags are exchanged through the first process's key-value service, not through devices,
        so that one thread may ask while another computes.
        """
        client: Any = multihost_utils.distributed.global_state.client
        question = f"{self._name}/{next(self._questions)}"
        client.key_value_set(f"{question}/{jax.process_index()}", str(int(flag)))
        others = (f"{question}/{number}" for number in range(jax.process_count()))
        return any(client.blocking_key_value_get(key, _A_DAY) == "1" for key in others)

    def pass_the_rest(self) -> None:
        """Enters the remaining barriers."""
        for name in [*self._left]:
            self(key=name, timeout_ms=_LONGEST_WRITE)


class _Scratch(RunDirectory):
    """A scratch copy of a run's small files, for a process that is not the first.

    The run's checkpoints are shared, since every process writes a part of them.
    """

    def __init__(self, path: Path, shared: RunDirectory) -> None:
        super().__init__(path)
        self._shared = shared

    def file(self, name: str) -> Path:
        return self._shared.file(name) if name == "checkpoints" else super().file(name)


@contextlib.contextmanager
def directory_of_process(shared: RunDirectory, config: ConfigDict) -> Generator[RunDirectory]:
    """Yields this process's directory: the run's own for the first process, else a scratch copy.

    While the context is open, each process ends if another one does.

    Raises:
      InvalidInput: The processes have different configs, or do not share the folder.
      OtherProcessEnded: Another process ended.
    """
    own = shared

    def say_failed(reason: str) -> None:
        if is_first():
            shared.write_status("failed", reason)

    with _others_missed(), _others_watched(say_failed), contextlib.ExitStack() as stack:
        refuse_other("configs", to_json(config))
        around, _ = surroundings()
        refuse_other("code (by git) or packages", repr([around["packages"], around["git"]]))
        _refuse_other_folder(shared)
        if not is_first():
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            for name in _READ:
                if shared.file(name).exists():
                    shutil.copy(shared.file(name), folder / name)
            own = _Scratch(folder, shared)
        wait_for_all("every process has read the run's files")
        try:
            yield own
        except Interrupted:  # raised in all processes; the first may still be at work
            wait_for_all("the run is interrupted")
            raise
        wait_for_all("the run has ended")


def _refuse_other_folder(shared: RunDirectory) -> None:
    """Raises InvalidInput if the processes do not share one folder."""
    mark = shared.path / f".processes-{agreed(os.getpid())}"
    if is_first():
        with contextlib.suppress(OSError):  # reported when the folder is locked
            shared.path.mkdir(parents=True, exist_ok=True)
            mark.touch()
    wait_for_all("there is a mark in the folder")
    files = [mark, *map(shared.file, _READ)]
    seen = [(file.name, file.read_bytes()) for file in files if file.is_file()]
    refuse_other(f"folders at --workdir={shared.path}", repr(seen))
    if is_first():
        mark.unlink(missing_ok=True)

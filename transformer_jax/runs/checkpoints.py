"""Checkpoints that are complete or absent: orbax stores the arrays, a manifest everything else.

    checkpoints/00000500/state/...       written by orbax
    checkpoints/00000500/manifest.json   step, shape and dtype of every leaf, sha256 of every file

A checkpoint is written under a temporary name and renamed when it is complete, so no killed process
leaves an incomplete one. Orbax silently restores a file with a flipped bit, casts a wrong dtype and
takes an empty stray folder for the newest step. So every file is hashed before it is trusted, every
leaf is compared with the model's, and only folders with a manifest count.
"""

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import SingleDeviceSharding

from transformer_jax.errors import InvalidInput, Stop
from transformer_jax.paths import by_path
from transformer_jax.processes import agreed, is_first, wait_for_all
from transformer_jax.runs.files import DAMAGED, WRITING, entries, inside, walk

_FORMAT = 1


class Restored(NamedTuple):
    """A restored checkpoint: the number of updates, and the state and plain data saved then."""

    step: int
    state: Any
    extra: dict


class SaveFailed(Stop):
    """A checkpoint could not be written; earlier ones are intact."""


class NonFiniteState(SaveFailed):
    """A number in the state is not finite: training has diverged."""


class Checkpoints:
    """The checkpoints of one run.

    Attributes:
      unsaved: Error that kept `try_to_save` from writing the newest state, or None.
    """

    def __init__(self, folder: Path, keep: int = 2, say: Callable[[str], None] = print) -> None:
        """Does not access the disk yet.

        Args:
          folder: Folder of the checkpoints.
          keep: Number of newest checkpoints to keep.
          say: Receives a line about each failure and each skipped, moved or removed folder.
        """
        self.unsaved: SaveFailed | None = None
        self._folder = folder.absolute()
        self._keep = keep
        self._say = say
        self._being_written: Future[None] | None = None

    def steps(self) -> list[int]:
        """Returns the steps that have a checkpoint with a manifest, ascending."""
        return [int(entry.name) for entry in entries(self._folder) if _is_checkpoint(entry)]

    def _of_step(self, step: int) -> Path:
        return self._folder / f"{step:08d}"

    def tidy(self) -> None:
        """Removes incomplete checkpoints, sets aside damaged ones and reports unrelated files."""
        wait_for_all("nobody writes a checkpoint")
        if not is_first():
            return
        for entry in entries(self._folder):
            if entry.name.startswith(WRITING):
                shutil.rmtree(entry, ignore_errors=True)
                self._say(f"checkpoints: removed {entry.name}, left by a process that was killed")
            elif _is_step(entry.name) and not _is_checkpoint(entry):
                self._set_aside(entry, "it has no manifest.json")
            elif not _is_step(entry.name) and not entry.name.startswith(DAMAGED):
                self._say(f"checkpoints: ignored {entry.name}, which is not a checkpoint")

    def save(self, step: int, state: Any, extra: dict) -> None:
        """Writes a checkpoint and waits until it is complete; see begin_save and settle."""
        self.begin_save(step, state, extra)
        self.settle()

    def begin_save(self, step: int, state: Any, extra: dict) -> None:
        """Copies a state and writes it in the background; `settle` waits for the write.

        One checkpoint is written at a time. If there are several processes, each writes its part,
        and they agree on whether all succeeded.

        Args:
          step: Number of updates so far.
          state: Tree of arrays, which may be donated once this method returns.
          extra: Plain data that JSON can represent.
        Raises:
          SaveFailed: The disk refused the write or a leaf is not finite, now or in the previous
            save. Nothing incomplete is left, and earlier checkpoints are intact.
        """
        self.settle()
        final = self._of_step(step)
        if agreed(_is_checkpoint(final)):
            return  # the same step of the same run: the same bits
        _refuse_non_finite(step, state)
        writing = self._folder / f"{WRITING}{final.name}-{agreed(os.getpid())}"
        leaves, size = _leaves(state), sum(leaf.nbytes for leaf in jax.tree.leaves(state))
        barriers = None
        if jax.process_count() > 1:
            from transformer_jax.runs.several_processes import Barriers

            barriers = Barriers()
        orbax = _checkpointer(barriers)

        def do(work: Callable[[], Any], by_all: bool = False) -> None:
            failed: Exception | None = None
            try:
                if by_all or is_first():
                    work()
            except Exception as error:  # a full disk raises errors of many kinds
                failed = error
                if by_all and barriers is not None:
                    barriers.pass_the_rest()
                if isinstance(error, ImportError):
                    raise
            has_failed = failed is not None
            if has_failed if barriers is None else barriers.any(has_failed):
                # If any process failed, all of them abort.
                if is_first():
                    shutil.rmtree(writing, ignore_errors=True)
                raise SaveFailed(_why_not_saved(self._folder, step, size, failed)) from failed

        def prepare() -> None:
            writing.mkdir(parents=True)
            disk = shutil.disk_usage(writing)
            if disk.total and disk.free < size:  # orbax would print dozens of tracebacks
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def wait_for_arrays() -> None:
            with orbax:
                orbax.wait_until_finished()

        def complete() -> None:
            manifest = {
                "format": _FORMAT,
                "step": step,
                "leaves": leaves,
                "files": _hashes(writing / "state"),
                "extra": extra,
            }
            _write_manifest(writing / "manifest.json", manifest)
            for path in (*writing.rglob("*"), writing):
                _sync(path)
            os.rename(writing, final)
            _sync(self._folder)

        def finish() -> None:
            do(wait_for_arrays, by_all=True)
            do(complete)

        do(prepare)
        # On a CPU orbax reads the arrays in place; if they are donated meanwhile, jax copies them.
        do(lambda: orbax.save(writing / "state", state), by_all=True)
        thread = ThreadPoolExecutor(1, "checkpoint")
        self._being_written = thread.submit(finish)
        thread.shutdown(wait=False)

    def settle(self) -> None:
        """Waits for the background write, then removes checkpoints beyond `keep`.

        Raises:
          SaveFailed: See begin_save.
        """
        if self._being_written is None:
            return
        try:
            self._being_written.result()
        finally:  # if the wait was interrupted, the write goes on
            if self._being_written.done():
                self._being_written = None
        self._remove_old()

    def try_to_save(self, step: int, state: Any, extra: dict, must: bool) -> None:
        """Calls begin_save, and settle if `must`; a failure is reported and kept in `unsaved`."""
        self._try(self.settle)  # reports why the previous one could not be written
        self.unsaved = None
        self._try(lambda: self.begin_save(step, state, extra))
        if must:
            self._try(self.settle)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except SaveFailed as error:
            self.unsaved = error
            self._say(f"NOT SAVED: {error}")

    @contextlib.contextmanager
    def settled(self) -> Generator[None]:
        """Waits for the background write when the context ends, even after an error."""
        try:
            yield
        finally:
            self._try(self.settle)

    def restore(self, template: Any, read_only: bool = False) -> Restored | None:
        """Returns the newest intact checkpoint, or None if there are none, intact or damaged.

        A damaged checkpoint is reported and set aside, and the previous one is tried.

        Args:
          template: Tree of arrays or ShapeDtypeStructs with the expected shapes and placement.
            Leaves without a placement go to this process's first device.
          read_only: Whether to leave damaged checkpoints in place.
        Raises:
          InvalidInput: No checkpoint is intact, or the newest is unreadable or of other shapes.
        """
        found = self.newest_whole(read_only) if is_first() else None
        step = agreed(-1 if found is None else found)
        if step >= 0:
            return self._read(step, template)
        damaged = [entry for entry in entries(self._folder) if entry.name.startswith(DAMAGED)]
        if count := len(damaged) + len(self.steps()):
            raise InvalidInput(
                f"{self._folder}: no checkpoint is intact; damaged: {count}\n"
                "restore an intact one, or remove the folder to train again from the start"
            )
        return None

    def _read(self, step: int, template: Any) -> Restored:
        path = self._of_step(step)
        manifest = _read_manifest(inside(path, "manifest.json"))
        _refuse_other_leaves(path, manifest["leaves"], _leaves(template))
        with _checkpointer() as orbax:
            state = orbax.restore(inside(path, "state"), jax.tree.map(_placed, template))
        return Restored(manifest["step"], state, manifest["extra"])

    def earlier(self, template: Any, step: int, count: int) -> list[Restored]:
        """Returns the `count` newest intact checkpoints before a step; writes nothing.

        Raises:
          InvalidInput: There are fewer.
        """
        before = [s for s in reversed(self.steps()) if s < step]
        intact = [s for s in before if damage_of(self._of_step(s)) is None]
        if len(intact) < count:
            raise InvalidInput(
                f"average={count + 1}: expected at most {len(intact) + 1}, the number of intact "
                f"checkpoints in {self._folder}; checkpoint.keep and checkpoint.every decide it"
            )
        return [self._read(s, template) for s in intact[:count]]

    def newest_whole(self, read_only: bool = True) -> int | None:
        """Returns the step of the newest intact checkpoint, or None if none is intact.

        Damaged checkpoints are set aside, unless `read_only`.
        """
        for step in reversed(self.steps()):
            path = self._of_step(step)
            damage = damage_of(path)
            if damage is None:
                return step
            if read_only:
                self._say(f"checkpoints: SKIPPED {path.name}: {damage}")
            else:
                self._set_aside(path, damage)
        return None

    def _set_aside(self, path: Path, why: str) -> None:
        aside = path.with_name(DAMAGED + path.name)
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(path, aside)
        self._say(f"checkpoints: SKIPPED {path.name}: {why}; moved to {aside.name}")

    def _remove_old(self) -> None:
        for step in self.steps()[: -self._keep] if is_first() else ():
            old = self._of_step(step)
            doomed = self._folder / f"{WRITING}old-{old.name}"
            try:
                os.rename(old, doomed)  # now it is gone; a kill below leaves no partial one
                shutil.rmtree(doomed)
            except OSError as error:
                self._say(f"checkpoints: could not remove {old.name}: {error}")


def damage_of(path: Path) -> str | None:
    """Returns a description of the damage to a checkpoint, or None if intact; reads every byte.

    Raises:
      InvalidInput: The files, which may be intact, cannot be read, or not by this version.
    """
    try:
        manifest = _read_manifest(inside(path, "manifest.json"))
        expected, hashes = manifest["files"], _hashes(inside(path, "state"))
    except InvalidInput:
        raise
    except OSError as error:
        raise InvalidInput(f"{path}: cannot be read: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        return f"manifest.json is damaged: {error}"
    for name in sorted(expected.keys() | hashes.keys()):
        if expected.get(name) != hashes.get(name):
            digest, actual = (names.get(name, "no such file")[:12] for names in (expected, hashes))
            return f"state/{name} was changed: expected sha256 {digest}, found {actual}"
    return None


def _placed(leaf: Any) -> jax.ShapeDtypeStruct:
    """Returns the shape, dtype and placement with which to restore a leaf of the template."""
    sharding = getattr(leaf, "sharding", None) or SingleDeviceSharding(jax.local_devices()[0])
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def _checkpointer(barriers: Callable | None = None) -> Any:
    import orbax.checkpoint as ocp  # 25 MB, needed only here

    return ocp.StandardCheckpointer(async_options=ocp.AsyncOptions(barrier_sync_fn=barriers))


def _is_step(name: str) -> bool:
    return name.isdigit() and len(name) == 8


def _is_checkpoint(entry: Path) -> bool:
    return _is_step(entry.name) and (entry / "manifest.json").is_file()


def _leaves(tree: Any) -> dict[str, list]:
    return {name: [list(leaf.shape), str(leaf.dtype)] for name, leaf in by_path(tree).items()}


@jax.jit
def _all_finite(array: jax.Array) -> jax.Array:
    return jnp.isfinite(array).all()


def _refuse_non_finite(step: int, state: Any) -> None:
    for name, leaf in by_path(state).items():
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            continue
        is_here = getattr(leaf, "is_fully_addressable", True)
        if not (np.isfinite(np.asarray(leaf)).all() if is_here else _all_finite(leaf)):
            raise NonFiniteState(f"step {step}: {name} is not finite; earlier checkpoints are kept")


def _refuse_other_leaves(path: Path, stored: dict, expected: dict) -> None:
    """Raises InvalidInput for a checkpoint of a different model, naming up to five differences."""

    def spelled(leaf: list | None) -> str:
        return "nothing" if leaf is None else f"{tuple(leaf[0])} {leaf[1]}"

    lines = [
        f"  {name}: stored {spelled(stored.get(name))}, expected {spelled(expected.get(name))}"
        for name in dict.fromkeys([*expected, *stored])
        if stored.get(name) != expected.get(name)
    ]
    if lines:
        more = f" ({len(lines)} in all)" if len(lines) > 5 else ""
        raise InvalidInput(
            "\n".join([f"{path}: its arrays do not match this model{more}:", *lines[:5]])
        )


def _hashes(folder: Path) -> dict[str, str]:
    hashes = {}
    for path in walk(folder):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        hashes[str(path.relative_to(folder))] = digest.hexdigest()
    return hashes


def _write_manifest(path: Path, manifest: dict) -> None:
    body = json.dumps(manifest, sort_keys=True)
    seal = hashlib.sha256(body.encode()).hexdigest()
    path.write_text(f'{{"sha256": "{seal}",\n"manifest": {body}}}\n')


def _read_manifest(path: Path) -> dict:
    stored = json.loads(path.read_text())
    manifest = stored["manifest"]
    body = json.dumps(manifest, sort_keys=True)
    if hashlib.sha256(body.encode()).hexdigest() != stored["sha256"]:
        raise ValueError("its own sha256 does not match")
    if manifest["format"] != _FORMAT:
        raise InvalidInput(
            f"{path}: written in format {manifest['format']}, but this version reads {_FORMAT}; "
            "use the version of transformer_jax that the run's manifest.json names"
        )
    return manifest


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _why_not_saved(folder: Path, step: int, size: int, error: Exception | None) -> str:
    free = shutil.disk_usage(folder if folder.is_dir() else folder.parent).free
    reason = "another process could not write"
    if error is not None:
        text = str(error).partition("\n")[0] or type(error).__name__
        reason = text.rpartition(": ")[2] if "os_error_code" in text else text[:200]
    return (
        f"{folder}: the checkpoint of step {step} could not be written ({reason}); "
        f"it needs about {size:,} bytes, {free:,} are free; earlier checkpoints are kept"
    )

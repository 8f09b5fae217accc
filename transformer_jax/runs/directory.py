"""A run as a directory of plain files.

config.json      the resolved config
manifest.json    versions, git revision, device, hashes of data and tokenizer, launches
STATUS           running | done | failed | interrupted, when, and at which step
tokenizer.json   the tokenizer, if there is text
metrics.jsonl    one object per line
evaluation.json  final evaluation of each split, with its settings
sequences.npz    loss, weight, ... of each evaluated example
samples/  checkpoints/  loss.png  diff.patch
"""

import contextlib
import datetime
import json
import os
import shutil
import socket
import sys
import traceback
import warnings
from collections.abc import Collection, Generator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from transformer_jax import config_files as configs
from transformer_jax.data.tokenizers import Tokenizer, load_tokenizer, tokenizer_text
from transformer_jax.errors import InvalidInput, Stop, in_one_line, suggest
from transformer_jax.own import chosen, intervenes, names_own
from transformer_jax.resolve import stated
from transformer_jax.runs.files import (
    DISK_ERRORS,
    inside,
    parsed_object,
    refuse_foreign_files,
    refuse_version_1,
    replace,
    rows_of,
    write_json,
)
from transformer_jax.runs.interruption import Interrupted
from transformer_jax.runs.provenance import NUMERICS, surroundings

# Entries of the manifest that may differ between launches of a run.
_CHANGING = ("numerics", "packages", "device", "git", "mesh")
_BEFORE_CONFIG = ("STATUS", "error.txt", "diff.patch")  # may be left by a launch that failed early


class InUse(InvalidInput):
    """Another process is training in this directory."""


class Status(NamedTuple):
    """Content of STATUS: a word such as `done`, time (ISO 8601), updates, reason for a failure."""

    word: str = "missing"
    when: str = ""
    step: int = 0
    reason: str = ""


def parse_status(text: str) -> Status:
    """Parses `WORD TIME step N REASON`, of which any part may be missing."""
    word, when, _, step, reason = [*text.split(maxsplit=4), *[""] * 5][:5]
    return Status(word or "missing", when, int(step) if step.isdecimal() else 0, reason.strip())


class RunDirectory:
    """The files of one run in the directory `path`, after `step` updates."""

    def __init__(self, path: str | Path) -> None:
        """Creates no files yet."""
        self.path = Path(path).expanduser()
        self.step = 0
        self._is_running = False  # whether this launch has written `running`

    def file(self, name: str) -> Path:
        """Returns the path of one of the run's files or folders; see files.inside."""
        return inside(self.path, name)

    # ---- opening

    def refuse_other_config(self, config: ConfigDict) -> None:
        """Raises InvalidInput unless the directory is new, empty, or holds a run of this config."""
        if not os.path.lexists(self.path / "config.json"):
            was_begun = (self.path / ".lock").exists()
            allowed = _BEFORE_CONFIG + (("tokenizer.json",) if was_begun else ())
            refuse_foreign_files(self.path, "--workdir", "run", allowed)
            return
        stored, may = self.config(), (*configs.CADENCE, *configs.PLACEMENT)
        if not any(map(intervenes, (*stored.hooks.functions, *config.hooks.functions))):
            may += ("hooks.",)
        if changed := configs.differences(stored, config, but=may):
            raise InvalidInput(
                f"--workdir={self.path}: it holds a run with a different config\n"
                + _listed(changed, "there", "now", 5)
                + "choose another --workdir, give the stored config to resume, or give --extend to "
                "continue with the new config"
            )

    def refuse_foreign_checkpoint(self, step: int, extra: Mapping[str, Any]) -> None:
        """Raises InvalidInput unless a checkpoint was saved by a run of this config."""
        if "config" not in extra:
            return
        origin = f"{self.path}/checkpoints/{step:08d}"
        keys = self.manifest().get("stated")
        saved = configs.from_json(json.dumps(extra["config"]), origin, keys)
        may = (*configs.CADENCE, *configs.PLACEMENT, *configs.EXTENDABLE, "hooks.")
        if changed := configs.differences(saved, self.config(), but=may):
            raise InvalidInput(
                f"{origin}: it was saved with a different config from that of this run\n"
                + _listed(changed, "when it was saved", "in config.json", 4)
                + "restore the files that were copied or edited; to start from another run's "
                "weights give initial.weights"
            )

    @contextlib.contextmanager
    def failures_recorded(self) -> Generator[None]:
        """Writes `failed` and the reason to STATUS if the code inside raises an error.

        The traceback of an unexpected error is written to error.txt.

        Raises:
          Stop: The run's own files could not be written, e.g. the disk is full.
        """
        try:
            yield
        except Interrupted:
            raise
        except BaseException as error:
            if isinstance(error, InvalidInput) and not self._is_running:
                raise  # nothing began, so nothing failed
            with contextlib.suppress(OSError):
                if not isinstance(error, Stop):
                    self.write_text("error.txt", traceback.format_exc())
                self.write_status("failed", in_one_line(error))
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                free = shutil.disk_usage(self.path).free
                raise Stop(
                    f"{self.path}: the run's files could not be written ({error.strerror}, "
                    f"{free:,} bytes free); its checkpoints are kept\n"
                    "free some space, then resume with the same command"
                ) from error
            raise

    @contextlib.contextmanager
    def locked(self, flag: str = "--workdir") -> Generator[None]:
        """Locks the directory against other processes; the system frees the lock of a dead process.

        Raises:
          InvalidInput: Another process is training here, the folder, which `flag` named, is not
            writable, or the system lacks fcntl.
        """
        try:
            import fcntl  # not needed to read runs, so systems may lack it
        except ImportError as error:
            raise InvalidInput(
                "training locks its directory with fcntl, which this system lacks; "
                "on Windows, train in WSL; sample, evaluate and compare work here"
            ) from error
        try:
            str(self.path).encode()
            if found := set("[]\\") & set(str(self.path.absolute())):  # orbax fails on them
                raise InvalidInput(f"{flag}={self.path}: expected a path without {min(found)}")
            self.path.mkdir(parents=True, exist_ok=True)
            lock = self.file(".lock").open("a+")
        except OSError as error:
            why = "a link to nothing" if self.path.is_symlink() else error.strerror
            raise InvalidInput(f"{flag}={self.path}: not writable: {why}") from error
        except UnicodeEncodeError as error:
            raise InvalidInput(f"{flag}={str(self.path)!r}: expected a path in UTF-8") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                lock.seek(0)
                raise InUse(
                    f"{flag}={self.path}: another process is training here: "
                    f"{lock.read().strip()}\nwait for it, stop it, or choose another {flag}"
                ) from error
            lock.truncate(0)
            lock.write(f"pid {os.getpid()} on {socket.gethostname()}, since {now()}\n")
            lock.flush()
            yield

    # ---- reading

    def config(self) -> ConfigDict:
        """Returns the stored config, checked against the options; nothing it names is imported."""
        # Reading the manifest refuses a run of version 1 with its own message.
        keys = self.manifest().get("stated") if self.has_begun() else None
        return configs.from_json(self._text("config.json"), str(self.path / "config.json"), keys)

    def manifest(self) -> dict:
        """Returns the content of manifest.json."""
        path = self.path / "manifest.json"
        manifest = parsed_object(self._text(path.name), path)
        refuse_version_1(manifest, path)
        if not isinstance(manifest.get("data"), dict):
            raise InvalidInput(f"{path}: expected an entry `data` that identifies the data")
        return manifest

    def evaluation(self) -> dict[str, Any]:
        """Returns the final scores of each split with their settings; {} before the run ends."""
        path = self.file("evaluation.json")
        return parsed_object(self._text(path.name), path) if path.exists() else {}

    def has_scores(self) -> bool:
        """Returns whether the final scores exist and can be read."""
        try:
            return bool(self.evaluation())
        except InvalidInput:
            return False

    def status(self) -> str:
        """Returns the first word of STATUS, or `missing` if there is no such file."""
        return self.read_status().word

    def read_status(self) -> Status:
        """Returns the content of STATUS."""
        path = self.file("STATUS")
        return parse_status(path.read_text("utf-8", "replace") if path.exists() else "")

    def has_begun(self) -> bool:
        """Returns whether a launch has written the manifest."""
        return self.file("manifest.json").exists()

    def tokenizer(self, allow: Collection[str] = ()) -> Tokenizer | None:
        """Returns the run's tokenizer, or None before its first launch or if there is no text.

        `allow` has the user-defined modules that may be imported.
        """
        if not self.has_begun() or not self.manifest()["data"].get("tokenizer_sha256"):
            return None
        key, choice = "data.tokenizer", self.config().data.tokenizer
        own = chosen({}, choice, key, allow) if names_own(key, choice) else None
        return load_tokenizer(self.file("tokenizer.json"), own)

    def sizes(self) -> dict[str, Any]:
        """Returns the sizes of the data that the model depends on, e.g. vocab_size."""
        sizes = self.manifest().get("sizes", {})
        return {name: tuple(v) if isinstance(v, list) else v for name, v in sizes.items()}

    def metrics(self) -> list[dict]:
        """Returns the rows of metrics.jsonl; an incomplete last line is left out.

        Warns of others, which are damaged.
        """
        path = self.file("metrics.jsonl")
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        rows = [row for row in rows_of(text) if isinstance(row.get("step"), int)]
        if (lost := text.count("\n") - len(rows)) > 0:
            warnings.warn(f"{path}: {lost} damaged lines are left out", stacklevel=2)
        return rows

    def _text(self, name: str) -> str:
        try:
            return self.file(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = str(error) if self.path.exists() else "no such folder"
            if (self.path / "study.json").exists():
                why = "it is a study, whose runs are its cells; see `runs ls`"
            others = self.path.parent.glob("*/config.json")
            near = suggest(self.path.name, [other.parent.name for other in others])
            raise InvalidInput(f"--workdir={self.path}: no run here: {why}{near}") from error

    # ---- writing

    def write_status(self, word: str, reason: str = "") -> None:
        """Replaces STATUS; the time in it is the heartbeat of the run."""
        self._is_running |= word == "running"
        self.write_text("STATUS", f"{word} {now()} step {self.step} {reason}".rstrip() + "\n")

    def write_json(self, name: str, value: Any) -> Path:
        """Writes or replaces a JSON file of the run, and returns its path."""
        return write_json(self.path, name, value)

    def write_text(self, name: str, value: str) -> Path:
        """Writes or replaces a text file of the run, and returns its path."""
        return replace(self.path, name, value)

    def begin(
        self, config: ConfigDict, tokenizer: Tokenizer | None, data: dict, facts: dict[str, Any]
    ) -> list[str]:
        """Writes config, tokenizer and manifest before the first step, and records this launch.

        `data` identifies the data; `facts` are further entries of the manifest.

        Returns:
          Which of numerics, packages, device, git and mesh differ from the first launch.
        Raises:
          InvalidInput: The data differs from the run's.
        """
        facts_of_code, difference = surroundings()
        around = {**facts_of_code, "mesh": config.mesh.to_dict()}
        has_begun = self.has_begun()
        if has_begun:
            self.refuse_other_data(data)
        if self.status() != "done":  # first, so that the folder belongs to this run
            self.write_text("config.json", configs.to_json(config))
        if has_begun:
            manifest = self.manifest()
        else:
            manifest: dict[str, Any] = {**facts, "data": data, **around, "launches": []}
            if difference:
                self.write_text("diff.patch", difference)
            if tokenizer is not None:
                self.write_text("tokenizer.json", tokenizer_text(tokenizer))
        changed = {key: around[key] for key in _CHANGING if manifest.get(key) != around[key]}
        launch = {"time": now(), "argv": sys.argv, "pid": os.getpid(), **changed}
        manifest["launches"].append(launch)
        manifest["stated"] = sorted(stated(configs.flatten(config)))
        self.write_json("manifest.json", manifest)
        return list(changed)

    def refuse_other_data(self, data: dict) -> None:
        """Raises InvalidInput if text, tokenizer or splits differ from the run's."""
        stored, data = self.manifest()["data"], json.loads(json.dumps(data))
        changed = {
            key: (stored.get(key), value)
            for key, value in data.items()
            if key != "source" and stored.get(key) != value
        }
        if changed:
            raise InvalidInput(
                f"--workdir={self.path}: the data has changed since this run began\n"
                + _listed(changed, "there", "now", len(changed))
                + "restore the data, or choose another --workdir"
            )

    def refuse_other_start(self, hashes: Mapping[str, str]) -> None:
        """Raises InvalidInput if initial weights have different hashes from the stored ones."""
        stored = self.manifest()["initial"]
        for option, digest in hashes.items():
            if stored.get(option) != digest:
                raise InvalidInput(
                    f"--workdir={self.path}: initial.{option} holds different weights from those "
                    "this run began with; restore them, or choose another --workdir"
                )

    def refuse_other_numerics(self, goes_on: bool = False) -> None:
        """Raises InvalidInput if a run would continue with code that computes different bits.

        A finished run is checked only if it continues (`goes_on`).
        """
        if not self.has_begun() or (self.status() == "done" and not goes_on):
            return
        manifest = self.manifest()
        version = manifest["numerics"]
        for launch in manifest["launches"]:
            version = launch.get("numerics", version)
        if version != NUMERICS:
            raise InvalidInput(
                f"--workdir={self.path}: it has version {version} of the numerics, but this "
                f"code has {NUMERICS}: its result would differ from an uninterrupted run's\n"
                "to continue anyway give --across_numerics; manifest.json names the old code"
            )

    def amend_launch(self, **facts: Any) -> None:
        """Adds facts to this launch's entry in the manifest."""
        manifest = self.manifest()
        manifest["launches"][-1] |= facts
        self.write_json("manifest.json", manifest)

    def append_metrics(self, rows: list[dict]) -> None:
        """Adds rows to metrics.jsonl."""
        with self.file("metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(_lines(rows))

    def drop_scores(self) -> None:
        """Removes final scores, which further training will outdate."""
        for name in ("evaluation.json", "sequences.npz"):
            self.file(name).unlink(missing_ok=True)

    def cut_metrics(self, step: int) -> None:
        """Drops rows of metrics.jsonl after a step, so that a resumed run repeats no steps.

        Incomplete lines are dropped too.
        """
        rows = [row for row in self.metrics() if row["step"] <= step]
        self.write_text("metrics.jsonl", _lines(rows))


def _lines(rows: list[dict]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _listed(changed: Mapping[str, tuple[Any, Any]], before: str, after: str, most: int) -> str:
    """Returns one line for each of the first `most` changes, and a count of the others."""
    lines = [f"  {key}: {old} {before}, {new} {after}\n" for key, (old, new) in changed.items()]
    if len(lines) > most:
        lines[most:] = [f"  ... and {len(lines) - most} more\n"]
    return "".join(lines)


def now() -> str:
    """Returns the current time in UTC (ISO 8601)."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")

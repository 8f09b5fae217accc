"""Files of a run or a study: nothing outside its folder is read, written, renamed or removed.

A folder received from somebody else may contain links to the reader's own files. So every path in
it comes from `inside`, and every listing from `entries` or `walk`. These refuse links, pipes and
names that lead outside. The folder itself may be a link.
"""

import dataclasses
import errno
import json
import os
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from transformer_jax import __version__
from transformer_jax.errors import InvalidInput

REFUSED_PATHS = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ENOTDIR, errno.ELOOP)
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
WRITING, DAMAGED = ".writing-", "damaged-"  # prefixes of incomplete and damaged checkpoints


def inside(folder: Path, name: str) -> Path:
    """Returns the path of an entry of a folder, whether it exists or not.

    For example, `samples/first.txt` is an entry of a subfolder.

    Raises:
      InvalidInput: The name leads outside the folder, or the entry or a folder on its path is
        neither a file nor a folder, e.g. a link.
    """
    path = folder
    for part in name.split("/"):
        if part in ("", ".", "..") or Path(part).name != part or not part.isprintable():
            raise InvalidInput(f"{folder}: {name!r} is not the name of a file in it")
        path = path / part
        _refuse_links(path)
    return path


def entries(folder: Path) -> list[Path]:
    """Returns the entries of a folder, sorted by name; [] if it does not exist.

    Raises:
      InvalidInput: An entry is neither a file nor a folder, e.g. a link or a pipe.
    """
    if not folder.is_dir():
        return []
    paths = sorted(folder.iterdir())
    for path in paths:
        _refuse_links(path)
    return paths


def walk(folder: Path) -> list[Path]:
    """Returns every file in a folder and its subfolders; raises the same errors as `entries`."""
    return [file for path in entries(folder) for file in (walk(path) if path.is_dir() else [path])]


def _refuse_links(path: Path) -> None:
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise InvalidInput(f"{path}: {error.strerror}") from error
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        is_link = stat.S_ISLNK(mode)
        what = f"a link to {os.readlink(path)!r}" if is_link else "neither file nor folder"
        raise InvalidInput(
            f"{path}: it is {what}, but the files of a run or a study must be in its own folder\n"
            "replace it with a copy of what it leads to, or remove it"
        )


def refuse_foreign_files(folder: Path, flag: str, what: str, allowed: Collection[str]) -> None:
    """Raises InvalidInput if a folder for a new run or study (`what`) contains other files.

    `flag` is the option that named the folder. The folder need not exist. Names in `allowed`, and
    names that begin with a dot, are permitted.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    except OSError as error:
        is_file = isinstance(error, NotADirectoryError)
        why = "this is a file; expected a folder" if is_file else error.strerror
        raise InvalidInput(f"{flag}={folder}: {why}") from error
    if foreign := [name for name in names if name not in allowed and not name.startswith(".")]:
        raise InvalidInput(
            f"{flag}={folder}: it holds files that do not belong to a {what} ({min(foreign)}); "
            "choose a new or an empty folder"
        )


def refuse_version_1(record: Mapping[str, Any], path: Path) -> None:
    """Raises InvalidInput for a manifest.json or study.json of version 1, which lacks `version`."""
    if "version" not in record:
        raise InvalidInput(
            f"{path}: written by transformer_jax 0.1, which version {__version__} does not read"
        )


def as_plain(value: Any) -> Any:
    """Returns a value in JSON form: tuples as lists, dataclasses as dicts, nan and inf as None."""
    if hasattr(value, "_asdict"):
        return as_plain(value._asdict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return as_plain(dataclasses.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): as_plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(inner) for inner in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; raises InvalidInput if the file is damaged."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: expected JSON: {error}") from error
    return parsed_object(text, path)


def parsed_object(text: str, path: Path) -> dict[str, Any]:
    """Returns the object in a JSON string; raises InvalidInput, naming `path`, without one."""
    try:
        content = json.loads(text)
    except ValueError as error:
        raise InvalidInput(f"{path}: expected JSON: {error}") from error
    if not isinstance(content, dict):
        raise InvalidInput(f"{path}: expected a JSON object")
    return content


def rows_of(text: str) -> Iterator[dict[str, Any]]:
    """Yields the objects in the lines of a JSON Lines string, leaving out incomplete lines."""
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row


def write_json(folder: Path, name: str, value: Any) -> Path:
    """Writes a value to a JSON file with `replace`, and returns the file's path."""
    return replace(folder, name, json.dumps(value, indent=1) + "\n")


def replace(folder: Path, name: str, text: str) -> Path:
    """Writes a file in a folder, completely or not at all, and returns its path; see `inside`."""
    path = inside(folder, name)
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    temporary.unlink(missing_ok=True)
    try:
        # A change of the code may hold bytes that are no UTF-8; they are kept.
        with temporary.open("x", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path

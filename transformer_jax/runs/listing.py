"""Listing of the runs below a folder, with filters; only the needed parts of a run are read."""

import datetime
import operator
import os
import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.config_files import CADENCE, flatten
from transformer_jax.declarations import NO_VALUE, SWITCHES
from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.runs.directory import parse_status
from transformer_jax.runs.files import inside, parsed_object, rows_of

_NO_RUN_INSIDE = ("checkpoints", "samples", "tensorboard", "wandb", ".git")
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
CELLS = "cells"  # the folder of cells, which studies share
_NO_STUDY_INSIDE = (CELLS, "checkpoints", ".git")
_ALWAYS = ("run", "status", "step", "when", "seed", "parameters")
_PARTS = re.compile(r"[./]")  # of a key
_READ_OF_METRICS = 1 << 16  # bytes from the end
_STALE = 600.0  # seconds without a heartbeat after which a running run is taken for dead


def find_runs(root: Path, links: bool = True) -> Iterator[Path]:
    """Yields each run directory below a folder once, those behind links last, if `links`."""
    if not root.is_dir():
        raise InvalidInput(f"--root={root}: no such folder")

    def refuse(error: OSError) -> None:  # folders below may be unreadable or gone by now
        if error.filename == str(root):
            raise InvalidInput(f"--root={root}: {error.strerror}") from error

    starts, seen = [root], set[str]()
    for start in starts:  # links are added below
        for folder, below, files in os.walk(start, onerror=refuse):
            is_new = (real := os.path.realpath(folder)) not in seen
            seen.add(real)
            if is_new and "config.json" not in files:
                below[:] = [name for name in below if name not in _NO_RUN_INSIDE]
                inner = [Path(folder, name) for name in below] if links else []
                starts += [path for path in inner if path.is_symlink()]
                continue
            below.clear()
            if is_new and not any(name.endswith(".safetensors") for name in files):
                yield Path(folder)  # neither an exported model nor seen already


def studies_in(root: Path) -> list[Path]:
    """Returns the directories of studies below a folder, without looking inside runs or links."""
    studies = []
    for folder, below, files in os.walk(root):
        below[:] = [] if "config.json" in files else [b for b in below if b not in _NO_STUDY_INSIDE]
        studies += [Path(folder)] * ("study.json" in files)
    return sorted(studies)


def facts_of(path: Path, root: Path) -> dict[str, Any]:
    """Returns a run's path below `root`, flat config, status and newest metrics, by key."""
    facts: dict[str, Any] = {"run": str(path.relative_to(root)) if path != root else "."}
    status = parse_status(_text(path, "STATUS"))
    has_died = status.word == "running" and (_age(status.when) > _STALE or _is_gone(path))
    facts["status"] = "died" if has_died else status.word
    facts["when"] = status.when[:16].replace("T", " ")
    facts["step"] = status.step
    facts |= flatten(_json(path, "config.json"))
    manifest = _json(path, "manifest.json")
    facts["parameters"], facts["legs"] = manifest.get("parameters"), len(manifest.get("legs", ()))
    newest = _newest_metrics(path)
    if isinstance(newest.get("step"), int) and newest["step"] < status.step:
        newest = without_test(newest) | {"step": status.step}
    return facts | newest


def _is_gone(path: Path) -> bool:
    """Returns whether the process that trained here ran on this machine and has ended.

    Containers that share a host name and a folder, but not their processes, look dead.
    """
    lock = re.match(r"pid (\d+) on (\S+),", _text(path, ".lock"))
    try:
        if lock and lock[2] == socket.gethostname():
            os.kill(int(lock[1]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):  # a process of another user
        pass
    return False


def _age(when: str) -> float:
    try:
        then = datetime.datetime.fromisoformat(when)
    except ValueError:
        return 0.0
    return (datetime.datetime.now(datetime.UTC) - then).total_seconds()


def _text(run: Path, name: str) -> str:
    try:
        return inside(run, name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError, InvalidInput):
        return ""


def _json(run: Path, name: str) -> dict[str, Any]:
    try:
        return parsed_object(_text(run, name), run / name)
    except InvalidInput:
        return {}


def _newest_metrics(run: Path) -> dict[str, Any]:
    """Returns the newest value of each metric, read from the end of the file to an evaluation."""
    size = _READ_OF_METRICS
    while True:
        try:
            with inside(run, "metrics.jsonl").open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(0, end - size))
                rows = rows_of(file.read().decode("utf-8", "replace"))
        except (OSError, InvalidInput):
            return {}
        newest: dict[str, Any] = {}
        last: dict[str, Any] = {}
        for last in rows:  # an incomplete first row is left out
            newest |= last
        if size >= end or any(key.startswith("eval/") for key in newest):
            return without_test(newest) | last
        size *= 4


def without_test(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row without scores on the test split, which are outdated if the run continues."""
    return {key: value for key, value in row.items() if not key.startswith("test/")}


def parse_filter(text: str) -> tuple[str, Callable[[Any], bool]]:
    """Parses a filter KEY OPERATOR VALUE, e.g. `eval/loss<1.7` or `position=rotary`.

    Returns:
      The key, and a function that tests a value for this key.
    Raises:
      InvalidInput: There is no operator, or no number after <, <=, > or >=.
    """
    # A value may begin with <, e.g. <|endoftext|>, but == and =>1 are no operators.
    match = re.match(r"([^<>=!]+)(<=|>=|!=|<|>|=)(?!=|[<>]\s*[-+.\d])(.*)", text)
    if not match:
        raise InvalidInput(
            f"{text}: expected a filter: KEY=VALUE, KEY!=VALUE, KEY<NUMBER, KEY>NUMBER, ..."
        )
    key, sign, wanted = match[1].strip(), match[2], match[3].strip()
    compare, is_order = _OPERATORS[sign], sign not in ("=", "!=")
    if is_order and not reads_as_number(wanted):
        raise InvalidInput(f"{text}: expected a number after {sign}, got {wanted!r}")

    def passes(value: Any) -> bool:
        if value is None:
            return not is_order and compare(value, None if wanted in NO_VALUE else wanted)
        if isinstance(value, bool) and not is_order:
            return compare(value, SWITCHES.get(wanted.lower()))
        try:
            return compare(float(value), float(wanted))
        except (TypeError, ValueError):
            if is_order:
                return False
        if isinstance(value, list | tuple):
            return compare(",".join(map(str, value)), wanted.strip("()[], ").replace(" ", ""))
        return compare(str(value), wanted)

    return key, passes


def reads_as_number(text: str) -> bool:
    """Returns whether a string can be read as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _full_key(key: str, names: Collection[str], text: str) -> str:
    """Returns `key` if it is in `names`, or else the least nested name that ends with it.

    Raises:
      InvalidInput: There is no such name, or several, for the argument `text`.
    """
    if key in names:
        return key
    depths = {n: len(_PARTS.split(n)) for n in names if n.endswith((f".{key}", f"/{key}"))}
    if not depths:
        short = {_PARTS.split(name)[-1] for name in names}
        raise InvalidInput(f"{text}: no run has {key}{suggest(key, [*names, *short])}")
    meant = [name for name, depth in depths.items() if depth == min(depths.values())]
    if len(meant) > 1:
        raise InvalidInput(f"{text}: {key} is ambiguous; use one of {', '.join(meant[:4])}")
    return meant[0]


def keys_of(rows: Sequence[dict[str, Any]], columns: str) -> list[str]:
    """Returns the full keys of comma-separated columns; raises the same errors as `filtered`."""
    names = dict.fromkeys(key for row in rows for key in row)
    keys = [key for key in columns.split(",") if key]
    return [_full_key(key, names, f"--columns={columns}") for key in keys] if rows else keys


def filtered(
    rows: Sequence[dict[str, Any]], filters: Sequence[str], sort: str | None = None
) -> list[dict[str, Any]]:
    """Returns the rows of the runs that pass all filters.

    A key may be given by its last part if that is unambiguous. A run without the key does not pass.

    The rows are sorted by the run's name, or by the key `sort` (`-KEY` sorts in descending order).

    Raises:
      InvalidInput: No run has the key, or it is ambiguous.
    """
    tests = [(text, *parse_filter(text)) for text in filters]
    if not rows:
        return []
    names = dict.fromkeys(name for facts in rows for name in facts)
    passing = list(rows)
    for text, key, passes in tests:
        name = _full_key(key, names, text)
        passing = [facts for facts in passing if name in facts and passes(facts[name])]
    key = _full_key((sort or "run").removeprefix("-"), names, f"--sort={sort}")
    have, lack = [], []
    for facts in passing:
        value = facts.get(key)
        (lack if value is None or value != value else have).append(facts)  # nan has no rank
    is_mixed = len({isinstance(facts[key], str) for facts in have}) > 1
    have.sort(
        key=lambda facts: str(facts[key]) if is_mixed else facts[key],
        reverse=bool(sort) and sort.startswith("-"),
    )
    return have + lack


def columns_of(rows: Sequence[Mapping[str, Any]], most: int | None = None) -> list[str]:
    """Returns the keys of default columns: fixed ones, `most` options that differ, and scores.

    Options of the model and the data come first; options that only some runs have come last.
    """
    seen: dict[str, Any] = {}
    differing: dict[str, None] = {}
    for row in rows:
        for key, value in row.items():
            if seen.setdefault(key, value) != value:
                differing[key] = None
    first = ("model", "data", "optimizer", "schedule", "training")

    def rank(key: str) -> tuple[bool, int, int]:
        section, _, name = key.partition(".")
        is_partial = any(key not in row for row in rows)
        return is_partial, name.count("."), (*first, section).index(section)

    options = [
        key
        for key in differing
        if key not in _ALWAYS and "/" not in key and not key.startswith(CADENCE)
    ]
    scores = ("train/loss", "eval/loss", "test/loss", "test/accuracy", "test/bleu")
    return [*_ALWAYS, *sorted(options, key=rank)[:most], *(key for key in scores if key in seen)]

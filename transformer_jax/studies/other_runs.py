"""Runs that other code trained, read from the files that it left, as rows for the judge.

A run's curve is found in a log of nanoGPT, modded-nanogpt or nanochat, in JSON lines, in
TensorBoard's event files, in a W&B run folder, or in a CSV file that W&B's page exports.
"""

import json
import math
import re
import struct
import unicodedata
import warnings
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.data.sources.disk import unique_fields, visible
from transformer_jax.data.sources.tables import number, read_table
from transformer_jax.errors import InvalidInput, require, suggest
from transformer_jax.studies.scores import unpaired
from transformer_jax.studies.statistics import ALPHA, interval, paired_interval, paired_t

RULE = (
    r"(?P<arm>.*?)[-_., /=]*(seed|(?<![a-zA-Z0-9])s|(?<![a-zA-Z0-9]))[-_=]?"
    r"(?<!\d)(?<!\d\.)(?<!\de-)(?P<seed>\d+)"
)
"""Pattern of the names of runs, by default: an arm, then a seed, as in `wide-seed3`."""

# Lines of logs -> the name of what they state
_LOGS = {
    "nanoGPT": (r"step (?P<step>\S+): train loss \S+, val loss (?P<value>\S+)", "val_loss"),
    "modded-nanogpt": (r"step:(?P<step>\S+)/\S+ val_loss:(?P<value>\S+)", "val_loss"),
    "nanochat": (r"Step (?P<step>\S+) \| Validation bpb: (?P<value>[^\s|]+)", "val_bpb"),
}
_NOT_FINITE = {"NaN": math.nan, "nan": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
# Names under which logs and configs state the data that a run is evaluated on
_STATED = re.compile(
    r"""["']?\b(dataset|val_files|input_val_bin|val_tokens|eval_tokens|validation_source"""
    r"""|validation_tokens)["']?\s*(?::\s*(?:str|int)\s*=|[:=])(?:\s*value:)?\s*["']?"""
    r"""([^"'\s,#][^"'\n,#]*)"""
)
_CONFIGS = ("config.json", "config.yaml", "files/config.yaml", "args.json")
_STATED_IN = 1 << 20  # bytes at the beginning of a file
_BLOCK, _WHOLE, _FIRST, _LAST = 1 << 15, 1, 2, 4  # of W&B's files
# Of W&B's rows, `_step` counts the calls that logged them, not updates.
_STEP = ("step", "iter", "global_step", "trainer/global_step", "train/global_step", "Step", "_step")
_LOSS = ("eval/loss", "val_loss", "val/loss", "eval_loss", "val_bpb", "validation_loss", "loss/val")


class Curve(NamedTuple):
    """Values of a metric at some updates of a run, the file, and the validation data it states."""

    steps: list[int]
    values: list[float]
    source: Path
    data: Mapping[str, str]


def read_scores(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a CSV file with arm, seed and value, and optionally more columns."""
    rows: list[dict[str, Any]] = []
    for line, cells in read_table(path):
        row: dict[str, Any] = dict(cells)
        for column in ("seed", "value", "step"):
            text = row.pop(column, None)
            if text is not None and (text or column != "step"):
                value = number(text or "nan", f"{path}, line {line}: {column}")
                is_exact = column != "value" and text.strip().isdecimal()
                row[column] = int(text) if is_exact else value
        rows.append(row)
    if not rows:
        raise InvalidInput(f"{path}: expected a header and one line per run, found no runs")
    seen: dict[str, str] = {}
    for arm in (str(row["arm"]) for row in rows if "arm" in row):
        plain = " ".join(unicodedata.normalize("NFKC", arm).split())
        if seen.setdefault(plain, arm) != arm:
            raise InvalidInput(f"{path}: arms {seen[plain]!r} and {arm!r} differ only in spelling")
    return rows


def read_curves(paths: Iterable[Path], metric: str | None = None) -> dict[str, Curve]:
    """Returns the curves of runs by name, from files, folders of files, or folders of runs.

    A run is named as the file, or as its folder if the file's name says nothing (metrics.jsonl,
    events.out...), or as in the file itself. `metric` may be None if a file has only one metric
    that is commonly evaluated, e.g. val_loss.

    Raises:
      InvalidInput: A file cannot be read, has no such metric, or has two values for one update.
    """
    curves: dict[str, Curve] = {}
    for path in paths:
        if not path.exists():
            raise InvalidInput(f"--from={path}: no such file or folder")
        files = [path] if path.is_file() else _files_in(path)
        if not files:
            raise InvalidInput(f"--from={path}: no log, .jsonl, .csv, .wandb or event file in it")
        for file in files:
            same = [other for other in files if _is_events(other) and other.parent == file.parent]
            if _is_events(file) and file != same[0]:
                continue  # of a resumed run, read with the first file
            for name, points in _points_of(file, metric, same):
                if not points:
                    raise InvalidInput(f"{file}: run {name!r} has no value of this metric")
                steps, values = _in_order(points, f"{file}: {name}")
                if name in curves:
                    raise InvalidInput(
                        f"two runs are named {name}: {curves[name].source} and {file}; put them "
                        "into folders with names of their own"
                    )
                curves[name] = Curve(steps, values, file, _data_of(file))
    return curves


def _data_of(path: Path) -> dict[str, str]:
    """Returns what a log, or a config beside a file, states about the validation data."""
    is_log = path.suffix in (".log", ".txt", ".out")
    files = [path] if is_log else [path.parent / name for name in _CONFIGS]
    stated: dict[str, str] = {}
    for file in filter(Path.is_file, files):
        with file.open("rb") as opened:
            text = opened.read(_STATED_IN).decode(errors="replace")
        for name, value in _STATED.findall(text):
            stated.setdefault(name, value.strip())
    return stated


def _files_in(folder: Path) -> list[Path]:
    """Returns the files of runs in a folder, without W&B's own logs beside its runs."""
    endings = (".log", ".jsonl", ".csv", ".txt", ".out")
    found = sorted(path for path in visible(folder) if path.is_file())
    of_wandb = sorted({path.resolve() for path in found if path.suffix == ".wandb"})
    near = {above for path in of_wandb for above in (path.parent, path.parent.parent)}
    near = {above for above in near if re.match(r"(offline-)?run-|wandb$", above.name)}
    if packed := [path for path in found if path.stem.lower().endswith(endings)]:
        raise InvalidInput(f"{packed[0]}: expected {', '.join(endings)}; unpack it or move it away")
    others = (p for p in found if p.suffix.lower() in endings or _is_events(p))
    placed = ((path, path.parent.resolve()) for path in others)  # a log may be a link itself
    return [path for path, at in placed if not near & {at, *at.parents}] + of_wandb


def _is_events(path: Path) -> bool:
    return ".tfevents." in path.name


def _name_of(path: Path) -> str:
    says_nothing = path.stem in ("metrics", "log", "train", "output", "history", "scalars")
    return path.parent.name if says_nothing or _is_events(path) else path.stem


def _points_of(
    path: Path, metric: str | None, events: list[Path]
) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """Yields the name and the points (step, value) of each run in a file, or in event files."""
    if _is_events(path):
        points: dict[str, list[tuple[int, float]]] = {}
        for file in events:  # each later one continues the run, or repeats its end
            scalars, restart = _scalars_of(file)
            for tag, new in scalars.items():
                old = [point for point in points.get(tag, ()) if point[0] < restart]
                if old and new[0][0] <= old[0][0]:
                    first = events[0].name
                    raise InvalidInput(f"{file}: it begins as {first} does; expected one run")
                points[tag] = [point for point in old if point[0] < new[0][0]] + new
        if not points:
            raise InvalidInput(f"{path}: no scalar in this event file")
        yield _name_of(path), points[_chosen(path, points, metric)]
    elif path.suffix == ".wandb":
        yield _of_wandb(path, metric)
    elif path.suffix.lower() == ".csv":
        yield from _of_export(path, metric)
    elif path.suffix.lower() == ".jsonl":
        yield _name_of(path), _of_rows(path, _json_rows(path), metric)
    else:
        yield _name_of(path), _of_log(path, metric)


def _in_order(points: list[tuple[int, float]], where: str) -> tuple[list[int], list[float]]:
    by_step: dict[int, float] = {}
    for step, value in points:
        before = by_step.get(step, value)
        if before != value and not (math.isnan(before) and math.isnan(value)):
            raise InvalidInput(f"{where}: step {step} has two values: {by_step[step]:g}, {value:g}")
        by_step[step] = value
    steps = sorted(by_step)
    return steps, [by_step[step] for step in steps]


def _of_log(path: Path, metric: str | None) -> list[tuple[int, float]]:
    found: dict[str, list[tuple[int, float]]] = {}
    with path.open(encoding="utf-8", errors="replace", newline=None) as file:
        for line_number, line in enumerate(file, start=1):
            line = re.sub(r"\x1b\[[\d;]*m", "", line)  # colours
            for pattern, name in _LOGS.values():
                if (match := re.search(pattern, line)) and metric in (None, name):
                    if not line.endswith("\n"):  # it may be cut within the number
                        warnings.warn(f"{path}: {line!r} has no line end; not read", stacklevel=2)
                        continue
                    where = f"{path}, line {line_number}"
                    value = number(match["value"], f"{where}: {name}")
                    if not (step := match["step"].replace(",", "")).isdecimal():
                        raise InvalidInput(f"{where}: step {step}: expected an integer")
                    found.setdefault(name, []).append((int(step), value))
    if not found:
        raise InvalidInput(
            f"{path}: no line of {', '.join(_LOGS)} with {metric or 'a validation loss'}; expected "
            "e.g. 'step 250: train loss 2.1, val loss 2.2'"
        )
    return found[_chosen(path, found, metric)]


def _chosen(path: Path, names: Iterable[str], metric: str | None) -> str:
    """Returns the metric to read, which must be among those of a file."""
    has = sorted(map(str, names))
    if metric is None:
        usual = [name for name in has if name in _LOSS]
        if len(usual) != 1:
            raise InvalidInput(f"{path}: --metric: expected one of {', '.join(has[:12])}")
        return usual[0]
    if metric not in has:
        raise InvalidInput(
            f"{path}: no metric {metric!r}{suggest(metric, has)}; it has {', '.join(has[:12])}"
        )
    return metric


def _json_rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    for line_number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line, object_pairs_hook=unique_fields)
        except InvalidInput as error:
            raise InvalidInput(f"{path}, line {line_number}: {error}") from error
        except (ValueError, RecursionError) as error:
            if line_number == len(lines) and not line.endswith("\n"):
                return  # still being written
            raise InvalidInput(f"{path}, line {line_number}: not JSON: {error}") from error
        if not isinstance(row, dict):
            raise InvalidInput(f"{path}, line {line_number}: expected an object, got {line[:40]!r}")
        yield line_number, row


def _of_rows(
    path: Path, rows: Iterable[tuple[int, Mapping[str, Any]]], metric: str | None
) -> list[tuple[int, float]]:
    """Returns the points in rows that have a step; rows without the metric are of other metrics."""
    listed = list(rows)
    fields = {name: None for _, row in listed for name in row}
    step = next((name for name in _STEP if name in fields), None)
    if step is None:
        raise InvalidInput(f"{path}: no row has a step; expected one of {', '.join(_STEP)}")
    name = _chosen(path, [field for field in fields if field != step], metric)
    points = []
    last = max((line for line, row in listed if name in row), default=0)
    for line, row in listed:
        if row.get(name) is None:
            if name in row and line == last:
                raise InvalidInput(
                    f"{path}, row {line}: {name} is null at the end; write NaN if the run "
                    "diverged, or leave rows without a value out"
                )
            continue
        at, value = row.get(step), row[name]
        value = _NOT_FINITE.get(value, value) if isinstance(value, str) else value
        is_whole = isinstance(at, int | float) and type(at) is not bool and float(at).is_integer()
        if not is_whole or isinstance(value, bool) or not isinstance(value, int | float):
            told = f"{step}={at!r}, {name}={value!r}"
            raise InvalidInput(f"{path}, row {line}: {told[:80]}: expected numbers")
        points.append((int(at), float(value)))
    return points


def _scalars_of(path: Path) -> tuple[dict[str, list[tuple[int, float]]], float]:
    """Returns an event file's scalars by tag, and the step from which it hides earlier ones."""
    require("tensorboard", str(path), "logs")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from tensorboard.util.tensor_util import make_ndarray

    points: dict[str, list[tuple[int, float]]] = {}
    restart = math.inf
    content, at, left = path.read_bytes(), 0, 0
    while at + 12 <= len(content) and (at := at + 16 + struct.unpack_from("<Q", content, at)[0]):
        left += at <= len(content)  # whole records: length, checksum, data, checksum
    for event in EventFileLoader(str(path)).Load():  # the whole records of a file being written
        left -= 1
        if event.session_log.status == event.session_log.START:
            restart = event.step
        for value in event.summary.value:
            array = make_ndarray(value.tensor) if value.HasField("tensor") else None
            if array is not None and array.size == 1 and array.dtype.kind in "fiu":
                points.setdefault(value.tag, []).append((event.step, float(array.reshape(()))))
    if left > 0:  # a file that grows meanwhile has more
        raise InvalidInput(f"{path}: damaged: its last {left} records cannot be read")
    return points, restart


def _of_wandb(path: Path, metric: str | None) -> tuple[str, list[tuple[int, float]]]:
    require("wandb", str(path), "logs")
    from wandb.proto.wandb_internal_pb2 import Record

    rows, name = [], path.stem
    for data in _records(path):
        record = Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "run":
            name = record.run.display_name or record.run.run_id or name
        elif record.WhichOneof("record_type") == "history":
            items = record.history.item
            keys = [item.key or ".".join(item.nested_key) for item in items]
            loaded = (json.loads(item.value_json) for item in items)
            values = [math.nan if value is None else value for value in loaded]
            rows.append((len(rows) + 1, dict(zip(keys, values, strict=True))))
    return name, _of_rows(path, rows, metric)


def _records(path: Path) -> Iterator[bytes]:
    """Yields the whole records of a .wandb file, which has the format of LevelDB's logs.

    Blocks of 32 KiB hold pieces, each after its checksum, length and kind: a whole record, or the
    first, a middle or the last piece of one. The file begins with a header of 7 bytes.
    """
    content, at, record = path.read_bytes(), 7, b""
    if not content.startswith(b":W&B"):
        raise InvalidInput(f"{path}: not a file of W&B: it begins with {content[:4]!r}")
    while at + 7 <= len(content):
        left = _BLOCK - at % _BLOCK
        if left < 7:  # padding
            at += left
            continue
        checksum, length, kind = struct.unpack_from("<IHB", content, at)
        piece = content[at + 7 : at + 7 + length]
        if len(piece) < length:
            return  # still being written
        if zlib.crc32(bytes([kind]) + piece) != checksum:
            raise InvalidInput(f"{path}: damaged at byte {at}")
        at, record = at + 7 + length, (b"" if kind in (_WHOLE, _FIRST) else record) + piece
        if kind in (_WHOLE, _LAST):
            yield record


def _of_export(path: Path, metric: str | None) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    """Yields the runs of a CSV file: W&B's chart, or a table with run, step and the metric."""
    table = list(read_table(path))
    header = list(table[0][1]) if table else []
    step = next((name for name in _STEP if name in header), None)
    if step is None:
        expected = ", ".join(_STEP)
        raise InvalidInput(f"{path}: expected a column {expected}, got {', '.join(header)[:80]}")
    charted = [name for name in header if " - " in name and not name.endswith(("__MIN", "__MAX"))]
    runs = next((name for name in ("run", "name", "Name", "Run") if name in header), None)
    for line, row in () if charted else table:
        if not any(text.strip() for name, text in row.items() if name not in (step, runs)):
            raise InvalidInput(
                f"{path}, line {line}: no value; write NaN if the run diverged, or omit the row"
            )
    if not charted and runs is None:
        pairs = [(line, _numbers(path, line, row)) for line, row in table]
        yield _name_of(path), _of_rows(path, pairs, metric)
        return
    kinds = {name.rpartition(" - ")[2] for name in charted}
    if charted:
        kind = _chosen(path, kinds, metric)
        charted = [name for name in charted if name.rpartition(" - ")[2] == kind]
    points: dict[str, list[tuple[int, float]]] = {name.rpartition(" - ")[0]: [] for name in charted}
    columns = charted or [_chosen(path, set(header) - {step, runs or ""}, metric)]
    for line, row in table:
        at = number(row[step], f"{path}, line {line}: {step}")
        if not float(at).is_integer():
            raise InvalidInput(f"{path}, line {line}: {step}={row[step]}: expected an integer")
        for column in columns:
            name = column.rpartition(" - ")[0] if charted else row[runs or ""].strip()
            points.setdefault(name, [])
            if row[column].strip():
                value = number(row[column], f"{path}, line {line}: {column}")
                points[name].append((int(at), value))
    yield from points.items()


def _numbers(path: Path, line: int, row: Mapping[str, str]) -> dict[str, float]:
    filled = {name: text for name, text in row.items() if text.strip()}
    return {name: number(text, f"{path}, line {line}: {name}") for name, text in filled.items()}


class Imported(NamedTuple):
    """Rows for the judge, lines that say how each run was read, and warnings."""

    rows: list[dict[str, Any]]
    lines: list[list[str]]
    warnings: list[str]


def arm_and_seed(name: str, rule: str) -> tuple[str, int] | None:
    """Returns the arm and the seed that a rule finds in the name of a run, or None."""
    try:
        pattern = re.compile(rule)
    except re.error as error:
        raise InvalidInput(f"--rule={rule}: {error}") from error
    if {"arm", "seed"} - pattern.groupindex.keys():
        raise InvalidInput(f"--rule={rule}: expected the groups (?P<arm>...) and (?P<seed>...)")
    match = pattern.fullmatch(name)
    is_found = match is not None and (match["seed"] or "").isdecimal()
    return (match["arm"] or "runs", int(match["seed"])) if is_found else None


def common_end(curves: Mapping[str, Curve]) -> int | None:
    """Returns the last update at which all runs have a value, if some end later; else None.

    Raises:
      InvalidInput: The runs end at different updates and have none in common.
    """
    ends = {curve.steps[-1]: name for name, curve in curves.items()}
    if len(ends) < 2:
        return None
    common = set.intersection(*(set(curve.steps) for curve in curves.values()))
    if not common:
        told = ", ".join(f"{name} at {end:,}" for end, name in sorted(ends.items())[:4])
        raise InvalidInput(f"the runs end at different updates, and have none in common: {told}")
    return max(common)


def rows_of_curves(
    curves: Mapping[str, Curve],
    rule: str = RULE,
    at: int | None = None,
    target: float | None = None,
    larger_is_better: bool = False,
) -> Imported:
    """Returns a row for each run, with its arm and seed by the rule.

    The value is that at update `at`, or the last one. With a `target`, it is the best one, and
    `step` is the first update at which the run reaches the target, or its last one.

    Raises:
      InvalidInput: The rule does not match a name, or a run has no value at the update.
    """
    rows, lines, ends, diverged = [], [], {}, []
    for name, curve in curves.items():
        if (found := arm_and_seed(name, rule)) is None:
            raise InvalidInput(
                f"{curve.source}: run {name!r}: --rule={rule} finds no arm and seed in this name; "
                "expected a pattern of the whole name, e.g. '(?P<arm>.*)_rs(?P<seed>\\d+)_.*'"
            )
        arm, seed = found
        if at is not None and at not in curve.steps:
            near = min(curve.steps, key=lambda step: abs(step - at))
            raise InvalidInput(f"{curve.source}: run {name!r} has no value at {at}, nearest {near}")
        step = end = curve.steps[-1] if at is None else at
        value = curve.values[curve.steps.index(step)]
        if target is not None:
            sign = -1 if larger_is_better else 1
            pairs = zip(curve.steps, curve.values, strict=True)
            points = [point for point in pairs if at is None or point[0] <= at]
            value = sign * min((sign * v for _, v in points if v == v), default=math.nan)
            step = next((s for s, v in points if sign * v <= sign * target), points[-1][0])
        rows.append({"arm": arm, "seed": seed, "value": value, "step": step})
        reached = target is None or sign * value <= sign * target
        shown = f"{step:,}" if reached else f"never (ends at {step:,})"
        lines.append([name, arm, str(seed), shown, f"{value:.6g}", str(len(curve.steps))])
        if math.isnan(curve.values[curve.steps.index(end)]):
            diverged.append(name)
        ends.setdefault(end, []).append(name)
    told = [*_warnings(rows, ends), *_other_data(curves)]
    told += [f"diverged: {', '.join(diverged)} ends with nan"] * bool(diverged)
    shortest = min(ends, default=0)
    grids = {tuple(s for s in curve.steps if s <= shortest) for curve in curves.values()}
    if target is not None and len(grids) > 1:
        told.append("runs have values at different updates: those with fewer reach a target later")
    return Imported(rows, lines, told)


def _other_data(curves: Mapping[str, Curve]) -> Iterator[str]:
    for key in dict.fromkeys(key for curve in curves.values() for key in curve.data):
        by_value: dict[str, str] = {}  # the first run of each
        for name, curve in curves.items():
            if key in curve.data:
                by_value.setdefault(curve.data[key], name)
        if len(by_value) > 1:
            told = [f"{value[:40]} ({name})" for value, name in by_value.items()]
            yield f"different validation data: {key} is {', '.join(told[:4])}"


class Reaching(NamedTuple):
    """An arm's runs, compared with a target.

    Attributes:
      arm: Name of the arm.
      reached: Runs that reach the target at some update, and all runs.
      updates: Mean of the first updates at which they do, with a 95 % t interval, if all do.
      value: Mean value at the end, and its interval.
      p: One-sided p value of a t test that the mean value at the end is no better than the target.
    """

    arm: str
    reached: tuple[int, int]
    updates: tuple[float, tuple[float, float]] | None
    value: tuple[float, tuple[float, float]]
    p: float


def reaching(
    curves: Mapping[str, Curve],
    target: float,
    at: int | None = None,
    larger_is_better: bool = False,
    rule: str = RULE,
) -> list[Reaching]:
    """Returns when the runs of each arm reach a target, and whether their mean is beyond it.

    `at` is the update at which a run ends; its last one if None. Other arguments are those of
    rows_of_curves. Runs that end with nan reach nothing, and p is then 1.
    """
    first = rows_of_curves(curves, rule, at, target, larger_is_better).rows
    last = rows_of_curves(curves, rule, at).rows
    sign, found = -1.0 if larger_is_better else 1.0, []
    for arm in dict.fromkeys(row["arm"] for row in last):
        steps = np.array([row["step"] for row in first if row["arm"] == arm], float)
        best = np.array([row["value"] for row in first if row["arm"] == arm])
        ends = np.array([row["value"] for row in last if row["arm"] == arm])
        is_reached = sign * best <= sign * target
        mean, error, both = map(float, paired_t(sign * (ends - target)))
        p = 1.0 if math.isnan(mean) or len(ends) < 2 else both / 2 if mean < 0 else 1 - both / 2
        when = None
        if is_reached.all():
            when = (float(steps.mean()), paired_interval(steps, ALPHA).interval)
        value = (float(ends.mean()), interval(float(ends.mean()), error, len(ends) - 1, ALPHA))
        found.append(Reaching(arm, (int(is_reached.sum()), len(ends)), when, value, p))
    return found


def _warnings(rows: list[dict[str, Any]], ends: Mapping[int, list[str]]) -> Iterator[str]:
    seeds: dict[str, set[int]] = {}
    for row in rows:
        seeds.setdefault(row["arm"], set()).add(row["seed"])
    if len(seeds) > 2 and all(len(own) == 1 for own in seeds.values()):
        yield "every arm has one run; if names mean something else, give --rule"
    yield from unpaired(seeds)
    if len(ends) > 1:
        usual = max(ends, key=lambda step: len(ends[step]))
        others = [f"{n} at {step:,}" for step, runs in ends.items() if step != usual for n in runs]
        yield f"unequal budgets: runs end at {usual:,} updates, but {', '.join(others[:6])}"


def reaching_table(found: Iterable[Reaching], target: float) -> tuple[list[str], list[list[str]]]:
    """Returns the heads and the rows of a table of `reaching`."""

    def spelled(value: tuple[float, tuple[float, float]] | None) -> str:
        if value is None:
            return "-"
        low, high = value[1]
        return f"{value[0]:.5g}" + (f" ({low:.5g} to {high:.5g})" if high < math.inf else "")

    heads = ["arm", "reached", "updates (95 %)", "value at the end (95 %)"]
    rows = []
    for arm, reached, when, value, p in found:
        shown = f"{p:.2g}" if reached[1] > 1 else "-"
        rows.append([arm, "{} of {}".format(*reached), spelled(when), spelled(value), shown])
    return [*heads, f"p: mean beyond {target:g}"], rows

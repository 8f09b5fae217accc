"""Cells: training runs that are found by a hash and shared between studies.

    ROOT/cells/HASH/sSEED/     an ordinary run directory

The hash covers everything except the seed that decides the outcome, so studies reuse earlier runs.
"""

import functools
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from transformer_jax.config_files import CADENCE, WATCHING, flatten
from transformer_jax.metrics import measured_by
from transformer_jax.own import PACKAGE, hashes_of, intervenes
from transformer_jax.resolve import own_choices_of, read_instead, stated
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import inside
from transformer_jax.runs.provenance import NUMERICS
from transformer_jax.studies.design import larger_is_better
from transformer_jax.studies.outcomes import Outcome

_NOISE_OF_A_START = 0.05  # fraction by which an untrained model's loss may exceed log V
DECIDING = ("jax", "jaxlib", "flax", "optax", "numpy")  # packages that can affect a result

DONE, DIVERGED, OUT_OF_MEMORY = "done", "diverged", "out of memory"
FAILED, UNFINISHED, MISSING = "failed", "unfinished", "missing"
UNREADABLE = "evaluation.json cannot be read"  # reason for a failed cell whose STATUS is done
OUTCOMES = (DONE, DIVERGED)  # states that a verdict counts
ENDED = (*OUTCOMES, OUT_OF_MEMORY, FAILED)  # states of cells whose training has ended
_MEMORY = ("RESOURCE_EXHAUSTED", "MemoryError", "Out of memory", "out of memory")


def cell_hash(
    config: ConfigDict,
    data: str,
    members: int,
    around: Mapping[str, Any],
    initial: Mapping[str, str] | None = None,
) -> tuple[str, dict[str, Any]]:
    """Returns the hash that names a cell's folder, and the facts that the hash covers.

    The facts are the options from options_read; `data`, the digest of the task's data; numerics;
    hashes of user-defined files, and of hooks that change training; `members`, the number of runs
    trained at a time; packages, flags of jax and XLA and the device from the manifest `around`;
    and `initial`, the hashes of initial weights, by option.
    """
    flat, initial = flatten(config), dict(initial or {})
    options = options_read(flat)
    own = {choice for key, choice in own_choices_of(flat) if key not in WATCHING}
    parts = {
        "options": {k: v for k, v in options.items() if k.removeprefix("initial.") not in initial},
        "data": data,
        "own": hashes_of(sorted(own)),
        "initial": initial,
        "hooks": hooks_that_intervene(flat),
        "numerics": NUMERICS,
        **deciding(around),
        "members": members,
    }
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16], parts


def options_read(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options of a flat config that decide the outcome and are not at their default.

    The seed, options for writing and measuring, and those of unchosen components are left out.
    """
    return {
        key: value
        for key, value in stated(flat).items()
        if not (key == "seed" or key.startswith((*CADENCE, "hooks.")) or read_instead(key, flat))
    }


def hooks_that_intervene(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the hooks that change training, their hashes and hooks.every; {} without any."""
    hooks = [hook for hook in flat["hooks.functions"] if intervenes(hook)]
    if not hooks:
        return {}
    return {"order": hooks, "files": hashes_of(hooks), "every": flat["hooks.every"]}


def deciding(around: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts in a manifest that can affect a result: packages, environment, device."""
    return {
        "packages": {name: around["packages"].get(name) for name in DECIDING},
        "environment": around.get("environment", {}),
        "device": device_of(around["device"]),
    }


def device_of(facts: Mapping[str, Any]) -> str:
    """Returns a manifest's `device` as text, reduced to the facts that can affect a result.

    An accelerator computes the same alone as among several, so it is counted once. A CPU that
    simulates several devices gives each fewer threads, which sum in a different order.
    """
    count = facts["count"] if facts["platform"] == "cpu" else 1
    return f"{count} x {facts['kind']}"


@functools.cache
def code_hash() -> str:
    """Returns the hash of the package's source files, which identifies its revision."""
    digest = hashlib.sha256()
    for file in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{file.relative_to(PACKAGE).as_posix()}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def cell_path(root: Path, folder: str, seed: int) -> Path:
    """Returns the directory of a cell below `root`; `folder` is the cell's hash."""
    return inside(root, f"cells/{folder}/s{seed}")


class Cell(NamedTuple):
    """One arm with one seed, and the directory of its run."""

    arm: str
    seed: int
    path: Path

    def state(self) -> str:
        """Returns the state: done, diverged, out of memory, failed, unfinished or missing."""
        status = RunDirectory(self.path).read_status()
        if status.word == "done":
            if not self.means():
                return FAILED  # evaluation.json cannot be read: no outcome
            return DIVERGED if self._got_worse() else DONE
        if status.word == "failed":
            if "NonFinite" in status.reason:
                return DIVERGED
            return OUT_OF_MEMORY if any(text in status.reason for text in _MEMORY) else FAILED
        return MISSING if status.word == "missing" else UNFINISHED

    def reason(self) -> str:
        """Returns the reason in STATUS, or UNREADABLE if the cell is done but lacks scores."""
        status = RunDirectory(self.path).read_status()
        return UNREADABLE if status.word == "done" and not self.means() else status.reason

    def outcome(self, metric: str, target: float | None = None) -> Outcome:
        """Returns the Outcome: the final test score and, given a target, when it was reached."""
        state = self.state()
        value = self.means().get(metric) if state == DONE else None
        if target is None:
            return Outcome(value, state == DIVERGED)
        rows = RunDirectory(self.path).metrics()
        sign = 1 if larger_is_better(metric, self.metric_facts()) else -1
        scores = [(row["step"], row.get(f"eval/{metric}")) for row in rows]
        reached = (n for n, score in scores if score is not None and sign * score >= sign * target)
        last = max((row["step"] for row in rows), default=0)
        return Outcome(value, state == DIVERGED, next(reached, None), last)

    def means(self, split: str = "test") -> dict[str, Any]:
        """Returns a split's final scores, with metrics measured later; {} before the run ends."""
        scores = _read(self.path, "evaluation.json").get(split, {})
        later = read_details(self).get("metrics", {}).get(split, {})
        return {**scores, **later} if scores else {}

    def validated(self) -> dict[str, Any] | None:
        """Returns the final validation scores; {} if the run diverged, None without an outcome."""
        return {DONE: self.means("validation"), DIVERGED: {}}.get(self.state())

    def metric_facts(self) -> dict[str, dict[str, Any]]:
        """Returns unit, direction and code of the requested metrics, by name."""
        later = read_details(self).get("metrics", {}).get("facts", {})
        first = _read(self.path, "evaluation.json").get("metrics", {})
        target = RunDirectory(self.path).config().evaluation.target if first else None
        return {**for_target(first, target), **later}

    def _got_worse(self) -> bool:
        """Returns whether the test and training losses ended above those of an untrained model.

        An untrained model has the loss of a uniform guess, log V, up to a few per cent. A model
        that learns nothing, or overfits, has not diverged; its score shows this. A test loss that
        is not finite counts as above.
        """
        directory = RunDirectory(self.path)
        sizes = directory.manifest().get("sizes", {})
        classes = sizes.get("num_classes") or sizes.get("vocab_size")
        loss = self.means().get("loss", 0.0)  # judging reports a missing loss
        if not math.isfinite(loss):
            return True
        untrained = (1 + _NOISE_OF_A_START) * math.log(classes) if classes else math.inf
        if loss < untrained:
            return False
        trained = [row["train/loss"] for row in directory.metrics() if "train/loss" in row]
        return not (trained and trained[-1] < untrained)


def for_target(
    facts: Mapping[str, Mapping[str, Any]], target: float | None
) -> dict[str, dict[str, Any]]:
    """Returns facts about metrics, by name, with the target added to `code` if a metric uses it."""
    return {n: {**f, "code": measured_by(n, f["code"], target)} for n, f in facts.items()}


@functools.lru_cache(maxsize=4096)
def _read_json(path: Path, stamp: int) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def _read(folder: Path, name: str) -> dict:
    """Returns the content of a JSON file, cached until the file changes; {} if unreadable."""
    file = inside(folder, name)
    try:
        return _read_json(file, os.stat(file).st_mtime_ns)
    except (OSError, ValueError):
        return {}


def read_details(cell: Cell) -> dict[str, Any]:
    """Returns the content of a cell's details.json; {} if the file cannot be read."""
    return _read(cell.path, "details.json")

"""Benchmarks of language models: a file of choices, CORE, or tasks of lm-evaluation-harness."""

import hashlib
import weakref
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformer_jax.errors import InvalidInput, require
from transformer_jax.training import choices

if TYPE_CHECKING:
    from transformer_jax.training.run import Run

Results = dict[str, dict[str, float]]
_last: list[Any] = []  # a weak reference to the last run, what was asked, and its results


def kind_of(name: str) -> str:
    """Returns what a benchmark is by its name: choices (a file), core (a folder), or tasks."""
    if name.endswith((".jsonl", ".jsonl.gz")) or Path(name).is_file():
        return "choices"
    if not Path(name).parent.is_dir():
        raise InvalidInput(f"evaluation.benchmark={name}: no such file or folder")
    return "core" if Path(name).is_dir() else "tasks"


def run_benchmark(
    run: "Run", kind: str, name: str, batch_size: int, begin: str | None = None
) -> tuple[Results, list[dict[str, Any]]]:
    """Returns results by name of the benchmark or its tasks, and a row for each item.

    Args:
      run: A run of a causal language model.
      kind: choices, core or tasks.
      name: A file of choices, the folder of CORE's bundle, or tasks NAME,NAME of the harness, or
        FOLDER/NAME,NAME for those defined in a folder.
      batch_size: Number of texts in a batch; affects only speed.
      begin: Special token before a text without a context, and before every text of CORE.
    Raises:
      InvalidInput: A file cannot be read, or the model cannot score an item.
    """
    first = choices.special_token(run, begin)
    if kind == "choices":
        items = choices.read_items(Path(name))
        scored = choices.score_items(run, items, batch_size, first)
        return {name: choices.summary(scored)}, choices.rows_of(items, scored)
    if kind == "core":
        from transformer_jax.training.core import read_core, run_core

        return run_core(run, read_core(Path(name)), batch_size, first)
    from transformer_jax.training.harness import run_tasks

    folder, _, names = name.rpartition("/")
    return run_tasks(run, names.split(","), folder or None, batch_size, first)


def results_of(run: "Run") -> Results | None:
    """Returns the results of a run's evaluation.benchmark, or None if it has none.

    The results of one run are kept, since both splits of an evaluation have the same.
    """
    settings = run.config.evaluation
    if settings.benchmark is None:
        return None
    name, begin = asked = (settings.benchmark, settings.benchmark_begin)
    if not (_last and _last[0]() is run and _last[1] == asked):
        results, _ = run_benchmark(run, kind_of(name), name, settings.batch_size, begin)
        _last[:] = weakref.ref(run), asked, results
    return _last[2]


def digest_of(name: str) -> str:
    """Returns a hash of the files of a benchmark; for tasks, of their folder, names and version."""
    path, digest = Path(name), hashlib.sha256()
    if kind_of(name) == "tasks":
        digest.update(f"{path.name} {metadata.version('lm_eval')}".encode())
        files = path.parent.glob("*.yaml") if "/" in name else []
    else:
        files = [path] if path.is_file() else path.rglob("*")
    for file in sorted(filter(Path.is_file, files)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:16]


def chance_of(name: str) -> float | None:
    """Returns the score of guessing: of CORE 0, of choices their share, of tasks None (unknown)."""
    if (kind := kind_of(name)) == "choices":
        items = choices.read_items(Path(name))
        return sum(1 / len(item.choices) for item in items if len(item.choices) > 1) / len(items)
    return 0.0 if kind == "core" else None


def refuse_benchmark(name: str) -> None:
    """Raises InvalidInput if the files of a benchmark cannot be read."""
    if (kind := kind_of(name)) == "choices":
        choices.read_items(Path(name))
    elif kind == "core":
        from transformer_jax.training.core import read_core

        read_core(Path(name))
    else:
        require("lm_eval", f"evaluation.benchmark={name}", "benchmarks")

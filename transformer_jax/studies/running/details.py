"""A closer look at finished cells: other evaluations, and where a model's losses are.

Kept in each cell as details.json. They are secondary outcomes: intervals and no verdicts.
"""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data.tasks import Task
from transformer_jax.errors import InvalidInput
from transformer_jax.options.marks import measured_by
from transformer_jax.options.task_traits import traits_of
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.directory import RunDirectory
from transformer_jax.runs.files import replace
from transformer_jax.sharding import Sharding, sharded
from transformer_jax.studies.asking.cells import FREQUENCY_BINS, Cell, key_of, read_details
from transformer_jax.training.build import make_task
from transformer_jax.training.evaluation import evaluate, score_of
from transformer_jax.training.losses import cross_entropy
from transformer_jax.training.measuring import Measured, facts_of_metrics, measured
from transformer_jax.training.optimizers import evaluated_params
from transformer_jax.training.own import own_modules
from transformer_jax.training.prepared import Prepared
from transformer_jax.training.run import Run

_POSITION_BINS = 32


def look_closer(
    cell: Cell,
    also: Mapping[str, Mapping[str, Any]],
    prepared: Prepared,
    run: Run | None = None,
) -> None:
    """Writes a finished cell's details, as far as they are not there yet.

    Args:
      cell: done.
      also: name -> changed `data.length` and `evaluation.stride`, for other evaluations.
      prepared: data, model and optimizer of its arm.
      run: what was trained; read from the cell if it is not at hand.
    """
    stored = read_details(cell)
    keys = {key_of(changes): changes for changes in also.values()}
    missing = [key for key in keys if key not in stored.get("also", {})]
    by_token = traits_of(prepared.config.data.task).by_position
    unmeasured = _unmeasured(cell, prepared.config.evaluation)
    if not missing and not unmeasured and ("where" in stored or not by_token):
        return
    run = run or _load(cell, prepared)
    figures = _measured_later(cell, prepared, run, unmeasured) if unmeasured else {}
    also_scored = {key: evaluated_otherwise(run, keys[key]) for key in missing}
    needs_where = by_token and "where" not in stored
    where = {"where": where_losses_are(run, prepared.task)} if needs_where else {}
    details = read_details(cell) | where  # another launch may have written meanwhile
    details["also"] = {**details.get("also", {}), **also_scored}
    if figures:
        of_before = details.get("metrics", {})
        details["metrics"] = {
            part: {**of_before.get(part, {}), **figures[part]} for part in figures
        }
    replace(cell.path, "details.json", json.dumps(details) + "\n")


def _unmeasured(cell: Cell, evaluation: ConfigDict) -> list[str]:
    """The metrics that a finished cell has not, or has by another file or target."""
    stored, now = cell.metric_facts(), _facts(evaluation.metrics, evaluation.target)
    return [name for name in now if stored.get(name, {}).get("code") != now[name]["code"]]


def _facts(names: Sequence[str], target: float | None) -> dict[str, Any]:
    """Facts of metrics, with the target in what measured those that take one."""
    found = facts_of_metrics(names)
    return {n: {**f, "code": measured_by(n, f["code"], target)} for n, f in found.items()}


def _measured_later(
    cell: Cell, prepared: Prepared, run: Run, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Metrics of a finished cell: their values by split, and what is known of them."""
    directory, figures = RunDirectory(cell.path), {}
    curve = prepared.curve(directory.metrics(), directory.is_alone())
    for split in ("validation", "test"):
        size = prepared.config.evaluation.batch_size
        scored = evaluate(score_of(run), run.params, prepared.task, split, size)
        # Scores of what the model wrote are in the cell; nothing is written again.
        generated = {key: v for key, v in cell.means(split).items() if isinstance(v, float)}
        scored = scored._replace(means={**generated, **scored.means})
        at = Measured(run, prepared.task, split, scored, curve)
        figures[split] = measured(names, at, prepared.allow, again=True)
    return {**figures, "facts": _facts(names, run.config.evaluation.target)}


def _load(cell: Cell, prepared: Prepared) -> Run:
    """The run as load_run gives it, with what is at hand already."""
    restored = Checkpoints(RunDirectory(cell.path).file("checkpoints")).restore(
        prepared.template, read_only=True
    )
    if restored is None:
        raise InvalidInput(
            f"{cell.path}: its checkpoints are gone (runs gc --checkpoints); remove the folder: "
            "ablate trains it again"
        )
    params = evaluated_params(restored.state.opt_state, restored.state.params)
    return prepared.run(params, restored.step)


def evaluated_otherwise(run: Run, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Scores the test split with other windows.

    Args:
      run: finished.
      changes: `data.length`, tokens of a window, at most model.max_length; `evaluation.stride`.
    """
    names = {"data.length": "length", "evaluation.stride": "stride"}
    options = {names[key]: value for key, value in changes.items()}
    task = make_task(run.config, run.tokenizer, own_modules(run.config), **options)
    length = run.config.data.length
    size = max(1, run.config.evaluation.batch_size * length // options.get("length", length))
    scored = evaluate(score_of(run), run.params, task, "test", size)
    return {**scored.means, "protocol": scored.protocol}


@functools.lru_cache(maxsize=32)
def _token_losses(model: Any, sharding: Sharding | None) -> Any:
    def losses(params: Any, batch: Any) -> jax.Array:
        with sharded(sharding):
            logits = model.apply({"params": params}, **batch["inputs"])
        return cross_entropy(logits, batch["targets"], batch["weights"])

    return jax.jit(losses)


def where_losses_are(run: Run, task: Task) -> dict[str, Any]:
    """Mean test losses by position in the window, by the target's frequency, and by repetition.

    Args:
      run: a finished language model.
      task: its data.
    Returns:
      position: [starts of bins, means]; frequency: means of bins of equal mass, rare to frequent;
      repeated: means of targets that the window held before, and of those that are new.
    """
    params, losses = run.params, _token_losses(run.model, run.sharding)
    columns: dict[str, list[np.ndarray]] = {"loss": [], "weight": [], "target": [], "repeated": []}
    for batch in task.evaluation_batches("test", run.config.evaluation.batch_size):
        targets, tokens = np.asarray(batch["targets"]), np.asarray(batch["inputs"]["tokens"])
        columns["loss"].append(np.asarray(losses(params, batch), np.float64))
        columns["weight"].append(np.asarray(batch["weights"], np.float64))
        columns["target"].append(targets)
        columns["repeated"].append(_held_before(tokens, targets))
    whole = {name: np.concatenate(parts) for name, parts in columns.items()}
    weight, loss = whole["weight"], whole["loss"]
    length = loss.shape[1]
    width = -(-length // _POSITION_BINS)
    starts = list(range(0, length, width))
    by_position = [_mean(loss[:, s : s + width], weight[:, s : s + width]) for s in starts]
    bins = _bins_of_frequency(whole["target"], weight)
    by_frequency = [_mean(loss[bins == b], weight[bins == b]) for b in range(FREQUENCY_BINS)]
    held = whole["repeated"]
    return {
        "position": [starts, by_position],
        "frequency": by_frequency,
        "repeated": {
            "seen in the window": _mean(loss[held], weight[held]),
            "new in the window": _mean(loss[~held], weight[~held]),
        },
    }


def _held_before(tokens: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """[B, L] bool: whether a target is among the tokens up to its place."""
    length = tokens.shape[1]
    held = np.zeros(targets.shape, bool)
    for position in range(length):
        held[:, position] = (tokens[:, : position + 1] == targets[:, position, None]).any(1)
    return held


def _bins_of_frequency(targets: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """[B, L] int: which share of the targets' mass a target belongs to, rare ones first."""
    mass = np.bincount(targets.ravel(), weight.ravel())
    order = np.argsort(mass, kind="stable")
    middle = np.cumsum(mass[order]) - mass[order] / 2
    of_token = np.zeros(len(mass), int)
    of_token[order] = np.minimum(middle / mass.sum() * FREQUENCY_BINS, FREQUENCY_BINS - 1)
    return of_token[targets]


def _mean(loss: np.ndarray, weight: np.ndarray) -> float | None:
    return float(loss.sum() / weight.sum()) if weight.sum() else None

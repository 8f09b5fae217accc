"""What a run computes, so that its cell is found however the code is arranged that computes it.

On the device that is the programs of its start, its steps and its scores, with every number in
them. On the host it is the code that makes batches, reads text and adds up scores, and what that
code gave: the evaluated splits, and the batches of some steps.
"""

import ast
import functools
import hashlib
import inspect
import json
import sys
import textwrap
import types
from collections.abc import Iterable, Iterator
from importlib import metadata
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.data.tasks import TASKS, Task
from transformer_jax.metrics import METRICS
from transformer_jax.programs import trace
from transformer_jax.studies.asking.cells import without_docstrings
from transformer_jax.studies.running.canonical import canonical
from transformer_jax.training.evaluation import ALWAYS, evaluate
from transformer_jax.training.loop import Training
from transformer_jax.training.measuring import score_split
from transformer_jax.training.objectives import CrossEntropy, in_chunks, score_batch
from transformer_jax.training.optimizers import evaluated_params
from transformer_jax.training.prepared import Prepared, seeds_of
from transformer_jax.training.run import Run
from transformer_jax.training.showcases import demonstration_of

_BATCHES = [(seed, step) for seed in (0, 1) for step in (0, 1, 10, 1000)]
_ROWS = 64  # of an evaluated batch whose bytes are looked at
# Code of the host that decides scores: where it begins, and where what it names is followed. What
# lies elsewhere is in the programs, or keeps records.
_ROOTS = (
    *(vars(Training)[name] for name in ("_take_steps", "_advance", "_add_evaluation")),
    *(Prepared.start, Prepared.stacked_batches, Prepared.own_batch, seeds_of, evaluated_params),
    *(score_split, evaluate, *(METRICS[name] for name in ALWAYS)),
    *(Run.translate, Run.source_tokens, Run.target_begin.fget),
)
_FOLLOWED = (
    "transformer_jax.data",
    "transformer_jax.metrics",
    "transformer_jax.training.evaluation",
    "transformer_jax.training.sums",
    "transformer_jax.training.showcases",
)
_FOLLOWED_FROM_WEIGHTS = (*_FOLLOWED, "transformer_jax.training.warm_start")


def computation_of(prepared: Prepared, data: str) -> dict[str, Any]:
    """Returns what decides the scores of a config's runs, as plain JSON, without their seeds.

    Args:
      prepared: data, model and optimizer.
      data: what `digest_of` says of its task.
    """
    config, task = prepared.config, prepared.task
    kinds = [type(task), *([type(task.tokenizer)] if task.tokenizer else [])]
    batch = next(iter(task.evaluation_batches("test", _ROWS)))
    params = prepared.template.params

    def score(params: Any, batch: Any) -> Any:
        objective = in_chunks(CrossEntropy(), config.training.loss_chunk)
        return score_batch(prepared.model, params, batch, objective)[0]

    programs = {
        "start": prepared.traced_start,
        "steps": prepared.traced,
        "score": trace(score, params, batch),
    }
    demonstration = demonstration_of(config.data.task)
    writing = demonstration.writing(prepared.model, task)
    if writing is not None:
        programs["writing"] = trace(writing.function, params, writing.example)
    return {
        "programs": {name: canonical(traced) for name, traced in programs.items()},
        "initial": _digest_of_arrays(prepared.start(config)[0]) if _starts_from(config) else "",
        "packages": {name: metadata.version(name) for name in demonstration.needs},
        "updates": config.training.steps,
        "data": data,
        "host": _host_code(config.data.task, _starts_from(config), *kinds),
    }


def digest_of(task: Task) -> str:
    """Returns a hash of what a task gives: the evaluated splits, and batches of some steps."""
    digest = hashlib.sha256()
    facts = {key: value for key, value in task.facts.items() if key != "source"}
    digest.update(json.dumps([facts, task.protocol], sort_keys=True, default=str).encode())
    for batch in _batches(task):
        digest.update(_digest_of_arrays(batch).encode())
    return digest.hexdigest()


def _starts_from(config: ConfigDict) -> bool:
    """Whether what code of the host reads is put into the parameters."""
    return any(value is not None for value in config.initial.values())


def _digest_of_arrays(tree: Any) -> str:
    digest = hashlib.sha256()
    for path, leaf in jax.tree.leaves_with_path(tree):
        array = np.ascontiguousarray(leaf)
        digest.update(f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _batches(task: Task) -> Iterator[Any]:
    for split in ("validation", "test"):
        yield from task.evaluation_batches(split, _ROWS)
    for seed, step in _BATCHES:
        yield task.batch(seed, step)


# ---------------------------------------------------------------- code of the host


@functools.lru_cache(maxsize=64)
def _host_code(task: str, from_weights: bool, *kinds: type) -> str:
    """The hash of the host's code for a task, whose data is of these kinds."""
    followed = _FOLLOWED_FROM_WEIGHTS if from_weights else _FOLLOWED
    made_by = [TASKS[task]] if task in TASKS else []  # the user's own file is a part of the cell
    return code_of([*_ROOTS, *made_by, demonstration_of(task).scores, *kinds], followed)


def code_of(roots: Iterable[Any], followed: tuple[str, ...]) -> str:
    """Returns a hash of functions and classes, and of those that they name, wherever they lie.

    Imports, docstrings and annotations say nothing. A table (a dict) is not looked into: what was
    chosen from it is a root itself.

    Args:
      roots: functions and classes.
      followed: beginnings of the modules whose functions and classes are looked at.
    """
    waiting, known = [*map(_plain, roots)], {}
    while waiting:
        item = waiting.pop()
        if item in known or not isinstance(item, types.FunctionType | type):
            continue
        tree = _Bare().visit(ast.parse(textwrap.dedent(inspect.getsource(item))))
        known[item] = ast.dump(without_docstrings(tree))
        named = [*_named(tree, vars(sys.modules[item.__module__])), *getattr(item, "__mro__", ())]
        for value in map(_plain, _flattened(named)):
            if isinstance(value, bool | int | float | str | bytes):
                known[item] += f" {value!r}"
            elif getattr(value, "__module__", "").startswith(followed):
                waiting.append(value)
    text = "\n".join(sorted(known.values()))
    return hashlib.sha256(text.encode()).hexdigest()


def _flattened(values: Iterable[Any]) -> Iterator[Any]:
    """Values, and in place of tuples what they hold: numbers as well as functions."""
    for value in values:
        yield from _flattened(value) if isinstance(value, tuple) else (value,)


def _plain(item: Any) -> Any:
    """The function behind one that is bound, cached or decorated."""
    item = getattr(item, "func", item)
    return inspect.unwrap(getattr(item, "__func__", item)) if callable(item) else item


def _named(tree: ast.AST, space: dict[str, Any]) -> Iterator[Any]:
    """What the names in a definition stand for, in their order: NAME and MODULE.NAME."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(space.get(node.id), types.ModuleType):
            yield space.get(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = space.get(node.value.id)
            if isinstance(module, types.ModuleType):
                yield getattr(module, node.attr, None)


class _Bare(ast.NodeTransformer):
    """Leaves out what says where things lie and of which types they are."""

    def visit_Import(self, node: ast.Import) -> ast.AST:
        return ast.Pass()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return ast.Pass()

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(node.arg)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

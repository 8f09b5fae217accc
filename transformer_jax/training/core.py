"""CORE (Li et al. 2024, arXiv:2406.11794, section 3.5), as nanochat computes it from its bundle.

The folder has core.yaml, which lists the tasks, eval_meta_data.csv with the scores of guessing, and
eval_data with the items. Each item is asked after others of its task, drawn by its number. CORE is
the mean over the tasks of (accuracy - guessing) / (1 - guessing).
"""

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from transformer_jax.data.sources.disk import json_rows
from transformer_jax.data.sources.tables import number as number_in
from transformer_jax.data.sources.tables import read_table
from transformer_jax.errors import InvalidInput
from transformer_jax.training.choices import score_tokens, tell_cut

if TYPE_CHECKING:
    from transformer_jax.training.run import Run

_ORDER, _SHOTS = 1337, 1234  # seeds of nanochat: the order of the items, the examples of item 0
# Kinds of tasks -> the fields of their items
_FIELDS = {
    "multiple_choice": ("query", "choices", "gold"),
    "schema": ("continuation", "context_options", "gold"),
    "language_modeling": ("continuation", "context"),
}


class CoreTask(NamedTuple):
    """A task of the bundle: name, kind, items, examples before an item, delimiter, guessing."""

    name: str
    kind: str
    items: list[dict[str, Any]]
    shots: int
    delimiter: str
    chance: float


def read_core(folder: Path) -> list[CoreTask]:
    """Reads the tasks of a bundle.

    Raises:
      InvalidInput: A file is missing or cannot be read; the message names the line.
    """
    import yaml

    try:
        told = yaml.safe_load((folder / "core.yaml").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InvalidInput(f"--core={folder}: core.yaml: {error}".partition("\n")[0]) from error
    listed = told.get("icl_tasks") if isinstance(told, dict) else None
    if not isinstance(listed, list) or not listed:
        raise InvalidInput(f"{folder}/core.yaml: expected tasks in a list icl_tasks")
    table = folder / "eval_meta_data.csv"
    chances = {}
    for line, cells in read_table(table):
        if not {"Eval Task", "Random baseline"} <= cells.keys():
            raise InvalidInput(f"{table}: expected the columns Eval Task and Random baseline")
        percent = number_in(cells["Random baseline"], f"{table}, line {line}: Random baseline")
        chances[cells["Eval Task"]] = percent / 100
    return [_task(folder, entry, chances) for entry in listed]


def _task(folder: Path, entry: Any, chances: Mapping[str, float]) -> CoreTask:
    try:
        name, kind, path = entry["label"], entry["icl_task_type"], entry["dataset_uri"]
        shots, delimiter = int(entry["num_fewshot"][0]), entry.get("continuation_delimiter", " ")
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{folder}/core.yaml: {str(entry)[:60]}: expected label, icl_task_type, dataset_uri, "
            "num_fewshot: [N]"
        ) from error
    if kind not in _FIELDS:
        raise InvalidInput(f"{folder}/core.yaml: {name}: icl_task_type={kind}: not {list(_FIELDS)}")
    if not 0 <= chances.get(name, math.nan) < 1:
        raise InvalidInput(f"{folder}/eval_meta_data.csv: no random baseline in 0 to 99 of {name}")
    data = folder / "eval_data" / path
    if not data.is_file():
        raise InvalidInput(f"{data}: no such file, the items of {name}")
    items = [_item(row, kind, f"{data}: row {number}") for number, row in json_rows(data)]
    if len(items) <= shots:
        raise InvalidInput(f"{data}: {len(items)} items, expected more than num_fewshot={shots}")
    random.Random(_ORDER).shuffle(items)
    return CoreTask(name, kind, items, shots, delimiter, chances[name])


def _item(row: Any, kind: str, where: str) -> dict[str, Any]:
    fields = _FIELDS[kind]
    if not isinstance(row, dict) or not set(fields) <= row.keys():
        raise InvalidInput(f"{where}: expected the fields {', '.join(fields)}")
    choices = row[fields[1]] if "gold" in fields else [row["context"]]
    if not isinstance(choices, list) or row.get("gold", 0) not in range(len(choices)):
        raise InvalidInput(f"{where}: gold={row.get('gold')!r}: expected an index of {fields[1]}")
    if not all(isinstance(text, str) for pair in _pairs(kind, row) for text in pair):
        raise InvalidInput(f"{where}: expected texts in {fields[0]} and {fields[1]}")
    return row


def prompts_of(task: CoreTask, index: int) -> list[str]:
    """Returns the texts of an item, one for each choice; for language modelling, first the context.

    Before the item stand `shots` other items with their answers.
    """
    others = [number for number in range(len(task.items)) if number != index]
    drawn = random.Random(_SHOTS + index).sample(others, task.shots) if task.shots else []
    before = ""
    for shot in map(task.items.__getitem__, drawn):
        before += task.delimiter.join(_pairs(task.kind, shot)[shot.get("gold", 0)]) + "\n\n"
    texts = [before + task.delimiter.join(pair) for pair in _pairs(task.kind, task.items[index])]
    if task.kind == "language_modeling":
        return [texts[0].removesuffix(task.items[index]["continuation"]).strip(), texts[0]]
    return texts


def _pairs(kind: str, item: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the pairs of a context and a continuation among which an item's answer is."""
    if kind == "multiple_choice":
        return [(item["query"], choice) for choice in item["choices"]]
    if kind == "schema":
        return [(context, item["continuation"]) for context in item["context_options"]]
    context = item["context"]
    return [(context.strip() if isinstance(context, str) else context, item["continuation"])]


def _scored(
    kind: str, texts: Sequence[list[int]], most: int, where: str
) -> list[tuple[list[int], int]]:
    """Returns the tokens of each choice with the number of those that are scored, at the end."""
    if kind == "language_modeling":
        context, text = texts
        if text[: len(context)] != context or len(text) == len(context):
            raise InvalidInput(f"{where}: the context's tokens do not begin those of the text")
        pairs = [(text, len(text) - len(context))]
    elif kind == "schema":
        same = _common([text[::-1] for text in texts])
        pairs = [(text, same) for text in texts]
    else:
        same = _common(texts)
        pairs = [(text, len(text) - same) for text in texts]
    # Cut as nanochat cuts. Without a token to begin with, the first one cannot be scored.
    pairs = [(text[-most:], min(count, len(text) - 1)) for text, count in pairs]
    if wrong := [count for text, count in pairs if count >= len(text)]:
        raise InvalidInput(
            f"{where}: {wrong[0]} tokens to score; expected fewer than model.max_length={most}"
        )
    return pairs


def _common(texts: Sequence[Sequence[int]]) -> int:
    """Returns the number of tokens that all texts begin with."""
    shortest = min(map(len, texts))
    differs = (n for n in range(shortest) if len({text[n] for text in texts}) > 1)
    return next(differs, shortest)


def run_core(
    run: "Run", tasks: Sequence[CoreTask], batch_size: int, begin: int | None
) -> tuple[dict[str, dict[str, float]], list[dict[str, Any]]]:
    """Returns results by task and of CORE, and a row for each item.

    In a row, `core` is the item's part of CORE: CORE is the mean of all rows.

    Args:
      run: A run of a causal language model.
      tasks: The tasks.
      batch_size: Number of texts in a batch; affects only speed.
      begin: Token before every text, or None.
    """
    run.tokenizer_for("language_modelling")
    run.refuse_other_than_causal()
    before, most = [] if begin is None else [begin], run.model.max_length
    encode: Callable[[str], list[int]] = lambda text: before + run.encode(text).tolist()  # noqa: E731
    results, rows = {}, []
    total = sum(len(task.items) for task in tasks)
    for task in tasks:
        right = list(_right(run, task, encode, most, batch_size))
        accuracy = sum(right) / len(right)
        centred = (accuracy - task.chance) / (1 - task.chance)
        results[task.name] = {"accuracy": accuracy, "centred": centred, "items": float(len(right))}
        share = total / (len(tasks) * len(right) * (1 - task.chance))
        rows += [
            {
                **{"item": f"{task.name}/{n}", "task": task.name, "answer": item.get("gold")},
                **{"accuracy": is_right, "core": share * (is_right - task.chance)},
            }
            for n, (item, is_right) in enumerate(zip(task.items, right, strict=True))
        ]
    core = math.fsum(means["centred"] for means in results.values()) / len(results)
    return {**results, "CORE": {"core": core}}, rows


def _right(
    run: "Run", task: CoreTask, encode: Callable[[str], list[int]], most: int, batch_size: int
) -> Iterator[bool]:
    """Yields whether each item of a task is answered rightly."""
    of_items, sizes = [], list[int]()
    for index in range(len(task.items)):
        texts = [encode(text) for text in prompts_of(task, index)]
        sizes += map(len, texts)
        of_items.append(_scored(task.kind, texts, most, f"{task.name}, item {index}"))
    tell_cut(sum(size > most for size in sizes), len(sizes), most)
    pairs = [pair for of_item in of_items for pair in of_item]
    sums, exact = score_tokens(run, pairs, batch_size)
    place = 0
    for item, of_item in zip(task.items, of_items, strict=True):
        mine = slice(place, place + len(of_item))
        place += len(of_item)
        if task.kind == "language_modeling":
            yield bool(exact[mine][0])
        else:
            # If a choice begins another, nanochat's mean over no token is nan, which it skips.
            parts = zip(sums[mine], of_item, strict=True)
            means = [total / n if n else math.nan for total, (_, n) in parts]
            yield means.index(max(means)) == item["gold"]

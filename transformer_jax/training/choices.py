"""Benchmarks of choices: which of several continuations of a context is the likeliest.

Tokens, truncation and scores are those of lm-evaluation-harness (Gao et al. 2021): context and
continuation are tokenized together, and a text that is too long loses its beginning.
"""

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.data.sources.disk import json_rows
from transformer_jax.errors import InvalidInput, suggest
from transformer_jax.paths import variables_of
from transformer_jax.processes import whole

if TYPE_CHECKING:
    from transformer_jax.training.run import Run

_FIELDS = ("context", "choices", "answer")
_SHORTEST = 16  # tokens, padding included


class Item(NamedTuple):
    """A question: a context, which may be empty, its continuations, and the index of the answer."""

    context: str
    choices: tuple[str, ...]
    answer: int


class Scored(NamedTuple):
    """The scores of an item's choices.

    Attributes:
      log_probabilities: Sum over the tokens of each choice, in nats.
      tokens: Number of tokens of each choice.
      bytes: Number of UTF-8 bytes of each choice, without white space around it.
      scored_bytes: Number of those in `tokens`, which may lack the first token.
      likeliest: Whether each of a choice's tokens is the likeliest one.
      answer: Index of the right choice.
    """

    log_probabilities: list[float]
    tokens: list[int]
    bytes: list[int]
    scored_bytes: list[int]
    likeliest: list[bool]
    answer: int


def read_items(path: Path) -> list[Item]:
    """Reads items from JSON lines: context, choices and answer, or BLiMP's two sentences.

    Raises:
      InvalidInput: The file or a line cannot be read; the message names the line.
    """
    if not path.is_file():
        raise InvalidInput(f"{path}: no such file of items")
    items = [_item(row, f"{path}: row {number}") for number, row in json_rows(path)]
    if not items:
        raise InvalidInput(f"{path}: expected an item in each row, found none")
    return items


def _item(row: Any, where: str) -> Item:
    if not isinstance(row, dict):
        raise InvalidInput(f"{where}: expected an object, one in each row, got {str(row)[:40]}")
    if {"sentence_good", "sentence_bad"} <= row.keys():
        row = {"context": "", "choices": [row["sentence_good"], row["sentence_bad"]], "answer": 0}
    for field in _FIELDS:
        if field not in row:
            near = suggest(field, row)
            has = ", ".join(map(str, list(row)[:6])) or "no fields"
            raise InvalidInput(
                f"{where}: no {field}{near}; expected {', '.join(_FIELDS)}, or sentence_good and "
                f"sentence_bad; it has {has}"
            )
    context, choices, answer = (row[field] for field in _FIELDS)
    if not isinstance(context, str):
        raise InvalidInput(f"{where}: context: expected a text, got {context!r}")
    are_texts = isinstance(choices, list) and all(isinstance(c, str) and c for c in choices)
    if not are_texts or not choices:
        raise InvalidInput(f"{where}: choices: expected a list of texts, got {str(choices)[:60]}")
    if len(set(choices)) < len(choices):
        raise InvalidInput(f"{where}: choices: two are equal: {str(choices)[:60]}")
    if isinstance(answer, bool) or not isinstance(answer, int) or not 0 <= answer < len(choices):
        raise InvalidInput(f"{where}: answer: expected 0 to {len(choices) - 1}, got {answer!r}")
    return Item(context, tuple(choices), answer)


def special_token(run: "Run", name: str | None) -> int | None:
    """Returns the number of a special token of a run's tokenizer; None stays None."""
    number = getattr(run.tokenizer, "number_of", lambda _: None)(name) if name else None
    if name and number is None:
        raise InvalidInput(f"--begin={name}: the tokenizer has no such special token")
    return number


def score_items(
    run: "Run", items: Sequence[Item], batch_size: int, begin: int | None = None
) -> list[Scored]:
    """Scores all choices of all items with a language model.

    Args:
      run: A run of a causal language model.
      items: The items.
      batch_size: Number of choices in a batch; affects only speed.
      begin: Token before an item without a context; if None, its first token is not scored.
    Raises:
      InvalidInput: A choice is longer than the model's input, or the model is of another kind.
    """
    run.tokenizer_for("language_modelling")
    run.refuse_other_than_causal()
    before = [] if begin is None else [begin]
    pairs = [
        _tokens_of(run, item.context, choice, before, run.model.max_length, number)
        for number, item in enumerate(items, start=1)
        for choice in item.choices
    ]
    sums, exact = score_tokens(run, pairs, batch_size)
    scored, place = [], 0
    for item in items:
        mine = slice(place, place + len(item.choices))
        place += len(item.choices)
        sizes = [len(choice.strip().encode()) or 1 for choice in item.choices]
        counts, these = [count for _, count in pairs[mine]], sizes
        if not (item.context.strip() or before):
            firsts = [tokens[0] for tokens, _ in pairs[mine]]
            texts = [item.context + choice for choice in item.choices]
            these = [_size_after(run.tokenizer, *pair) for pair in zip(firsts, texts, strict=True)]
        found = (sums[mine].tolist(), counts, sizes, these, exact[mine].tolist(), item.answer)
        scored.append(Scored(*found))
    return scored


def _size_after(tokenizer: Any, first: int, text: str) -> int:
    """Returns the number of bytes of a text after its first token, as in Scored."""
    written, sizes = tokenizer.decode([first]), tokenizer.token_bytes
    is_part = "\ufffd" in written and sizes is not None  # of a character
    rest = text.encode()[sizes[first] if is_part else len(written.encode()) :]
    stripped = rest.decode(errors="surrogateescape").strip()  # white space may be of any kind
    return len(stripped.encode(errors="surrogateescape")) or 1


def score_tokens(
    run: "Run", pairs: Sequence[tuple[list[int], int]], batch_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the sum of log-probabilities [N], and whether all tokens are the likeliest [N].

    `pairs` are N texts, with the number of tokens at the end that are scored. The model reads the
    last max_length + 1 tokens of a text.
    """
    most = run.model.max_length + 1
    tell_cut(sum(len(tokens) > most for tokens, _ in pairs), len(pairs), run.model.max_length)
    pairs = [(tokens[-most:], count) for tokens, count in pairs]
    order = sorted(range(len(pairs)), key=lambda index: len(pairs[index][0]))
    sums, exact = np.zeros(len(pairs)), np.zeros(len(pairs), bool)
    for first in range(0, len(order), batch_size):
        rows = order[first : first + batch_size]
        found = _score(run, [pairs[row] for row in rows], batch_size)
        sums[rows], exact[rows] = found
    return sums, exact


def _tokens_of(
    run: "Run", context: str, choice: str, before: list[int], most: int, number: int
) -> tuple[list[int], int]:
    """Returns the tokens of a context with a choice, and the number of those that are scored."""
    body = context.rstrip()
    choice = context[len(body) :] + choice  # so that a space belongs to the word after it
    both = run.encode(body + choice).tolist()
    start = len(run.encode(body)) if body else 0
    tokens = both if body else [*before, *both]
    count = min(len(both) - start, len(tokens) - 1)
    if not 1 <= count <= most:
        raise InvalidInput(
            f"item {number}: a choice has {count} tokens to score; expected 1 to {most}, which is "
            "model.max_length"
        )
    return tokens, count


def tell_cut(count: int, total: int, most: int) -> None:
    """Warns of texts whose beginning a model does not read, if there are any."""
    if count:
        what = f"{count:,} of {total:,} texts are longer than model.max_length={most}"
        warnings.warn(f"{what}: their beginning is not read", stacklevel=3)


def _score(run: "Run", pairs: Sequence[tuple[list[int], int]], rows: int) -> tuple[Any, Any]:
    """Returns the sum of log-probabilities, and whether all tokens are likeliest, for each pair."""
    longest = max(len(tokens) for tokens, _ in pairs) - 1
    size = min(run.model.max_length, max(_SHORTEST, 1 << (longest - 1).bit_length()))
    inputs, targets, is_scored = np.zeros((3, rows, size), np.int32)
    segments = np.zeros((rows, size), np.int32)
    for row, (tokens, count) in enumerate(pairs):
        length = len(tokens) - 1
        inputs[row, :length], targets[row, :length] = tokens[:-1], tokens[1:]
        is_scored[row, length - count : length] = 1
        segments[row, :length] = 1
    given = {"tokens": inputs}
    if "segments" in inspect.signature(type(run.model).__call__).parameters:
        given["segments"] = segments
    sums, exact = _sums(run.model, run.params, given, targets, is_scored)
    sums, exact = np.asarray(whole(sums)), np.asarray(whole(exact))
    if np.isnan(sums[: len(pairs)]).any():
        raise InvalidInput("the model's logits are NaN: a parameter is not finite")
    return sums[: len(pairs)], exact[: len(pairs)]


@functools.partial(jax.jit, static_argnums=0)
def _sums(model: Any, params: Any, inputs: Any, targets: Any, is_scored: Any) -> tuple:
    logits = model.apply(variables_of(params), **inputs).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    log_probs = chosen - jax.nn.logsumexp(logits, -1)
    is_likeliest = (logits.argmax(-1) == targets) | (is_scored == 0)
    return jnp.where(is_scored == 1, log_probs, 0).sum(-1), is_likeliest.all(-1)


RULES: dict[str, Callable[[Scored], list[float]]] = {
    "accuracy": lambda item: item.log_probabilities,
    "accuracy_per_token": lambda item: _each(item.log_probabilities, item.tokens),
    "accuracy_per_byte": lambda item: _each(item.log_probabilities, item.scored_bytes),
}
"""Names of accuracies, and the scores of an item's choices, of which the largest is chosen."""


def _each(sums: Sequence[float], counts: Sequence[int]) -> list[float]:
    return [total / count for total, count in zip(sums, counts, strict=True)]


def is_right(item: Scored, rule: str) -> float:
    """Returns 1 if a rule chooses the answer, else 0; 1 / k if it is one of k with equal scores."""
    if len(item.log_probabilities) == 1:  # e.g. LAMBADA: is it what the model would say?
        return float(item.likeliest[0])
    scores = RULES[rule](item)
    best = max(scores)
    return (scores[item.answer] == best) / scores.count(best)


def summary(scored: Sequence[Scored]) -> dict[str, float]:
    """Returns accuracies by rule, the first one's standard error, the share of ties, and N."""
    right = {rule: [is_right(item, rule) for item in scored] for rule in RULES}
    means = {rule: math.fsum(values) / len(scored) for rule, values in right.items()}
    spread = np.std(right["accuracy"], ddof=1) / math.sqrt(len(scored)) if len(scored) > 1 else 0.0
    several = [item.log_probabilities for item in scored if len(item.log_probabilities) > 1]
    ties = sum(scores.count(max(scores)) > 1 for scores in several)
    shares = {"standard_error": float(spread), "ties": ties / len(scored)}
    return {**means, **shares, "items": float(len(scored))}


def rows_of(items: Sequence[Item], scored: Sequence[Scored]) -> list[dict[str, Any]]:
    """Returns a row for each item, with its scores and what each rule says."""
    return [
        {"item": number, "context": item.context, **found._asdict()}
        | {rule: is_right(found, rule) for rule in RULES}
        for number, (item, found) in enumerate(zip(items, scored, strict=True))
    ]

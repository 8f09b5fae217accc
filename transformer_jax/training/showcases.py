"""Samples and scores of the output of trained models, such as texts, for each task."""

import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.data.subword_tokenizers import HuggingFaceTokenizer
from transformer_jax.data.tasks import Task, traits_of
from transformer_jax.errors import InvalidInput
from transformer_jax.options import imported
from transformer_jax.paths import variables_of
from transformer_jax.processes import whole
from transformer_jax.training.run import Run, logits_of

if TYPE_CHECKING:
    from transformer_jax.data.tasks.classification import Classification
    from transformer_jax.data.tasks.language_modelling import LanguageModelling
    from transformer_jax.data.tasks.masked_language_modelling import MaskedLanguageModelling
    from transformer_jax.data.tasks.synthetic import SyntheticTask
    from transformer_jax.data.tasks.translation import Translation

_SHOWN = 5


# Scores of generated output by name, and facts about how they were computed.
GenerationScores = tuple[dict[str, float], dict[str, Any]]


def translation_scores(run: Run, task: "Translation", split: str) -> GenerationScores:
    """Returns sacrebleu's BLEU and chrF for greedy translations of a split.

    Each source sentence is translated once and compared with all its translations in the split
    (Papineni et al. 2002; Popović 2015; Post 2018 for the signature).
    """
    import sacrebleu

    references = task.references(split)
    hypotheses = run.translate(references)
    # None pads the references; an empty text would be the closest to a short hypothesis.
    streams: Any = list(map(list, itertools.zip_longest(*references.values())))
    metrics = {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF()}
    means = {name: m.corpus_score(hypotheses, streams).score for name, m in metrics.items()}
    signatures = {name: str(metric.get_signature()) for name, metric in metrics.items()}
    return means, {"generated": "greedy", "sentences": len(hypotheses), **signatures}


@functools.partial(jax.jit, static_argnums=0)
def _with_answers(model: Any, params: Any, batch: Any) -> jax.Array:
    """Returns tokens [B, L + 1] with the model's answers filled in."""
    tokens = jnp.pad(batch["inputs"]["tokens"], ((0, 0), (0, 1)))
    asked = jnp.pad(batch["weights"] > 0, ((0, 0), (1, 0)))
    longer = lambda row: model.apply(variables_of(params), row[:, :-1])  # noqa: E731
    return feed_back(longer, tokens, asked)


def feed_back(logits_of: Callable[[Array], Array], tokens: Array, replaced: Array) -> Array:
    """Replaces some tokens, from left to right, with the likeliest tokens given those before them.

    Args:
      logits_of: Function from tokens [..., L] to the next tokens' logits, [..., L, V].
      tokens: [..., L] int; the values at replaced positions are not used.
      replaced: True at the positions to write, [..., L] bool; position 0 is never written.

    Returns:
      [..., L] int32.
    """
    length = tokens.shape[-1]

    def write(position: Array, tokens: Array) -> Array:
        logits = jax.lax.dynamic_index_in_dim(logits_of(tokens), position - 1, -2, keepdims=False)
        is_here = jnp.arange(length) == position
        return jnp.where(replaced & is_here, logits.argmax(-1)[..., None], tokens)

    unseen = jnp.where(replaced, 0, tokens).astype(jnp.int32)
    return jax.lax.fori_loop(1, length, write, unseen)


def free_running_scores(run: Run, task: "SyntheticTask", split: str) -> GenerationScores:
    """Returns the fraction of correct answers if the model reads its own earlier answers.

    A task in which answers depend on chance has no such scores.
    """
    if task.language.floor:
        return {}, {}
    right = asked = 0
    for batch in task.evaluation_batches(split, run.config.evaluation.batch_size):
        written = np.asarray(_with_answers(run.model, run.params, batch))[:, 1:]
        is_asked = batch["weights"] > 0
        right += (is_asked & (written == batch["targets"])).sum()
        asked += is_asked.sum()
    return {"generated_accuracy": float(right / asked)}, {"generated": "greedy"}


def show_answers(run: Run, task: "SyntheticTask") -> str:
    """Returns some examples of the test split with the model's answers."""
    batch = next(iter(task.evaluation_batches("test", _SHOWN)))
    written = np.asarray(whole(_with_answers(run.model, run.params, batch)))
    lines = []
    for row in np.flatnonzero(batch["weights"].any(1)):
        asked = np.flatnonzero(batch["weights"][row]) + 1
        given = task.spell(batch["inputs"]["tokens"][row, : asked[0]])
        answer, truth = written[row, asked], batch["targets"][row, asked - 1]
        lines.append(f"{given}  model: {task.spell(answer)}  truth: {task.spell(truth)}")
    return "\n".join(lines)


def show_continuation(run: Run, task: "LanguageModelling") -> str:
    """Returns the first token of the test split and a continuation."""
    options = run.config.sample
    prompt = task.tokenizer.decode(task.splits["test"].windows(np.array([0]), 1)[0])
    if not options.num_tokens:
        return prompt
    begun = prompt or "\n"
    if not len(task.tokenizer.encode(begun)):  # a special token, for example
        return "no sample: the first token of the test split stands for no text"
    return prompt + _glue(run) + run.sample(begun, options.num_tokens, options.temperature)


def show_translations(run: Run, task: "Translation") -> str:
    """Returns some sentences of the test split with translations by the model and by people."""
    references = list(task.references("test").items())
    picked = [references[i] for i in np.linspace(0, len(references) - 1, _SHOWN).astype(int)]
    written = run.translate([source for source, _ in picked])
    return "\n".join(
        f"{source}\n  model: {text}\n  people: {' | '.join(targets)}"
        for (source, targets), text in zip(picked, written, strict=True)
    )


def _test_batches(run: Run, task: Any, size: int) -> Iterator[tuple[Any, np.ndarray]]:
    """Yields batches of the test split with their logits."""
    for batch in task.evaluation_batches("test", size):
        yield batch, np.asarray(logits_of(run.model, run.params, batch["inputs"]))


def show_filled_places(run: Run, task: "MaskedLanguageModelling") -> str:
    """Returns hidden tokens of the test split with the model's guesses."""
    batch, logits = next(_test_batches(run, task, _SHOWN))
    lines = []
    for row in range(_SHOWN):
        for place in np.flatnonzero(batch["weights"][row])[:1]:
            text = batch["targets"][row]
            before = task.tokenizer.decode(text[1:place][-8:])
            after = task.tokenizer.decode(text[place + 1 :][:8])
            answer = int(logits[row, place, : task.tokenizer.vocab_size].argmax())
            guess, hidden = (task.tokenizer.decode([token]) for token in (answer, text[place]))
            lines.append(f"...{before} [model: {guess!r}, hidden: {hidden!r}] {after}...")
    return "\n".join(lines).replace("\n\n", "\n")


def show_unmasked_text(run: Run, task: "MaskedLanguageModelling") -> str:
    """Returns a text of the model's length, or of sample.num_tokens if this is less."""
    from transformer_jax.training.unmasking import unmask_text

    length = min(run.config.sample.num_tokens, task.length - 1)
    if not length:
        return "no sample: sample.num_tokens=0"
    return unmask_text(run, num_tokens=length, temperature=run.config.sample.temperature)


def show_confusions(run: Run, task: "Classification") -> str:
    """Returns the confusion matrix of the test split."""
    counts = np.zeros((len(task.classes),) * 2, int)
    for batch, logits in _test_batches(run, task, 64):
        real = batch["weights"] > 0
        np.add.at(counts, (batch["targets"][real], logits.argmax(-1)[real]), 1)
    size = max(len(name) for name in task.classes)
    lines = [
        f"{name:>{size}} {' '.join(f'{count:>5}' for count in row)}"
        for name, row in zip(task.classes, counts, strict=True)
    ]
    return "\n".join(["test split: rows are classes, columns the model's answers", *lines])


def show_guesses(run: Run, task: Task) -> str:
    """Returns the likeliest and the true answers for some examples of the test split."""
    batch, logits = next(_test_batches(run, task, _SHOWN))
    names = tuple(task.facts.get("classes", ())) or getattr(task, "words", None)

    def named(numbers: np.ndarray) -> str:
        if run.tokenizer is not None and names is None:
            return repr(run.tokenizer.decode(numbers[numbers < run.tokenizer.vocab_size]))
        return " ".join(names[n] if names and n < len(names) else str(n) for n in numbers)

    rows = zip(logits.argmax(-1), batch["targets"], batch["weights"] > 0, strict=True)
    return "\n".join(
        f"model: {named(np.atleast_1d(a[asked]))}  truth: {named(np.atleast_1d(t[asked]))}"
        for a, t, asked in rows
        if asked.any()
    )


def continue_prompt(run: Run, prompt: str, **options: Any) -> Iterator[str]:
    """Yields the prompt, and then its continuation as it is drawn."""
    task = run.config.data.task
    if run.tokenizer is None and task != "language_modelling":
        raise InvalidInput(f"this run's data.task is {task}, which reads no text")
    if run.tokenizer is not None and not len(run.tokenizer.encode(prompt)):
        raise InvalidInput(f"--prompt={prompt!r}: the tokenizer of this run finds no token in it")
    pieces = run.stream(prompt, **options)
    first = next(pieces, "")  # so that an error is raised before the prompt is shown
    yield prompt + _glue(run) + first
    yield from pieces


def _glue(run: Run) -> str:
    """Returns a space if the tokens are words without spaces, else an empty string."""
    if run.tokenizer is None or isinstance(run.tokenizer, HuggingFaceTokenizer):
        return ""
    return " " if run.tokenizer.token_bytes is None else ""


def translate_prompt(run: Run, prompt: str, **options: Any) -> Iterator[str]:
    """Yields the translation of the prompt."""
    yield run.translate([prompt])[0]


def classify_prompt(run: Run, prompt: str, **options: Any) -> Iterator[str]:
    """Yields the probabilities of the classes; a tab separates the texts of a pair."""
    texts = tuple(prompt.split("\t"))
    if run.num_texts == 2 != len(texts):
        raise InvalidInput("--prompt: this run reads pairs of texts; expected a tab between them")
    example = prompt if run.num_texts == 1 else texts
    shares = zip(run.classes, run.classify([example])[0], strict=True)
    yield "\n".join(f"{share:.3f}  {name}" for name, share in shares)


def fill_prompt(run: Run, prompt: str, **options: Any) -> Iterator[str]:
    """Yields the likeliest tokens for the ___ in the prompt, with their probabilities."""
    yield "\n".join(f"{share:.3f}  {token!r}" for token, share in run.fill_in(prompt))


def unmask_prompt(run: Run, prompt: str, **options: Any) -> Iterator[str]:
    """Yields the prompt with new tokens at its end, or at its ___, as many as fit."""
    from transformer_jax.training.unmasking import room_for, unmask_text

    if options.pop("stop", None):
        raise InvalidInput("--stop: this model draws its tokens in any order; expected no --stop")
    asked, room = options["num_tokens"], room_for(run, prompt)
    if 1 <= room < asked:
        options["num_tokens"] = room
        told = f"besides this prompt there is room for {room} of {asked} tokens"
        warnings.warn(told, stacklevel=2)
    yield unmask_text(run, prompt, **options)


class Demonstration(NamedTuple):
    """Functions that show samples and compute scores of models for a task."""

    show: Callable[..., str]  # (run, task) -> text, for the end of training
    # (run, prompt, sampling options) -> pieces of text, as they are drawn
    answer: Callable[..., Iterator[str]] = continue_prompt
    # (run, task, split) -> scores of generated output
    scores: Callable[..., GenerationScores] = lambda run, task, split: ({}, {})


def demonstration_of(task: str) -> Demonstration:
    """Returns the demonstration for a task, given the name of the task in a config."""
    return imported(traits_of(task).shown_by)


# The traits of tasks in data/tasks/__init__.py refer to these names.
GUESSES = Demonstration(show_guesses)
CONTINUATION = Demonstration(show_continuation)
FILLED_PLACES = Demonstration(show_filled_places, fill_prompt)
UNMASKED_TEXT = Demonstration(show_unmasked_text, unmask_prompt)
ANSWERS = Demonstration(show_answers, scores=free_running_scores)
TRANSLATIONS = Demonstration(show_translations, translate_prompt, translation_scores)
CLASSES_OF_TEXTS = Demonstration(show_confusions, classify_prompt)
CLASSES = Demonstration(show_confusions)

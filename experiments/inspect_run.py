"""Draws the attention weights of a trained run, and stores them as arrays.

The input is a text (with its translation, if the run translates) or an example from the test split.

Example:
  python -m experiments.inspect_run --workdir=runs/a --prompt="ROMEO: what" --out=attention.png
  python -m experiments.inspect_run --workdir=runs/a --prompt="ROMEO:" --sites="block_*.residual"
  python -m experiments.inspect_run --workdir=runs/translation --prompt="I am tired."
  python -m experiments.inspect_run --workdir=runs/digits --example=3
"""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.command import Parser, execute, use_compilation_cache
from transformer_jax.errors import InvalidInput
from transformer_jax.options import is_user_defined
from transformer_jax.paths import variables_of

_MOST_WORDS = 64


class Example(NamedTuple):
    """Input to be inspected, with names for its positions.

    Attributes:
      inputs: Keyword arguments for the model, for one example [1, ...].
      words: Names of the positions; in an encoder–decoder, of the decoder's positions.
      source: Names of the encoder's positions in an encoder–decoder, else ().
      image: [height, width, channels], pixels of the example, or None.
    """

    inputs: dict[str, Any]
    words: list[str]
    source: tuple[str, ...] = ()
    image: Any = None

    def beside(self, layer: str) -> tuple[Sequence[str], Sequence[str]]:
        """Returns the names of the query positions and of the key positions in a layer."""
        queries = self.source if layer.startswith("encoder/") else self.words
        keys = self.source if layer.endswith("cross_attention") else queries
        return queries, keys


def main(argv: list[str]) -> dict[str, Any]:
    """Inspects the input, writes a picture and arrays, and returns facts about them."""
    parser = Parser("inspect_run", __doc__)
    parser.add_run()
    parser.add_argument("--prompt", help="text for the model, for runs that read text")
    parser.add_argument(
        "--example",
        type=int,
        help="index of an example in the test split, for runs on images or vectors (0)",
    )
    parser.add_argument(
        "--out", default="attention.png", help="picture; arrays go to an .npz (attention.png)"
    )
    parser.add_argument("--sites", help="further sites to store in the .npz: A,B,...; * is allowed")
    parser.add_allow()
    parser.add_json()
    arguments = parser.read(argv)
    out = Path(arguments.out)
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise InvalidInput(f"--out={out}: expected a name that ends with .png, .svg or .pdf")
    if out.is_dir() or not out.parent.is_dir():
        raise InvalidInput(f"--out={out}: expected a file in a folder that exists")
    use_compilation_cache()

    import numpy as np

    from transformer_jax.inspection import attention_maps, capture, sites_of
    from transformer_jax.runs.pictures import draw_attention, draw_attention_over_image
    from transformer_jax.training.loading import load_run

    run = load_run(arguments.workdir, allow=arguments.allow)
    seen = _seen_by(run, arguments.prompt, arguments.example, arguments.allow)
    arrays: dict[str, Any] = {name: array[0] for name, array in seen.inputs.items()}
    arrays |= {"words": np.array(seen.words)}
    arrays |= {"source_words": np.array(seen.source)} if seen.source else {}
    if arguments.sites:
        values = capture(run.model, run.params, seen.inputs, *arguments.sites.split(","))
        arrays |= {name: np.asarray(value[0], np.float32) for name, value in values.items()}
    sites = sites_of(run.model, run.params, seen.inputs)
    has_attention = any(name.endswith(".weights") for name in sites)
    maps, told_of = {}, {}
    if has_attention or not arguments.sites:
        maps = attention_maps(run.model, run.params, seen.inputs)
    for layer, weights in maps.items():
        arrays[f"{layer}/weights"] = weights[0]
        figures, told_of[layer] = _figures_of(weights)
        arrays |= {f"{layer}/{name}": figure for name, figure in figures.items()}
        print(f"{layer}: {_in_words(told_of[layer])}")
    np.savez(out.with_suffix(".npz"), **arrays)
    if len(seen.words) > _MOST_WORDS:
        print(f"no picture: {len(seen.words)} positions; at most {_MOST_WORDS} can be drawn")
    elif maps:
        drawn = {layer: np.asarray(weights[0]) for layer, weights in maps.items()}
        if seen.image is None:
            draw_attention({layer: (drawn[layer], *seen.beside(layer)) for layer in drawn}, out)
        else:
            draw_attention_over_image(drawn, seen.image, seen.words, out)
        print(f"wrote {out}")
    print(f"wrote {out.with_suffix('.npz')}")
    return {"words": seen.words, "layers": told_of, "arrays": str(out.with_suffix(".npz"))}


def _figures_of(weights: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns arrays computed from a layer's weights [1, H, L, M], and facts about the weights."""
    import numpy as np

    from transformer_jax import inspection

    if not inspection.are_distributions(weights):
        return {}, {"entropy": None, "heads_alike": None}
    similarity = np.asarray(inspection.head_similarity(weights))
    others = similarity[~np.eye(len(similarity), dtype=bool)]
    facts = {
        "entropy": inspection.mean_entropy(weights).tolist(),
        "heads_alike": float(others.mean()) if others.size else None,
    }
    entropy = np.asarray(inspection.attention_entropy(weights)[0])
    return {"entropy": entropy, "head_similarity": similarity}, facts


def _in_words(facts: dict[str, Any]) -> str:
    if facts["entropy"] is None:
        return "no entropy: its weights are not a distribution over the keys"
    by_head, alike = ", ".join(f"{e:.2f}" for e in facts["entropy"]), facts["heads_alike"]
    likeness = "" if alike is None else f"; similarity of heads {alike:.2f} (1: identical)"
    return f"entropy by head {by_head} nats{likeness}"


def _seen_by(run: Any, prompt: str | None, example: int | None, allow: list[str]) -> Example:
    """Returns the inspected input: a prompt as the model reads it, or an example from its data."""
    task = run.config.data.task
    from_data = task in ("image_classification", "vector_classification")
    if from_data:
        if prompt is not None:
            raise InvalidInput(f"--prompt: data.task={task} reads no text; give --example=0")
        return _example_of(run, example or 0, allow)
    if example is not None or prompt is None:
        raise InvalidInput(f"data.task={task}: expected --prompt=TEXT and no --example")
    seen = _translated(run, prompt) if task == "translation" else _read(run, prompt, allow)
    longest = min(run.model.max_length, _MOST_WORDS)
    for words in (seen.words, seen.source):
        if len(words) > longest or not seen.words:
            raise InvalidInput(f"--prompt: {len(words)} tokens; expected 1 to {longest}")
    return seen


def _read(run: Any, prompt: str, allow: list[str]) -> Example:
    """Returns a prompt as the model reads it: token IDs and the words that name them."""
    import numpy as np

    from transformer_jax.data.special_tokens import special_tokens
    from transformer_jax.training.build import make_task

    task = run.config.data.task
    if task == "synthetic" or (is_user_defined(task) and run.tokenizer is None):
        vocabulary = getattr(make_task(run.config, allow=allow), "words", None)
        if vocabulary is None:
            raise InvalidInput(f"data.task={task}: expected an attribute `words`, the token names")
        words = prompt.split()
        unknown = [word for word in words if word not in vocabulary]
        if unknown:
            raise InvalidInput(
                f"--prompt: {unknown[0]!r} is not a word; expected words of {' '.join(vocabulary)}"
            )
        numbers = [vocabulary.index(word) for word in words]
    elif run.num_texts == 2:
        return _pair(run, prompt)
    else:
        numbers = run.tokenizer.encode(prompt)
        words = [run.tokenizer.decode([number]) for number in numbers]
        if task.startswith("masked_") or task == "text_classification":  # as in training
            specials = special_tokens(run.tokenizer)
            words, numbers = ["[begin]", *words], [specials.begin, *numbers]
        if task == "text_classification":
            words, numbers = [*words, "[end]"], [*numbers, specials.end]
    return Example({"tokens": np.array([numbers], np.int32)}, words)


def _pair(run: Any, prompt: str) -> Example:
    """Returns the input for a prompt of two texts separated by a tab, for a model of pairs."""
    from transformer_jax.data.tasks.classification import encode_texts

    texts = tuple(prompt.split("\t"))
    if len(texts) != 2:
        raise InvalidInput("--prompt: this run reads pairs of texts; expected a tab between them")
    inputs, _ = encode_texts(run.tokenizer, [texts], run.config.data.length)
    inputs = {name: rows[:, inputs["segments"][0] > 0] for name, rows in inputs.items()}
    return Example(inputs, _words(run.tokenizer, inputs["tokens"][0].tolist()))


def _words(tokenizer: Any, tokens: Sequence[int]) -> list[str]:
    """Returns a name for each token; special tokens are named by purpose, e.g. [begin]."""
    from transformer_jax.data.special_tokens import special_tokens

    *numbers, _ = specials = special_tokens(tokenizer)
    named = {n: f"[{name}]" for n, name in zip(numbers, specials._fields, strict=False)}
    return [named.get(token) or tokenizer.decode([token]) for token in tokens]


def _translated(run: Any, prompt: str) -> Example:
    """Returns the input for a sentence and the translation that the model writes."""
    import numpy as np

    from transformer_jax.data.special_tokens import special_tokens
    from transformer_jax.generation import generate_after

    tokenizer, specials = run.tokenizer, special_tokens(run.tokenizer)
    source, begin, length = run.source_tokens(prompt), run.target_begin, run.config.data.length
    around = len(run.source_tokens(""))
    if not around < len(source) <= length:
        raise InvalidInput(
            f"--prompt: {len(source) - around} tokens; expected 1 to {length - around}"
        )
    inputs = {"source": np.array([source], np.int32)}
    room = {"num_tokens": length - len(begin), "end": specials.end}
    written = generate_after(run.model, run.params, inputs, np.asarray(begin), **room)
    target = list(itertools.takewhile(lambda t: t != specials.end, written[0].tolist()))
    if any(token < 0 for token in target):
        raise InvalidInput("the model's logits are NaN: its parameters are broken")
    words, sources = (_words(tokenizer, tokens) for tokens in ([*begin, *target], source))
    print(f"{prompt}: {run.translate([prompt])[0]}")
    tokens = np.array([[*begin, *target]], np.int32)
    return Example({**inputs, "tokens": tokens}, words, tuple(sources))


def _example_of(run: Any, number: int, allow: list[str]) -> Example:
    """Returns an image or a sequence of vectors from the test split."""
    import numpy as np

    from transformer_jax.pooling import adds_token
    from transformer_jax.training.build import make_task
    from transformer_jax.training.loading import refuse_unlike

    task: Any = make_task(run.config, run.tokenizer, allow)
    refuse_unlike(run, task, run.config.data.source)
    count = len(task.splits["test"])
    if not 0 <= number < count:
        raise InvalidInput(f"--example={number}: expected 0 to {count - 1}, of the test split")
    batch = next(itertools.islice(task.evaluation_batches("test", 1), number, None))
    logits = run.model.apply(variables_of(run.params), **batch["inputs"])
    answer, truth = task.classes[int(np.argmax(logits[0]))], task.classes[int(batch["targets"][0])]
    print(f"example {number} of the test split: model {answer}, truth {truth}")
    pooling = run.model.pooling
    has_token = isinstance(pooling, str) and adds_token(pooling)
    first = ["class"] if has_token else []
    if "images" not in batch["inputs"]:
        places = range(batch["inputs"]["vectors"].shape[1])
        return Example(batch["inputs"], [*first, *map(str, places)])
    image = task.inputs["images"][task.splits["test"][number]]
    first += ["register"] * getattr(run.model, "registers", 0)
    return Example(batch["inputs"], first, image=image)


if __name__ == "__main__":
    execute(main)

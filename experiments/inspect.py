"""Looks into a trained run: who listens to whom in a prompt, as a picture and as arrays.

Example:
  python -m experiments.inspect --workdir=runs/a --prompt="ROMEO: what" --out=attention.png
  python -m experiments.inspect --workdir=runs/a --prompt="ROMEO: what" --sites="block_*.residual"
"""

from pathlib import Path
from typing import Any

from experiments.command import Parser, execute, use_compilation_cache
from transformer_jax.errors import InvalidInput
from transformer_jax.options.rule import is_own

_MOST_WORDS = 64


def main(argv: list[str]) -> dict[str, Any]:
    """Looks at the prompt, writes a picture and its arrays, and returns what it prints."""
    parser = Parser("inspect", __doc__)
    parser.add_argument("--workdir", required=True, help="the run's directory")
    parser.add_argument("--prompt", required=True, help="text for the model")
    parser.add_argument("--out", default="attention.png", help="picture (attention.png); .npz too")
    parser.add_argument("--sites", help="names, with *, of further arrays for the .npz: A,B,...")
    parser.add_allow()
    parser.add_json()
    arguments = parser.read(argv)
    out = Path(arguments.out)
    if out.suffix not in (".png", ".svg", ".pdf"):
        raise InvalidInput(f"--out={out}: expected a name that ends with .png, .svg or .pdf")
    use_compilation_cache()

    import numpy as np

    from transformer_jax.inspection import (
        attention_entropy,
        attention_maps,
        capture,
        head_similarity,
        sites_of,
    )
    from transformer_jax.runs.pictures import draw_attention
    from transformer_jax.training.loading import load_run

    run = load_run(arguments.workdir, allow=arguments.allow)
    words, tokens = _tokens_of(run, arguments.prompt, arguments.allow)
    inputs = {"tokens": tokens[None]}
    arrays: dict[str, Any] = {"tokens": tokens, "words": np.array(words)}
    if arguments.sites:
        values = capture(run.model, run.params, inputs, *arguments.sites.split(","))
        arrays |= {name: np.asarray(value[0], np.float32) for name, value in values.items()}
    there = sites_of(run.model, run.params, inputs)
    has_attention = any(name.endswith(".weights") for name in there)
    maps, told_of = {}, {}
    if has_attention or not arguments.sites:
        maps = attention_maps(run.model, run.params, inputs)
    for layer, weights in maps.items():
        arrays[f"{layer}/weights"] = weights[0]
        arrays[f"{layer}/entropy"] = attention_entropy(weights)[0]
        similarity = np.asarray(head_similarity(weights))
        arrays[f"{layer}/head_similarity"] = similarity
        others = similarity[~np.eye(len(similarity), dtype=bool)]
        told = f"; heads alike {others.mean():.2f} (1: the same)" if others.size else ""
        entropy = arrays[f"{layer}/entropy"].mean(-1)
        alike = float(others.mean()) if others.size else None
        told_of[layer] = {"entropy": entropy.tolist(), "heads_alike": alike}
        print(f"{layer}: entropy by head {', '.join(f'{e:.2f}' for e in entropy)} nats{told}")
    if maps:
        draw_attention({layer: np.asarray(w[0]) for layer, w in maps.items()}, words, out)
        print(f"wrote {out}")
    np.savez(out.with_suffix(".npz"), **arrays)
    print(f"wrote {out.with_suffix('.npz')}")
    return {"words": words, "layers": told_of, "arrays": str(out.with_suffix(".npz"))}


def _tokens_of(run: Any, prompt: str, allow: list[str]) -> tuple[list[str], Any]:
    """The words of a prompt as the model reads them, and their numbers."""
    import numpy as np

    from transformer_jax.data.tokenizers import special_tokens
    from transformer_jax.training.build import make_task

    task = run.config.data.task
    if task == "synthetic" or (is_own(task) and run.tokenizer is None):
        known = getattr(make_task(run.config, allow=allow), "words", None)
        if known is None:
            raise InvalidInput(f"data.task={task} names no words; give it `words`, one for a token")
        words = prompt.split()
        unknown = [word for word in words if word not in known]
        if unknown:
            raise InvalidInput(f"--prompt: {unknown[0]!r} is no word; expected {' '.join(known)}")
        numbers = [known.index(word) for word in words]
    elif task == "language_modelling" or is_own(task):
        numbers = run.tokenizer.encode(prompt)
        words = [run.tokenizer.decode([number]) for number in numbers]
    elif task in ("masked_language_modelling", "text_classification"):
        numbers = run.tokenizer.encode(prompt)
        words = ["[begin]", *(run.tokenizer.decode([number]) for number in numbers), "[end]"]
        specials = special_tokens(run.tokenizer)
        numbers = [specials.begin, *numbers, specials.end]  # as it was trained
    else:
        raise InvalidInput(f"this run's data.task is {task}: expected one that reads one text")
    longest = min(run.model.max_length, _MOST_WORDS)
    if not 1 <= len(numbers) <= longest:
        raise InvalidInput(f"--prompt: {len(numbers)} tokens; expected 1 to {longest}")
    return words, np.array(numbers, np.int32)


if __name__ == "__main__":
    execute(main)

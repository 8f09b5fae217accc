"""Samples from a trained run: continues, translates or classifies a prompt, or fills in its ___.

Example:
  python -m experiments.sample --workdir=runs/a --prompt="ROMEO:" --temperature=0.8 --seed=1
  python -m experiments.sample --workdir=runs/translation --prompt="I am tired."
"""

import sys

from experiments.command import Parser, execute, use_compilation_cache
from transformer_jax.data.tasks import traits_of


def main(argv: list[str]) -> dict[str, str]:
    """Prints a run's answer to a prompt; returns the prompt and the answer."""
    parser = Parser("sample", __doc__)
    parser.add_run()
    parser.add_argument("--prompt", default="\n", help="text for the model (a line break)")
    parser.add_argument("--num_tokens", type=int, default=300, help="tokens to add (300)")
    parser.add_argument(
        "--temperature", type=float, default=0.8, help="divisor of the logits; 0 is greedy (0.8)"
    )
    parser.add_argument("--top_k", type=int, help="draw from the k likeliest tokens (all)")
    parser.add_argument(
        "--top_p", type=float, default=1.0, help="probability of the nucleus to draw from (1)"
    )
    what = r"end the answer before this text, such as $'\n'; can be repeated"
    parser.add_list("--stop", "STOP", what)
    parser.add_argument(
        "--seed", type=int, default=0, help="random seed; the same seed gives the same text (0)"
    )
    parser.add_mesh()
    parser.add_allow()
    parser.add_json()
    arguments = parser.read(argv)
    use_compilation_cache()

    from transformer_jax.training.loading import load_run
    from transformer_jax.training.run import to_write
    from transformer_jax.training.showcases import demonstration_of

    options = vars(arguments)
    del options["json"]
    where = {name: options.pop(name) for name in ("workdir", "allow", "mesh")}
    run = load_run(**where)
    demonstration = demonstration_of(run.config.data.task)
    drawn = {"num_tokens", "temperature", "top_k", "top_p", "stop", "seed"}
    asked = sorted({a.removeprefix("--").partition("=")[0] for a in argv} & drawn)
    traits = traits_of(run.config.data.task)
    if asked and traits.source is not None and not traits.sampled:  # a user-defined task may draw
        print(f"note   answers are not sampled; ignored: --{', --'.join(asked)}", file=sys.stderr)
    answers, run = [], to_write(run, run.sharding)
    for piece in demonstration.answer(run, **options):
        print(piece, end="", flush=True)
        answers.append(piece)
    print()
    return {"prompt": arguments.prompt, "answer": "".join(answers)}


if __name__ == "__main__":
    execute(main)

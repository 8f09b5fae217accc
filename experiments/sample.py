"""Continues a prompt with a trained run.

Example:
  python -m experiments.sample --workdir=runs/a --prompt="ROMEO:" --temperature=0.8 --seed=1
"""

from experiments.command import Parser, execute, use_compilation_cache


def main(argv: list[str]) -> None:
    """Reads the arguments, loads the run and prints prompt and continuation."""
    parser = Parser("sample", __doc__)
    parser.add_argument("--workdir", required=True, help="the run's directory")
    parser.add_argument("--prompt", default="\n", help="text to continue (a line break)")
    parser.add_argument("--num_tokens", type=int, default=300, help="tokens to add (300)")
    parser.add_argument("--temperature", type=float, default=0.8, help="0 is greedy (0.8)")
    parser.add_argument("--top_k", type=int, help="draw among the k likeliest tokens")
    parser.add_argument("--top_p", type=float, default=1.0, help="nucleus probability (1)")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same text (0)")
    arguments = parser.read(argv)
    use_compilation_cache()

    from transformer_jax.training.loading import load_run

    continuation = load_run(arguments.workdir).sample(
        arguments.prompt,
        arguments.num_tokens,
        arguments.temperature,
        arguments.top_k,
        arguments.top_p,
        arguments.seed,
    )
    print(arguments.prompt + continuation)


if __name__ == "__main__":
    execute(main)

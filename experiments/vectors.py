"""Makes word vectors out of the first part of a text, to start embeddings from.

Example:
  python -m experiments.vectors --source=movie_snippets --vocab_size=2000 --width=64 \
    --out=runs/vectors.txt
"""

import math
from pathlib import Path

from experiments.command import Parser, by_flags, execute, file_to_write
from transformer_jax.errors import InvalidInput


def main(argv: list[str]) -> None:
    """Reads the arguments, counts, factors and writes."""
    parser = Parser("vectors", __doc__)
    parser.add_argument("--source", required=True, help="as data.source of language modelling")
    parser.add_argument("--out", required=True, help="a new file, for initial.word_vectors")
    parser.add_argument("--vocab_size", type=int, default=4096, help="words (4096)")
    parser.add_argument("--width", type=int, default=128, help="numbers in a vector (128)")
    parser.add_argument("--window", type=int, default=5, help="words on each side (5)")
    parser.add_argument("--rms", type=float, default=0.02, help="their root mean square (0.02)")
    parser.add_argument("--share", type=float, default=0.75, help="of the lines, the first (0.75)")
    arguments = parser.read(argv)
    for name in ("vocab_size", "width", "window", "rms", "share"):
        argument = getattr(arguments, name)
        if isinstance(argument, int) and argument < 1:
            raise InvalidInput(f"--{name}={argument}: expected an integer >= 1")
        if not (argument > 0 and math.isfinite(argument)) or (name == "share" and argument > 1):
            allowed = "in (0, 1]" if name == "share" else "> 0"
            raise InvalidInput(f"--{name}={argument}: expected a finite number {allowed}")
    if Path(arguments.out).is_file():
        raise InvalidInput(f"--out={arguments.out}: expected a new file, this one exists")
    out = file_to_write(arguments.out, "--out")

    from transformer_jax.data.sources.text import read_pieces
    from transformer_jax.data.tokenizers import WordTokenizer
    from transformer_jax.data.word_vectors import word_vectors, write_word_vectors

    with by_flags("source", "width"):
        lines = "".join(piece.text for piece in read_pieces(arguments.source)).splitlines()
        lines = lines[: int(arguments.share * len(lines))]
        tokenizer = WordTokenizer.train(lines, arguments.vocab_size)
        vectors = arguments.rms * word_vectors(lines, tokenizer, arguments.width, arguments.window)
    count = write_word_vectors(out, tokenizer.words, vectors)
    print(f"vectors  {out}: {count:,} words of {len(lines):,} lines")


if __name__ == "__main__":
    execute(main)

r"""Tokenizes a text into memory-mapped shards, for corpora larger than memory.

Example:
  python -m experiments.make_shards --source=my_texts/ --tokenizer=bpe --vocab_size=8192 \
    --out=shards
  python -m experiments.train --config=configs/shakespeare.py --workdir=runs/b \
    --config.data.source=shards
"""

import functools
from pathlib import Path
from typing import Any

from experiments.command import Parser, by_flags, execute, refuse_unread
from transformer_jax.config import OPTIONS
from transformer_jax.data.sources.files import refuse_missing
from transformer_jax.data.sources.shards import refuse_used_folder, write_shards
from transformer_jax.data.sources.text import first_texts, read_pieces
from transformer_jax.data.tokenizers import make_tokenizer
from transformer_jax.declarations import Option
from transformer_jax.errors import InvalidInput
from transformer_jax.options import Count, PositiveShare


def main(argv: list[str]) -> dict[str, Any]:
    """Trains or loads a tokenizer, and writes the shards; returns facts about them."""
    parser = Parser("make_shards", __doc__)
    parser.add_argument("--source", required=True, help="a text file or a folder of .txt files")
    parser.add_argument("--out", required=True, help="a new or empty folder")
    parser.add_argument("--tokenizer", default="bpe", help="byte, char, word, bpe, or a file")
    what = "size of a bpe or word vocabulary (4096)"
    parser.add_argument("--vocab_size", type=int, help=what)
    what = "share of the text that a bpe or word tokenizer is trained on, as in data.splits (0.9)"
    parser.add_argument("--train_share", type=float, help=what)
    parser.add_argument("--text_field", default="text", help="field of documents (text)")
    parser.add_argument("--document_separator", help="line that ends a document (none)")
    parser.add_argument(
        "--shard_tokens", type=int, default=100_000_000, help="maximum tokens per file (1e8)"
    )
    parser.add_json()
    arguments = parser.read(argv)
    refuse_used_folder(Path(arguments.out))
    for name, default in {"vocab_size": 4096, "train_share": 0.9}.items():
        if arguments.tokenizer not in ("bpe", "word"):
            refuse_unread(arguments, (name,), f"with --tokenizer={arguments.tokenizer}")
        if getattr(arguments, name) is None:
            setattr(arguments, name, default)
    rules = {
        "vocab_size": OPTIONS["data.vocab_size"],
        "train_share": Option(PositiveShare, 1.0),
        "shard_tokens": Option(Count, 1),
    }
    for name, rule in rules.items():
        value = getattr(arguments, name)
        if not rule.accepts(value):
            raise InvalidInput(f"--{name}={value}: expected {rule.allowed}")
    source, share = arguments.source, arguments.train_share
    with by_flags("source", "tokenizer", "vocab_size"):
        refuse_missing(source, "text")
        read = functools.partial(first_texts, source, text_field=arguments.text_field)
        choice, size = arguments.tokenizer, arguments.vocab_size
        tokenizer = make_tokenizer(choice, lambda: read(share), size, read)
        pieces = read_pieces(source, arguments.document_separator, arguments.text_field)
        layout = arguments.shard_tokens, arguments.document_separator
        count = write_shards(pieces, tokenizer, Path(arguments.out), *layout)
    print(f"{count:,} tokens of {tokenizer.vocab_size:,} symbols in {arguments.out}/")
    return {"tokens": count, "vocab_size": tokenizer.vocab_size, "shards": arguments.out}


if __name__ == "__main__":
    execute(main)

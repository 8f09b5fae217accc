"""Special tokens: padding, begin, end and mask."""

from typing import NamedTuple

from transformer_jax.data.subword_tokenizers import HuggingFaceTokenizer
from transformer_jax.data.tokenizers import Tokenizer


class Specials(NamedTuple):
    """Numbers of the special tokens.

    Attributes:
      padding: Pads a row; hidden from models.
      begin: Precedes a text; BERT's class token.
      end: Follows a text; BERT's separator.
      mask: Replaces a hidden token.
      vocab_size: Number of text and special tokens together.
    """

    padding: int
    begin: int
    end: int
    mask: int
    vocab_size: int


# What files of others call them; the first is our own name.
SPECIAL_NAMES = {
    "padding": ("[PAD]", "<pad>"),
    "begin": ("[CLS]", "<s>", "<bos>"),
    "end": ("[SEP]", "</s>", "<eos>"),
    "mask": ("[MASK]", "<mask>"),
}


def special_tokens(tokenizer: Tokenizer) -> Specials:
    """Returns a tokenizer's own special tokens; those that it lacks follow its vocabulary."""
    numbers, size = {}, tokenizer.vocab_size
    for purpose, names in SPECIAL_NAMES.items():
        is_theirs = isinstance(tokenizer, HuggingFaceTokenizer)
        number = tokenizer.number_of(*names) if is_theirs else None
        if number is None:
            number, size = size, size + 1
        numbers[purpose] = number
    return Specials(**numbers, vocab_size=size)

"""Special tokens for padding, begin, end and mask."""

from typing import NamedTuple

from transformer_jax.data.subword_tokenizers import HuggingFaceTokenizer
from transformer_jax.data.tokenizers import Tokenizer


class Specials(NamedTuple):
    """IDs of the special tokens, and the size of the vocabulary that includes them.

    `padding` is masked out; `begin` and `end` serve as BERT's class token and separator.
    """

    padding: int
    begin: int
    end: int
    mask: int
    vocab_size: int


# Names in pretrained tokenizers' files; the first is our own.
SPECIAL_NAMES = {
    "padding": ("[PAD]", "<pad>"),
    "begin": ("[CLS]", "<s>", "<bos>"),
    "end": ("[SEP]", "</s>", "<eos>"),
    "mask": ("[MASK]", "<mask>"),
}


def special_tokens(tokenizer: Tokenizer) -> Specials:
    """Returns a tokenizer's special tokens; those it lacks are numbered after its vocabulary."""
    numbers, size = {}, tokenizer.vocab_size
    has = tokenizer.number_of if isinstance(tokenizer, HuggingFaceTokenizer) else lambda *_: None
    for purpose, names in SPECIAL_NAMES.items():
        number = has(*names)
        if number is None:
            number, size = size, size + 1
        numbers[purpose] = number
    return Specials(**numbers, vocab_size=size)

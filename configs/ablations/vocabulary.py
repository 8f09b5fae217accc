"""Characters or byte pairs, after as many bytes of text at as many operations.

Byte pairs make texts shorter, so that a wider model reads as many bytes with as many operations.
An update reads 768 bytes of training text, in four windows of 192, whatever the tokens are.

Command:   python -m experiments.ablate --config=configs/ablations/vocabulary.py --seeds=60:65 \
             --workdir=runs/vocabulary --executor=local --cells_per_job=10
Takes:     about 90 minutes on 2 slow CPU cores, two runs at a time (--executor=local).

Answer: Not decided: 1,024 byte pairs are ahead of characters in every seed (0.067 bits per byte,
interval -0.025 to 0.168) and 4,096 behind (0.077), and five seeds leave both open.

Limits: One text of characters, windows of 192 bytes and one and a half passes over the text;
wider models have up to 3.9 times the baseline's parameters. One initial size and schedule for
all, chosen with characters at width 128. The grid of learning rates was moved down by a factor of
2 after trials at a quarter of the updates had been seen.
"""

from configs import shakespeare
from configs.ablations import LEARNING_RATES


def get_config():
    """Returns 4 windows of 192 characters an update, with rotary positions."""
    config = shakespeare.get_config()
    config.data.length = config.model.max_length = 192
    config.training.batch_size = 4
    config.evaluation.batch_size = 16
    config.model.position = "rotary"
    return config


def get_arms():
    """Returns vocabularies in models as wide as the baseline's operations allow, within 2 %.

    One is as wide as the baseline, which tells the vocabulary from the width: its updates have 0.41
    of the operations.
    """
    return {
        "characters": {},
        "1024 byte pairs": _byte_pairs(1024, 79, width=208),
        "4096 byte pairs": _byte_pairs(4096, 59, width=216),
        "1024, as wide": _byte_pairs(1024, 79, width=128),
    }


def _byte_pairs(vocab_size, length, width):
    """Windows of `length` tokens hold about 192 bytes of the training split."""
    return {
        "data.tokenizer": "bpe",
        "data.vocab_size": vocab_size,
        "data.length": length,
        "model.max_length": length,
        "model.width": width,
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Characters or byte pairs, after as many bytes of text at as many operations?",
        "prediction": "1,024 byte pairs are better than characters by 0.02 to 0.08; 4,096 lie "
        "between 0.05 worse and 0.06 better, since each token is seen less often; 1,024 in a model "
        "as wide as the base, with fewer operations, lie between 0.06 worse and 0.02 better.",
        "expected": {
            "1024 byte pairs": (0.02, 0.08),
            "4096 byte pairs": (-0.05, 0.06),
            "1024, as wide": (-0.06, 0.02),
        },
        "metric": "bits_per_byte",
        "margin": 0.015,
        "margin_reason": "1 % of the perplexity of a byte is 0.0144; over 18 runs the test loss of "
        "configs/shakespeare.py has a standard deviation of 0.013 bits",
        "looks": (5,),
        "base": "characters",
        "tuning": LEARNING_RATES,
    }

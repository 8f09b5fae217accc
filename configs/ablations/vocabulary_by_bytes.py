"""Question: characters or byte pairs, after as many bytes of text at as many operations.

Byte pairs make texts shorter, so that a wider model reads as many bytes with as many operations. An
update reads 768 bytes of training text, in four windows of 192, whatever the tokens are. Seen
before the prediction was written: one run of seed 0 of the base and one of 1,024 byte pairs, not
tuned: 2.488 and 2.437 bits per byte. Seen after it: validation losses of seed 1000 at a quarter of
the updates, by which the best of 0.001, 0.002, 0.004 and 0.008 is 0.002 (characters; 4,096 byte
pairs; 1,024 in the narrow model) or 0.001 (1,024 in the wide one).

Limits: one text of characters, windows of 192 bytes, one and a half passes over the text; wider
models have up to 3.9 times the base's parameters, and are as deep, with as many heads. One initial
size and schedule for all, which were chosen with characters at width 128. The trials of its tuning
at a quarter of the updates were seen before it was sealed, and the grid of rates was moved down by
a factor of 2 after them. The arm that is as wide as the base does 0.41 of its operations. The
deviation of 0.013 in the margin's reason is an estimate for one run; the 18 runs have 0.011.

Command:   python -m experiments.ablate --config=configs/ablations/vocabulary_by_bytes.py \
             --seeds=60:65 --workdir=runs/vocabulary_by_bytes --executor=local --cells_per_job=10
Takes:     about 90 minutes on 2 slow CPU cores, two runs at a time (--executor=local); 80 with the
           trials that had been seen.
"""

from configs import shakespeare


def get_config():
    """Returns the base: 4 windows of 192 characters an update, with rotary positions."""
    config = shakespeare.get_config()
    config.data.length = config.model.max_length = 192
    config.training.batch_size = 4
    config.evaluation.batch_size = 16
    config.model.position = "rotary"
    return config


def get_arms():
    """Returns vocabularies in models that are as wide as the base's operations allow, within 2 %.

    One is as wide as the base, which tells the vocabulary from the width: its updates have 0.41 of
    the operations.
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
        "shakespeare.py has a standard deviation of 0.013 bits, and 5-grams are 0.2 better than "
        "4-grams",
        "looks": (5,),
        "base": "characters",
        "tuning": {
            "options": {"optimizer.learning_rate": (5e-4, 1e-3, 2e-3, 4e-3)},
            "seeds": (1000, 1001),
            "rungs": ((0.25, 1), (0.5, 2)),
            "refine": "optimizer.learning_rate",
        },
        "supersedes": "vocabulary.py compared as many tokens, which hold more text where the "
        "vocabulary is larger, in models of up to 3.4 times the parameters that had not learned",
    }

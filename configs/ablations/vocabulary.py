"""Question: characters, or byte pairs, and how many.

Command:   python -m experiments.ablate --config=configs/ablations/vocabulary.py --seeds=10:15 \
             --workdir=runs/vocabulary
Takes:     about 3 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import quick


def get_config():
    """Returns the base: 65 characters."""
    return quick.get_config()


def get_arms():
    """Returns vocabularies; a window is as many tokens, so more text in a larger one."""
    return {
        "characters": {},
        **{
            f"{size} byte pairs": {"data.tokenizer": "bpe", "data.vocab_size": size}
            for size in (512, 1024, 4096)
        },
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "How large should the vocabulary be, after as many updates of as many tokens?",
        "prediction": "512 byte pairs are better than characters, since each update reads more "
        "text; 1,024 and 4,096 are better still.",
        "metric": "bits_per_byte",
        "margin": 0.02,
        "margin_reason": "about what 4 % more training gives characters and 10 % byte pairs: 15 % "
        "gave 0.073 and 0.030 over 3 seeds",
        "looks": (5,),
        "base": "characters",
    }

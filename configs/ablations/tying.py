"""Question: may the output layer be the embedding.

Command:   python -m experiments.ablate --config=configs/ablations/tying.py --seeds=10:15 \
             --workdir=runs/tying
Takes:     about 2 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import quick


def get_config():
    """Returns the base: byte-pair tokens, 512 of them, tied."""
    config = quick.get_config()
    config.data.tokenizer = "bpe"
    config.data.vocab_size = 512
    return config


def get_arms():
    """Returns tied and untied; 32,768 parameters are half of the feed-forward layers."""
    return {
        "tied": {},
        "untied": {"model.tie_embeddings": False},
        "untied, as many parameters": {"model.tie_embeddings": False, "model.mlp_dim": 128},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does tying the embedding and the output layer save parameters without loss?",
        "prediction": "Untied is no better than tied by the margin, and worse at equal parameters.",
        "metric": "loss",
        "margin": 0.02,
        "margin_reason": "about what 7 % more training gives with 512 byte pairs: 15 % gave 0.040 "
        "over 3 seeds",
        "looks": (5,),
        "base": "tied",
    }

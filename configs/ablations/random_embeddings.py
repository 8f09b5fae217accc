"""Question: do token embeddings have to be learned.

Command:   python -m experiments.ablate --config=configs/ablations/random_embeddings.py \
             --seeds=5:10 --workdir=runs/random_embeddings
Takes:     about 1 minute on 2 CPU cores that had other work.
"""

from configs.ablations import quick


def get_config():
    """Returns the base: learned embeddings, with an output layer of its own."""
    config = quick.get_config()
    config.model.tie_embeddings = False
    return config


def get_arms():
    """Returns learned embeddings, and those that stay as they were drawn."""
    return {"learned": {}, "random": {"training.frozen": ("token_embedding",)}}


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Do token embeddings have to be learned?",
        "prediction": "Random ones are worse by less than the margin: 65 random vectors of 64 "
        "features can be told apart.",
        "metric": "loss",
        "margin": 0.02,
        "margin_reason": "about what 6 % more training gives quick.py: 15 % gave 0.050 over 3 "
        "seeds",
        "looks": (5,),
        "base": "learned",
    }

"""Question: positions at the input or in every layer; embeddings learned, or random and frozen.

Command:   python -m experiments.ablate --config=configs/ablations/embeddings.py --seeds=5 \
             --workdir=runs/embeddings
Takes:     about 3 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import quick


def get_config():
    """Returns the base: learned positions at the input."""
    return quick.get_config()


def get_arms():
    """Returns where positions are added, and what stays as it was drawn."""
    everywhere, frozen = "model.position_in_every_layer", "training.frozen"
    return {
        "at the input": {},
        "in every layer": {everywhere: True},
        "random tokens": {frozen: ("token_embedding",), "model.tie_embeddings": False},
        "learned tokens, untied": {"model.tie_embeddings": False},
        "random positions": {frozen: ("positions",)},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Do positions have to be added in every layer, and do embeddings have to "
        "be learned?",
        "prediction": "Positions in every layer are no different from positions at the input; "
        "random tokens are within the margin of learned ones that are untied; "
        "random positions are worse.",
        "metric": "loss",
        "margin": 0.02,
        "margin_reason": "about what 6 % more training gives quick.py: 15 % gave 0.050 over 3 "
        "seeds",
        "looks": (5,),
        "base": "at the input",
    }

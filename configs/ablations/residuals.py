"""Residual connections and norms, each alone, both, and neither, in 8 blocks.

Command:   python -m experiments.ablate --config=configs/ablations/residuals.py --seeds=40:45 \
             --workdir=runs/residuals
Takes:     66 minutes on 2 CPU cores.

Answer: Without residual connections eight blocks learn little more than the frequencies of letters
(1.60 nats worse, with and without norms); without norms alone the difference is unresolved.

Limits: One text of characters, 8 blocks of width 96 and 2,000 updates, with a learning rate for
each arm but one initial size for all (0.12, at which the arm without norms did best in runs of
one seed). With attention that starts as the identity deep decoders without residual connections
do learn (He et al. 2023, arXiv:2302.10322), which was not tried. "No norm" has no final norm
either.
"""

from configs import shakespeare
from configs.ablations import CHARACTERS, LEARNING_RATES


def get_config():
    """Returns configs/shakespeare.py with 8 pre-norm blocks of width 96.

    Initial values are twice as large as there: at 0.06 what the blocks make of a text without
    residual connections and norms is smaller than float32 can tell from zero.
    """
    config = shakespeare.get_config()
    config.model.depth = 8
    config.model.width = 96
    config.model.num_heads = 6
    config.model.init_std = 0.12
    return config


def get_arms():
    """Returns the four combinations."""
    wiring, norm = "model.wiring", "model.norm"
    return {
        "both": {},
        "no norm": {norm: "none"},
        "no residual": {wiring: "no_residual"},
        "neither": {wiring: "no_residual", norm: "none"},
    }


def get_study():
    """Returns how it is judged."""
    return {
        **CHARACTERS,
        "question": "What do residual connections and norms each do for a deep decoder, each at "
        "its own learning rate?",
        "prediction": "Without residual connections eight blocks learn the frequencies of letters "
        "and no more, with or without norms, at every rate: worse by more than 1. Without norms "
        "they learn, and are worse by 0.01 to 0.1.",
        "expected": {
            "no norm": (-0.1, -0.01),
            "no residual": (None, -1.0),
            "neither": (None, -1.0),
        },
        "base": "both",
        "tuning": LEARNING_RATES,
    }

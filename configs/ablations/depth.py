"""Deep and narrow or shallow and wide, with the same parameters and the same head size.

Command:   python -m experiments.ablate --config=configs/ablations/depth.py --seeds=20:25 \
             --workdir=runs/depth
Takes:     30 minutes on 2 CPU cores.

Answer: Not decided: one, two and eight blocks could not be told apart from four at the same number
of parameters.

Limits: One text of characters, 0.8 million parameters and windows of 64, with a learning rate for
each arm, found in runs of half the updates, but one initial size and schedule for all. Heads have
16 features everywhere, so that a wider model has more of them. More updates, or a larger model,
may want more blocks.
"""

from configs import shakespeare
from configs.ablations import CHARACTERS, LEARNING_RATES

# Widths that are multiples of 16; the feed-forward width is solved for, near 4 times the width.
_WIDTHS = {4: 128, 1: 256, 2: 176, 8: 96}


def get_config():
    """Returns configs/shakespeare.py with 8 heads of 16 features in 4 blocks."""
    config = shakespeare.get_config()
    config.model.num_heads = 8
    return config


def get_arms():
    """Returns depths; the width is such that each has about the baseline's parameters."""
    return {
        f"depth {depth}": {
            "model.depth": depth,
            "model.width": width,
            "model.num_heads": width // 16,
        }
        for depth, width in _WIDTHS.items()
    }


def get_study():
    """Returns how it is judged."""
    return {
        **CHARACTERS,
        "question": "How deep should a decoder be, at the same number of parameters?",
        "prediction": "One block is worse than four by more than the margin, two are within 0.02 "
        "of four, eight are no better than four.",
        "expected": {
            "depth 1": (None, -0.01),
            "depth 2": (-0.02, 0.02),
            "depth 8": (None, 0.01),
        },
        "base": "depth 4",
        "match": {"by": "params", "field": "model.mlp_dim"},
        "tuning": LEARNING_RATES,
    }

"""Question: deep and narrow or shallow and wide, with the same parameters and the same heads.

Command:   python -m experiments.ablate --config=configs/ablations/depth_wide.py --seeds=20:25 \
             --workdir=runs/depth_wide
Takes:     30 minutes on 2 CPU cores (AMD EPYC).

Limits: one text of characters, 0.8 million parameters, windows of 64; a rate for each arm, but one
initial size and schedule for all. Heads have 16 features everywhere, so that a wider model has more
of them; more updates, or a larger model, may want more blocks. Rates were found at half the
updates. By 18 crossed runs of shakespeare.py the test loss of one has a standard deviation of about
0.009 (some 5 degrees of freedom); they range over 0.029, more than the margin's reason says. Its
0.138 is 0.1374, before 4-grams and 5-grams are rounded.
"""

from configs import shakespeare

# Widths that are multiples of 16; the feed-forward width is solved for, near 4 times the width.
_WIDTHS = {4: 128, 1: 256, 2: 176, 8: 96}


def get_config():
    """Returns the base: shakespeare.py with 8 heads of 16 features in 4 blocks."""
    config = shakespeare.get_config()
    config.model.num_heads = 8
    return config


def get_arms():
    """Returns depths; the width is such that each has about the base's parameters."""
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
        "question": "How deep should a decoder be, at the same number of parameters?",
        "prediction": "One block is worse than four by more than the margin, two are within 0.02 "
        "of four, eight are no better than four. Over all, more blocks are better, by less than "
        "0.1 from one to eight.",
        "expected": {
            "depth 1": (None, -0.01),
            "depth 2": (-0.02, 0.02),
            "depth 8": (None, 0.01),
            "trend": (0.0, 0.1),
        },
        "metric": "loss",
        "margin": 0.01,
        "margin_reason": "1 % of the perplexity; three seeds of shakespeare.py lie within 0.007, "
        "and going from 4-grams to 5-grams gives 0.138",
        "looks": (5,),
        "base": "depth 4",
        "trend": "model.depth",
        "match": {"by": "params", "field": "model.mlp_dim"},
        "tuning": {
            "options": {"optimizer.learning_rate": (2e-3, 4e-3, 8e-3, 1.6e-2)},
            "seeds": (1000, 1001),
            "rungs": ((0.25, 1), (0.5, 2)),
            "refine": "optimizer.learning_rate",
        },
        "supersedes": "depth.py asked it of a model that had not learned, whose heads became "
        "smaller with the width, at one learning rate for all",
    }

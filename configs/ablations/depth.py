"""Question: deep and narrow or shallow and wide, with the same number of parameters.

Command:   python -m experiments.ablate --config=configs/ablations/depth.py --seeds=8:16 \
             --workdir=runs/depth
Takes:     about 6 minutes on 2 CPU cores.
"""

from configs.ablations import small


def get_config():
    """Returns the base: 2 layers of width 64."""
    return small.get_config()


def get_arms():
    """Returns depths; the width is solved for, so that each has the base's parameters."""
    return {f"depth {depth}": {"model.depth": depth} for depth in (2, 1, 4, 8)}


def get_study():
    """Returns how it is judged."""
    return {
        "question": "How deep should a decoder be, at the same number of parameters?",
        "prediction": "One layer is worse than two; four are better; eight are no better than "
        "four.",
        "metric": "loss",
        "margin": 0.01,
        "margin_reason": "about what 5 % more training gives here: 15 % gave 0.033 over 4 seeds",
        "looks": (8,),
        "base": "depth 2",
        "match": {"by": "params", "field": ("model.width", "model.mlp_dim")},
    }

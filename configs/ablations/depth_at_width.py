"""Question: does more depth help, at the same width.

Command:   python -m experiments.ablate --config=configs/ablations/depth_at_width.py --seeds=5 \
             --workdir=runs/depth_at_width
Takes:     about 3 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import quick


def get_config():
    """Returns the base: 2 layers of width 64."""
    return quick.get_config()


def get_arms():
    """Returns depths; each layer adds as many parameters."""
    return {f"depth {depth}": {"model.depth": depth} for depth in (2, 1, 4, 6)}


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Do more blocks of the same width make a better model, after as many updates?",
        "prediction": "One layer is worse than two, four are better than two, six are no worse "
        "than four.",
        "metric": "loss",
        "margin": 0.02,
        "margin_reason": "about what 6 % more training gives quick.py: 15 % gave 0.050 over 3 "
        "seeds",
        "looks": (5,),
        "base": "depth 2",
    }

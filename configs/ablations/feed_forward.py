"""Question: is there a use for the feed-forward layer, at equal parameters.

Command:   python -m experiments.ablate --config=configs/ablations/feed_forward.py --seeds=5 \
             --workdir=runs/feed_forward
Takes:     about 3 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import quick


def get_config():
    """Returns the base: 2 layers of width 64, feed-forward layers of 256."""
    return quick.get_config()


def get_arms():
    """Returns kinds; the width is solved for, so that each has the base's parameters."""
    activation = "model.activation"
    return {
        "gelu": {},
        "none": {"model.feed_forward": "none"},
        "relu": {activation: "relu"},
        "SwiGLU": {"model.feed_forward": "gated", activation: "silu"},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does the feed-forward layer add something that wider attention does not?",
        "prediction": "Without feed-forward layers, as wide as has as many parameters, the loss"
        " is worse by more than the margin; ReLU is no different, SwiGLU better.",
        "metric": "loss",
        "margin": 0.02,
        "margin_reason": "about what 6 % more training gives quick.py: 15 % gave 0.050 over 3 "
        "seeds",
        "looks": (5,),
        "base": "gelu",
        "match": {"by": "params", "field": "model.width"},
    }

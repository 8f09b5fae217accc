"""Question: what does dividing the scores by sqrt(d_k) do, with 64 features a head.

Command:   python -m experiments.ablate --config=configs/ablations/scale.py --seeds=5:10 \
             --workdir=runs/scale
Takes:     about 2 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import quick


def get_config():
    """Returns the base: 4 heads of 64 features, scores over 8."""
    config = quick.get_config()
    config.model.head_dim = 64
    return config


def get_arms():
    """Returns scales of the scores."""
    scale = "model.attention_scale"
    return {
        "over sqrt(d_k)": {},
        "not scaled": {scale: 1.0},
        "over d_k": {scale: 1 / 64},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does training need the scores to be divided by sqrt(d_k)?",
        "prediction": "Without the scale the loss is worse by more than the margin; over d_k is no "
        "worse than over sqrt(d_k).",
        "metric": "loss",
        "margin": 0.02,
        "margin_reason": "about what 6 % more training gives quick.py: 15 % gave 0.050 over 3 "
        "seeds",
        "looks": (5,),
        "base": "over sqrt(d_k)",
    }

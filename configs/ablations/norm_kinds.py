"""Question: no norm, or a norm before, after, or on both sides of each branch.

Command:   python -m experiments.ablate --config=configs/ablations/norm_kinds.py --seeds=10:15 \
             --workdir=runs/norm_kinds
Takes:     about 3 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import quick


def get_config():
    """Returns the base: 4 pre-norm layers, 200 updates."""
    config = quick.get_config()
    config.model.depth = 4
    config.training.steps = 200
    config.schedule.warmup_cosine.warmup_steps = 20
    config.evaluation.every = 200
    return config


def get_arms():
    """Returns wirings and norms."""
    wiring = "model.wiring"
    return {
        "pre": {},
        "post": {wiring: "post"},
        "sandwich": {wiring: "sandwich"},
        "none": {"model.norm": "none"},
        "rms": {"model.norm": "rms_norm"},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does a norm speed training up, and does it matter where it stands?",
        "prediction": "No norm is worse by more than the margin or diverges; post-norm is worse"
        " than pre-norm at this learning rate; sandwich and RMS norm are no "
        "different from pre-norm.",
        "metric": "loss",
        "margin": 0.02,
        "margin_reason": "about what 6 % more training gives quick.py: 15 % gave 0.050 over 3 "
        "seeds",
        "looks": (5,),
        "base": "pre",
    }

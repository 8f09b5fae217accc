"""Question: residual connection and norm, each alone, both, and neither, in 8 layers.

Command:   python -m experiments.ablate --config=configs/ablations/residuals.py --seeds=20:25 \
             --workdir=runs/residuals
Takes:     6 minutes on 2 CPU cores that had other work; numbers of the arm with neither are
           subnormal, with which a CPU is slow.
"""

from configs.ablations import quick


def get_config():
    """Returns the base: 8 pre-norm layers, 70 updates."""
    config = quick.get_config()
    config.model.depth = 8
    config.training.steps = 70
    config.schedule.warmup_cosine.warmup_steps = 7
    config.evaluation.every = 70
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
        "question": "What do residual connections and norms each do for a deep decoder?",
        "prediction": "Without residual connections eight layers learn little more than letter "
        "frequencies, with or without norms; without norms alone they learn, "
        "worse than with both.",
        "metric": "loss",
        "margin": 0.02,
        "margin_reason": "a fiftieth of what the residual connections gave in seeds 0 to 4, 0.995,"
        " and about what 6 % more training gives quick.py",
        "looks": (5,),
        "base": "both",
    }

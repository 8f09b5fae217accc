"""Question: how a small decoder should know positions.

Command:   python -m experiments.ablate --config=configs/ablations/positions.py --seeds=8:16 \
             --workdir=runs/positions
Takes:     11 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import small


def get_config():
    """Returns the base: learned positions; tables may be 4 times as long as what is trained on."""
    config = small.get_config()
    config.model.max_length = 256
    return config


def get_arms():
    """Returns the encodings; sinusoidal once as large as the learned table, once as published."""
    rms = "model.position_options.sinusoidal.rms"
    return {
        "learned": {},
        "sinusoidal": {"model.position": "sinusoidal", rms: 0.06},
        "sinusoidal, published size": {"model.position": "sinusoidal", rms: 0.5**0.5},
        "rotary": {"model.position": "rotary"},
        "none": {"model.position": "none"},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Learned, sinusoidal, rotary or no positions in a small character decoder?",
        "prediction": "Rotary is best; a sinusoidal table as large as the learned one is no worse "
        "than it, at its published size it is worse; none is worst. Beyond the trained length "
        "learned positions fail.",
        "metric": "loss",
        "margin": 0.01,
        "margin_reason": "about what 5 % more training gives here: 15 % gave 0.033 over 4 seeds",
        "looks": (8,),
        "base": "learned",
        "also": {
            "twice the length": {"data.length": 128, "evaluation.stride": 64},
            "four times the length": {"data.length": 256, "evaluation.stride": 64},
        },
    }

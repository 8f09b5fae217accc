"""Learned or sinusoidal positions compared with rotary ones, in windows of 256 characters.

Command:   python -m experiments.ablate --config=configs/ablations/positions_256.py --seeds=30:35 \
             --workdir=runs/positions_256
Takes:     34 minutes on 2 CPU cores.

Answer: In windows of 256 characters learned positions are worse than rotary ones by 0.212 nats and
sinusoidal ones by 0.100, both by more than the margin.

Limits: One text of characters and 2,000 updates, after which the models with learned and with
sinusoidal positions are not certainly better than 4-grams: more updates may bring them nearer. A
learning rate for each arm, but one initial size and schedule for all. An update reads as many
characters as in positions.py, in fewer, longer windows.
"""

from configs.ablations import positions


def get_config():
    """Returns rotary positions, and 3 windows of 256 characters an update."""
    config = positions.get_config()
    config.data.length = 256
    config.training.batch_size = 3
    config.evaluation.batch_size = 16
    config.model.max_length = 512
    config.model.position = "rotary"
    return config


def get_arms():
    """Returns the three encodings, the baseline first."""
    arms = positions.get_arms()
    return {
        "rotary": {},
        "learned": {"model.position": "learned"},
        "sinusoidal": arms["sinusoidal"],
    }


def get_study():
    """Returns how it is judged."""
    return positions.get_study() | {
        "question": "Learned or sinusoidal positions compared with rotary ones, in windows of 256?",
        "prediction": "Learned is worse than rotary by 0.15 to 0.31, sinusoidal by 0.05 to 0.15, "
        "as runs with other seeds had shown.",
        "expected": {"learned": (-0.31, -0.15), "sinusoidal": (-0.15, -0.05)},
        "base": "rotary",
    }

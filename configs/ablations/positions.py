"""Learned, sinusoidal or rotary positions, in a decoder that has learned its text.

Command:   python -m experiments.ablate --config=configs/ablations/positions.py --seeds=20:25 \
             --workdir=runs/positions
Takes:     54 minutes on 2 CPU cores.

Answer: Rotary positions beat learned ones by 0.047 nats (interval 0.017 to 0.067), no positions at
all are 0.197 worse, and sinusoidal positions could not be told apart from learned ones.

Limits: One text of characters, one model size and one shape of the sinusoidal table, with a
learning rate for each arm but one initial size and schedule for all. Compared with the same
baseline at a rate 5 % lower, rotary positions would be better, but not certainly by more than the
margin. Rates were found in runs of half the updates.
"""

from configs import shakespeare
from configs.ablations import CHARACTERS, LEARNING_RATES


def get_config():
    """Returns configs/shakespeare.py with tables twice as long as what is trained on."""
    config = shakespeare.get_config()
    config.model.max_length = 2 * config.data.length
    return config


def get_arms():
    """Returns the encodings; a sinusoidal table begins as large as a learned one."""
    return {
        "learned": {},
        "sinusoidal": {
            "model.position": "sinusoidal",
            "model.position_options.rms": 0.06,
        },
        "rotary": {"model.position": "rotary"},
        "none": {"model.position": "none"},
    }


def get_study():
    """Returns how it is judged."""
    return {
        **CHARACTERS,
        "question": "Learned, sinusoidal or rotary positions: which predicts characters best?",
        "prediction": "Rotary is better than learned by more than the margin (0.02 to 0.05); none "
        "is worse than learned by more than the margin; sinusoidal is worse than learned by less "
        "than 0.03.",
        "base": "learned",
        "tuning": LEARNING_RATES,
    }

"""Question: positions_long.py with rotary positions as the base, which have learned there.

Command:   python -m experiments.ablate --config=configs/ablations/positions_256.py --seeds=30:35 \
             --workdir=runs/positions_256
Takes:     34 minutes on 2 CPU cores.

Limits: the margin's reason is of windows of 64 characters; in these, from 4-grams to 5-grams is
0.145. One text of characters, one size, 2,000 updates, after which the models with learned and with
sinusoidal positions are not surely better than 4-grams: more updates may bring them nearer, or
past. A rate for each arm, but one initial size and schedule for all. An update reads as many
characters as in positions.py, in fewer, longer windows. positions_long.py has the same contrasts
with base and arm exchanged, which counts as no further look. Rates were found at half the updates,
with the same seeds as there; the judged seeds are others. That at twice the length both are worse
than rotary by more than 0.4 was predicted too, and is open for both (-0.74 [-1.22, -0.26] and -0.94
[-1.489, -0.395], not judged).
"""

from configs.ablations import positions_long


def get_config():
    """Returns the base: rotary positions, 3 windows of 256 characters an update."""
    config = positions_long.get_config()
    config.model.position = "rotary"
    return config


def get_arms():
    """Returns the same three, the base first."""
    arms = positions_long.get_arms()
    return {
        "rotary": {},
        "learned": {"model.position": "learned"},
        "sinusoidal": arms["sinusoidal"],
    }


def get_study():
    """Returns how it is judged: as positions_long.py is, with what was seen there as prediction."""
    return positions_long.get_study() | {
        "question": "Learned or sinusoidal positions beside rotary ones, in windows of 256?",
        "prediction": "As in positions_long.py, whose seeds are others: learned is worse than "
        "rotary by 0.15 to 0.31, sinusoidal by 0.05 to 0.15; at twice the trained length both "
        "are worse than rotary by more than 0.4.",
        "expected": {"learned": (-0.31, -0.15), "sinusoidal": (-0.15, -0.05)},
        "base": "rotary",
        "supersedes": "the base of positions_long.py, learned positions, has not learned",
    }

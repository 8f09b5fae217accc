"""Question: positions.py with windows of 256 characters, and as many of them in an update.

Command:   python -m experiments.ablate --config=configs/ablations/positions_long.py --seeds=20:25 \
             --workdir=runs/positions_long
Takes:     71 minutes on 2 CPU cores.

Limits: the margin's reason is of windows of 64 characters; in these, from 4-grams to 5-grams is
0.145. Else as of positions.py; an update reads as many characters in fewer, longer windows. A
learned table of 256 places has not learned in these updates, so that nothing is said against it
here; positions_256.py, with rotary positions as the base, says that it is worse after as many. That
learned tables are the worst at twice the length was predicted; sinusoidal ones are in every seed,
which is not judged.
"""

from configs.ablations import positions


def get_config():
    """Returns the base: 3 windows of 256 characters an update, as many as 12 of 64."""
    config = positions.get_config()
    config.data.length = 256
    config.training.batch_size = 3
    config.evaluation.batch_size = 16
    config.model.max_length = 512
    return config


def get_arms():
    """Returns the three that the question names."""
    arms = positions.get_arms()
    del arms["none"]
    return arms


def get_study():
    """Returns how it is judged: as positions.py is."""
    return positions.get_study() | {
        "question": "Learned, sinusoidal or rotary positions, in windows of 256 characters?",
        "prediction": "Rotary is better than learned by more than 0.04, more than at 64 "
        "characters: a learned table has to learn each of 256 places from as much text. "
        "Sinusoidal is between the two, or no different from learned. At twice the trained length "
        "learned positions are worst.",
        "also": {"twice the length": {"data.length": 512, "evaluation.stride": 256}},
        "supersedes": "",
    }

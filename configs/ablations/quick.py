"""The base of the quick studies on text: small.py, for half as many updates.

Command:   python -m experiments.train --config=configs/ablations/quick.py --workdir=runs/quick
Takes:     10 seconds on 2 CPU cores.
"""

from configs.ablations import small


def get_config():
    """Returns 2 layers of width 64 over 64 characters, trained for 500 updates of 16 windows."""
    config = small.get_config()
    config.training.steps = 500
    config.evaluation.every = 100
    config.schedule.warmup_cosine.warmup_steps = 50
    return config

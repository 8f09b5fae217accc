"""The base of the studies: characters of tiny Shakespeare, small enough for many seeds.

Command:   python -m experiments.train --config=configs/ablations/small.py --workdir=runs/small
Takes:     17 seconds on 2 CPU cores.
"""

from configs import shakespeare


def get_config():
    """Returns 2 layers of width 64 over 64 characters, trained for 1,000 updates of 16 windows."""
    config = shakespeare.get_config()
    config.model.width = 64
    config.model.depth = 2
    config.training.steps = 1000
    config.training.batch_size = 16
    config.evaluation.every = 200
    config.evaluation.batch_size = 256
    config.logging.every = 20
    config.sample.num_tokens = 100
    return config

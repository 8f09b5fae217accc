"""A run of a few seconds, for tests and first tries: it learns letter frequencies and no more.

Command:  python -m experiments.train --config=configs/tiny.py --workdir=runs/tiny
"""

from configs import reference


def get_config():
    """Returns a 2-layer decoder of width 32 that trains for 50 updates, dropout on."""
    config = reference.get_config()
    config.data.splits = (0.98, 0.01, 0.01)
    config.data.length = 16
    config.model.width = 32
    config.model.depth = 2
    config.model.dropout_rate = 0.1
    config.training.steps = 50
    config.training.batch_size = 8
    config.schedule.warmup_steps = 10
    config.evaluation.every = 20
    config.evaluation.batch_size = 256
    config.logging.every = 5
    config.checkpoint.every = 20
    config.sample.num_tokens = 40
    return config

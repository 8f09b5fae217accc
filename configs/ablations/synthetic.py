"""The baseline of the studies on mechanisms: a made-up language whose best loss is known.

Command:   python -m experiments.train --config=configs/ablations/synthetic.py --workdir=runs/recall
Takes:     10 seconds on 2 CPU cores.
"""

from configs import reference


def get_config():
    """Returns 2 layers of width 64 that recall the values of 4 keys."""
    config = reference.get_config()
    config.data.task = "synthetic"
    config.data.source = "recall"
    config.data.length = 16
    config.model.width = 64
    config.model.depth = 2
    config.model.init_std = 0.06
    config.model.position_options.rms = 0.06
    config.training.steps = 1000
    config.training.batch_size = 64
    config.optimizer.learning_rate = 3e-3
    config.optimizer.weight_decay = 0.01
    config.schedule.final_fraction = 0.01
    config.evaluation.every = 200
    config.evaluation.batch_size = 512
    config.logging.every = 20
    return config

r"""Sequences of vectors (time series, features) with labels, from your own .npz file.

Command:  python -m experiments.train --config=configs/series.py --workdir=runs/series \
              --config.data.source=my_series.npz
"""

from configs import reference


def get_config():
    """Returns a 2-layer encoder of width 64 over vectors that are projected to its width."""
    config = reference.get_config()
    config.data.task = "vector_classification"
    config.data.source = "my_series.npz"
    config.data.splits = (0.8, 0.1, 0.1)
    config.model.architecture = "encoder"
    config.model.pooling = "mean"
    config.model.width = 64
    config.model.depth = 2
    config.model.use_bias = True
    config.model.dropout_rate = 0.1
    config.training.steps = 1000
    config.training.batch_size = 32
    return config

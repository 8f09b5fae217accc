r"""Fashion-MNIST with a small vision transformer: all of it from a path, or an embedded subset.

Command:   python -m experiments.train --config=configs/fashion_mnist.py --workdir=runs/fashion \
               --config.data.source=FOLDER   (with the four IDX files, .gz or not)
Takes:     about 13 minutes on 2 CPU cores beside other jobs (10,000 updates, and evaluation).
Expected:  on all 10,000 test images; seeds 0, 1, 2, jax 0.10.2 on a CPU:
             accuracy    0.9075, 0.9057, 0.9078   (mean 0.907, standard deviation 0.001)
             loss        0.2493, 0.2531, 0.2545 nats per label
           Without the path it trains on 3,000 embedded images, to try things out, and is worse.
"""

from configs import reference


def get_config():
    """Returns 4 layers of width 96 over 16 patches of 7 x 7 pixels."""
    config = reference.get_config()
    config.data.task = "image_classification"
    config.data.source = "fashion_mnist"
    config.data.max_shift = 1
    config.data.flip = True
    config.model.architecture = "vision_transformer"
    config.model.patch_size = 7
    config.model.pooling = "mean"
    config.model.width = 96
    config.model.use_bias = True
    config.model.init_std = 0.06
    config.model.position_options.rms = 0.1
    config.training.steps = 10_000
    config.training.batch_size = 128
    config.optimizer.learning_rate = 2e-3
    config.schedule.warmup_steps = 400
    config.schedule.final_fraction = 0.01
    config.evaluation.every = 1000
    config.evaluation.batch_size = 256
    return config

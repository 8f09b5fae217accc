"""The first 10^8 bytes of Wikipedia: 10 million parameters on the bytes of enwik8.

The protocol of all papers: the first 90 million bytes train, the next 5 validate and the last 5
test; bits per byte.

Command:   python -m experiments.train --config=configs/enwik8.py --workdir=runs/enwik8 \
               --config.data.source=PATH/TO/enwik8
Published: bits per byte of the test split: 1.11 (44 million parameters) and 1.06 (235 million;
           Al-Rfou et al. 2019, arXiv:1808.04444, table 1), 1.06 (41 million) and 0.99 (277 million;
           Dai et al. 2019, arXiv:1901.02860, table 2). All of them trained far longer.
Record:    1,000 updates of 8 windows (training.batch_size=8, schedule.warmup_steps=100), 4 million
           bytes, seed 0, on two CPU cores: 2.113 bits per byte of the first 131,072 bytes of the
           validation split, 2.118 of the first 524,288 of the test split. PyTorch, with the same
           initial values and bytes (`python -m tests.torch_curve RUN`), ends at 1.4650 nats where
           this run ends at 1.4649; at ten evaluations they differ by at most 0.0024, except for
           0.015 at update 200.
"""

from configs import reference


def get_config():
    """Returns 6 layers of width 384 over windows of 512 bytes."""
    config = reference.get_config()
    config.data.source = "enwik8"
    config.data.tokenizer = "byte"
    config.data.splits = (0.9, 0.05, 0.05)
    config.data.length = 512
    model = config.model
    model.width = 384
    model.depth = 6
    model.num_heads = 6
    model.norm = "rms_norm"
    model.query_key_norm = "rms_norm"
    model.position = "rotary"
    model.activation = "relu_squared"
    model.initialisation = "depth_scaled"
    config.training.steps = 10_000
    config.training.batch_size = 32
    config.optimizer.learning_rate = 1e-3
    config.schedule.warmup_steps = 200
    config.schedule.final_fraction = 0.01
    config.evaluation.every = 1000
    config.evaluation.batch_size = 16
    config.checkpoint.every = 200
    config.logging.every = 50
    return config

"""What pretraining.py starts from: a small encoder that fills in hidden tokens of film reviews.

Command:   python -m experiments.train --config=configs/ablations/masked.py --workdir=runs/masked
Takes:     40 seconds on 2 CPU cores that had other work.
"""

from configs import masked_lm


def get_config():
    """Returns 2 layers of width 64 over 2,000 byte-pair tokens, 1,500 updates."""
    config = masked_lm.get_config()
    config.data.vocab_size = 2000
    config.data.length = 48
    config.model.width = 64
    config.training.steps = 1500
    return config

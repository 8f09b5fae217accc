"""Forgetting attention with canon layers, without positions, on tiny Shakespeare.

A learned decay weakens what lies further back (Lin et al. 2025, arXiv:2503.02130), and short
convolutions tell each token its neighbours (Allen-Zhu 2025), so that positions are not needed.

Command:   python -m experiments.train --config=configs/forgetting.py --workdir=runs/forgetting
Takes:     about 2.5 minutes on 2 CPU cores (2,000 updates).
Expected:  nats per character, seed 0, jax 0.10.2 on a CPU (802,064 parameters):
             validation  1.5182
             test        1.6395
"""

from configs import shakespeare


def get_config():
    """Returns configs/shakespeare.py with decaying attention and convolutions for positions."""
    config = shakespeare.get_config()
    config.model.position = "none"
    config.model.attention = "forgetting"
    config.model.convolution = "canon"
    return config

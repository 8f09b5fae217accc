"""Four residual streams, mixed on a manifold, and value residual, on tiny Shakespeare.

Manifold-constrained hyper-connections (Xie et al. 2025, arXiv:2512.24880) keep the mixture of the
streams doubly stochastic; value residual (Zhou et al. 2024, arXiv:2410.17897) adds the values of
the first block to those of all others.
"""

from configs import shakespeare


def get_config():
    """Returns configs/shakespeare.py with four streams and the first block's values."""
    config = shakespeare.get_config()
    config.model.position = "rotary"
    config.model.wiring = "manifold_hyper_connections"
    config.model.values = "residual"
    return config

"""Masked diffusion (Sahoo et al. 2024, arXiv:2406.07524) on tiny Shakespeare.

An encoder predicts any part of a text from the rest. Its loss is an upper bound on the negative
log-likelihood per character, and its sample is drawn by unmasking.
"""

from configs import shakespeare


def get_config():
    """Returns configs/shakespeare.py as an encoder, trained for three times as many updates."""
    config = shakespeare.get_config()
    config.data.task = "masked_diffusion"
    config.model.architecture = "encoder"
    config.model.position = "rotary"
    config.training.steps = 6000
    config.optimizer.learning_rate = 2e-3
    return config

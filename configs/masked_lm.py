"""Masked language modelling on the sentences of the film reviews, without their labels."""

from configs import movies


def get_config():
    """Returns the encoder of movies.py with a masked-language-model head."""
    config = movies.get_config()
    config.data.task = "masked_language_modelling"
    config.data.splits = (0.75, 0.05, 0.2)
    config.model.dropout_rate = 0.1
    config.training.steps = 3000
    config.evaluation.every = 500
    return config

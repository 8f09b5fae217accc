"""Sentences from film reviews, positive or negative, with an encoder trained from scratch."""

from configs import reference


def get_config():
    """Returns 2 layers of width 128 over byte-pair tokens, trained for 6 epochs."""
    config = reference.get_config()
    config.data.task = "text_classification"
    config.data.source = "movie_snippets"
    config.data.tokenizer = "bpe"
    config.data.vocab_size = 8000
    config.data.splits = (0.78, 0.02, 0.2)
    config.data.length = 64
    config.model.architecture = "encoder"
    config.model.encoder.pooling = "mean"
    config.model.use_bias = True
    config.model.depth = 2
    config.model.dropout_rate = 0.3
    config.training.steps = 1500
    config.training.batch_size = 32
    config.evaluation.every = 250
    return config

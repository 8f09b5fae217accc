"""Characters of tiny Shakespeare with an LSTM that has as many parameters as the transformer."""

from configs import shakespeare


def get_config():
    """Returns shakespeare.py with 2 LSTM layers, as wide as its transformer has parameters."""
    config = shakespeare.get_config()
    config.model.architecture = "recurrent_decoder"
    config.model.match_parameters = "decoder"
    return config

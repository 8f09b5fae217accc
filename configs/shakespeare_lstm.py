"""Characters of tiny Shakespeare with an LSTM that has as many parameters as the transformer.

Command:   python -m experiments.train --config=configs/shakespeare_lstm.py --workdir=runs/lstm
Takes:     about 2 minutes on 2 CPU cores (2,000 updates at about 37 ms, and evaluation).
Expected:  nats per character, seeds 0, 1, 2, jax 0.10.2 on a CPU (804,750 parameters, the
           transformer of shakespeare.py has 804,096):
             validation  1.5609, 1.5902, 1.5625
             test        1.6367, 1.6703, 1.6451
           At this size, and with the transformer's learning rate, the LSTM is better
           (shakespeare.py: 1.752, 1.745, 1.761 on test) and took longer a step here, with 768
           tokens an update; with 2,048 it was faster in most rounds (experiments/results/speed).
"""

from configs import shakespeare


def get_config():
    """Returns shakespeare.py with 2 LSTM layers, as wide as its transformer has parameters."""
    config = shakespeare.get_config()
    config.model.architecture = "recurrent_decoder"
    config.model.match_parameters = "decoder"
    return config

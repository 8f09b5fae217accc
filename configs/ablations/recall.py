"""Question: who recalls what stood further back.

Command:   python -m experiments.ablate --config=configs/ablations/recall.py --seeds=5 \
             --workdir=runs/recall
Takes:     about 4 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import beside_recurrent_nets, synthetic


def get_config():
    """Returns the base: the transformer, 4 pairs of a key and a value."""
    config = synthetic.get_config()
    return config


def get_arms():
    """Returns recurrent nets of 2 layers, as wide as gives the transformer's parameters."""
    return beside_recurrent_nets()


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Do recurrent nets forget what a transformer recalls?",
        "prediction": "The transformer recalls nearly everything at every distance; LSTM and "
        "GRU are worse by more than the margin, the tanh net worst.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "two answers in a hundred; the standard error of an accuracy of 0.9 over "
        "these answers is 0.007 or more",
        "looks": (5,),
        "base": "transformer",
    }

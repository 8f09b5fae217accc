"""Question: does a verb agree with a subject that stands far back.

Command:   python -m experiments.ablate --config=configs/ablations/agreement.py --seeds=5 \
             --workdir=runs/agreement
Takes:     about 5 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import beside_recurrent_nets, exact


def get_config():
    """Returns the base: the transformer, up to 15 other nouns in between, 400 updates."""
    config = exact.get_config()
    config.data.source = "agreement"
    config.data.length = 47
    config.training.steps = 400
    return config


def get_arms():
    """Returns recurrent nets of 2 layers, as wide as gives the transformer's parameters."""
    return beside_recurrent_nets()


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Who finds the subject among the nouns that stand nearer?",
        "prediction": "The transformer is right at every distance; LSTM and GRU fall with the "
        "distance, the tanh net is at chance beyond a few words.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "two answers in a hundred; the standard error of an accuracy of 0.9 over "
        "these answers is 0.007 or more",
        "looks": (5,),
        "base": "transformer",
    }

"""Question: does a verb agree with a subject that stands far back.

Command:   python -m experiments.ablate --config=configs/ablations/agreement.py --seeds=10:15 \
             --workdir=runs/agreement
Takes:     about 3 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import beside_recurrent_nets, synthetic


def get_config():
    """Returns the base: the transformer, up to 4 other nouns in between, 1,000 updates."""
    config = synthetic.get_config()
    config.data.source = "agreement"
    config.data.length = 15
    config.training.steps = 1000
    config.evaluation.every = 1000
    return config


def get_arms():
    """Returns recurrent nets of 2 layers, as wide as gives the transformer's parameters."""
    return beside_recurrent_nets()


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Who finds the subject among the nouns that stand nearer?",
        "prediction": "All but the tanh net are right at every distance: one run each of LSTM and "
        "GRU of another seed learned it between 500 and 2,000 updates.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "two answers in a hundred; the standard error of an accuracy of 0.9 over "
        "these answers is 0.007 or more",
        "looks": (5,),
        "base": "transformer",
    }

"""Question: transformer or recurrent net, on characters, at equal parameters.

Command:   python -m experiments.ablate --config=configs/ablations/text_models.py --seeds=5 \
             --workdir=runs/text_models
Takes:     about 2 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import beside_recurrent_nets, quick


def get_config():
    """Returns the base: the transformer, 400 updates."""
    config = quick.get_config()
    config.training.steps = 400
    return config


def get_arms():
    """Returns recurrent nets of 2 layers, as wide as gives the transformer's parameters."""
    return beside_recurrent_nets()


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Which of transformer, LSTM, GRU and tanh net predicts characters best, "
        "after as many updates?",
        "prediction": "LSTM and GRU are better than the transformer at this size and context, "
        "the tanh net worse.",
        "metric": "loss",
        "margin": 0.02,
        "margin_reason": "about what 6 % more training gives quick.py: 15 % gave 0.050 over 3 "
        "seeds",
        "looks": (5,),
        "base": "transformer",
    }

"""Question: does a verb agree with a subject that stands very far back; agreement.py, fuller.

Command:   python -m experiments.ablate --config=configs/ablations/agreement_far.py --seeds=10:15 \
             --workdir=runs/agreement_far
Takes:     15 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import agreement


def get_config():
    """Returns the base: the transformer, up to 15 other nouns in between, 1,500 updates."""
    config = agreement.get_config()
    config.data.length = 47
    config.training.steps = 1500
    config.evaluation.every = 1500
    return config


def get_arms():
    """Returns the recurrent nets of agreement.py, without the tanh net."""
    arms = agreement.get_arms()
    return {name: arms[name] for name in ("transformer", "LSTM", "GRU")}


def get_study():
    """Returns how it is judged."""
    return {
        **agreement.get_study(),
        "question": "Who finds the subject among up to fifteen nouns that stand nearer?",
        "prediction": "The transformer is right at every distance. LSTM and GRU are right where "
        "they have learned it at all, or at chance everywhere: what fails is finding the rule.",
    }

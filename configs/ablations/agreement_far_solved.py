"""Question: after how many updates a verb agrees with a subject up to fifteen nouns further back.

agreement_far.py asked it after 1,500 updates at one learning rate for all, at which LSTM and GRU
had not learned it. Here each net has the rate at which one run of seed 0 was right in the fewest
updates: of 0.0001 to 0.003 the tanh net, of 0.0003 to 0.01 LSTM and GRU, of 0.003 and 0.01 the
transformer. At 0.01 no recurrent net learned it in 3,000, the tanh net not at 0.003 either.

Limits:

Command:   python -m experiments.ablate --config=configs/ablations/agreement_far_solved.py \
             --seeds=50:56 --workdir=runs/agreement_far_solved
Takes:
"""

from configs.ablations import agreement_far, beside_recurrent_nets, recall_solved

RATES = {"transformer": 0.003, "LSTM": 0.001, "GRU": 0.001, "tanh": 0.0003}


def get_config():
    """Returns the base: the transformer, up to 15 other nouns in between, a rate that stays."""
    config = agreement_far.get_config()
    config.schedule.name = "warmup_constant"
    config.training.steps = 4000
    config.evaluation.every = 50
    return config


def get_arms():
    """Returns each net at its rate; recurrent nets have the transformer's parameters."""
    return {
        f"{name} at {RATES[name]:g}": {**changes, "optimizer.learning_rate": RATES[name]}
        for name, changes in beside_recurrent_nets().items()
    }


def get_study():
    """Returns how it is judged: by who solves it, and after how many updates."""
    return {
        **recall_solved.get_study(),
        "question": "Which nets find the subject among up to fifteen nearer nouns, each at its own "
        "learning rate, and after how many updates?",
        "prediction": "Every net solves it within 4,000 updates in most runs: the transformer "
        "first, in a third of the updates of each other or fewer; the LSTM last.",
    }

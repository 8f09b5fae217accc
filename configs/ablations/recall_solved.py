"""Question: who learns to recall, and after how many updates.

recall.py asked what is right after 1,000 updates, when a recurrent net had learned nothing. One run
each of another seed said before: a transformer solves it within 200 updates at either learning rate
that was tried, LSTM, GRU and tanh net not in 4,000 at 0.003.

Command:   python -m experiments.ablate --config=configs/ablations/recall_solved.py --seeds=30:36 \
             --workdir=runs/recall_solved
Takes:     not run yet.
"""

from configs.ablations import beside_recurrent_nets, synthetic

RATES = (0.001, 0.003, 0.01)


def get_config():
    """Returns the base: the transformer, 4 pairs of a key and a value, a rate that stays."""
    config = synthetic.get_config()
    config.schedule.name = "warmup_constant"
    config.training.steps = 5000
    config.evaluation.every = 100
    return config


def get_arms(rates=RATES):
    """Returns each net at each learning rate; recurrent nets have the transformer's parameters."""
    return {
        f"{name} at {rate:g}": {**changes, "optimizer.learning_rate": rate}
        for name, changes in beside_recurrent_nets().items()
        for rate in rates
    }


def get_study():
    """Returns how it is judged: by who solves it, and after how many updates."""
    return {
        "question": "Do recurrent nets learn to recall, and after how many updates?",
        "prediction": "The transformer solves it in every run and within 500 updates at each rate. "
        "No recurrent net solves it in 5,000 at any of the rates.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "not used: runs that reach the target are counted",
        "target": 0.99,
        "looks": (6,),
        "base": "transformer at 0.003",
    }

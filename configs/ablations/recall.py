"""Study: the models that learn to recall, and the updates they need.

Each learning rate is an arm, so that none has to be chosen.

Command:   python -m experiments.ablate --config=configs/ablations/recall.py --seeds=30:36 \
             --workdir=runs/recall
Takes:     36 minutes on 2 CPU cores.

Answer: The transformer solves recall in every run at rates of 0.001 and 0.003, within a median of
200 updates, and in none at 0.01; no recurrent net solves it in 5,000 updates at any of the rates.

Limits: Everything but the rate is set as for the transformer; more updates, lower rates and other
sizes were not tried. It does not show that recurrent nets cannot learn to recall. Runs that do not
solve it end near 0.6, which naming the most frequent value that is left gives.
"""

from configs.ablations import and_recurrent_nets, synthetic

RATES = (0.001, 0.003, 0.01)


def get_config():
    """Returns the transformer, 4 pairs of a key and a value, a rate that stays."""
    config = synthetic.get_config()
    config.schedule.name = "warmup_constant"
    config.training.steps = 5000
    config.evaluation.every = 100
    return config


def get_arms(rates=RATES):
    """Returns each net at each learning rate; recurrent nets have the transformer's parameters."""
    return {
        f"{name} at {rate:g}": {**changes, "optimizer.learning_rate": rate}
        for name, changes in and_recurrent_nets().items()
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

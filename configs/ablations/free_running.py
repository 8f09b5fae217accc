"""Question: teacher forcing, or reading one's own predictions in training.

Command:   python -m experiments.ablate --config=configs/ablations/free_running.py --seeds=5:10 \
             --workdir=runs/free_running
Takes:     about 3 minutes on 2 CPU cores that had other work.
"""

from configs.ablations import synthetic


def get_config():
    """Returns the base: teacher forcing, rows of 8 symbols to be reversed."""
    config = synthetic.get_config()
    config.data.source = "reverse"
    config.training.steps = 300
    return config


def get_arms():
    """Returns the share of inputs that are the model's own."""
    sampling, share = "scheduled_sampling", "objective.scheduled_sampling.share"
    return {
        "teacher forcing": {},
        "half own": {"objective.name": sampling, share: 0.5},
        "free running": {"objective.name": sampling, share: 1.0},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does training on one's own predictions help a model that has to read them?",
        "prediction": "Free running learns more slowly and is worse by more than the margin; "
        "half is no different from teacher forcing.",
        "metric": "generated_accuracy",
        "margin": 0.02,
        "margin_reason": "two answers in a hundred; a writer that is so often wrong is one to be "
        "looked at",
        "looks": (5,),
        "base": "teacher forcing",
    }

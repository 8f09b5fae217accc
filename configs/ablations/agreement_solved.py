"""Question: after how many updates a verb agrees with a subject that stands further back.

agreement.py asked what is right after 1,000 updates, when every net was right. Each learning rate
is an arm here, so that none has to be chosen.

Limits:    another learning rate, width or depth; looks at every 50 updates tell 100 from 150, not
less; four nouns between are few, and agreement_far.py has up to fifteen.

Command:   python -m experiments.ablate --config=configs/ablations/agreement_solved.py \
             --seeds=30:37 --workdir=runs/agreement_solved
Takes:     16 minutes on 2 CPU cores.
"""

from configs.ablations import agreement, recall_solved


def get_config():
    """Returns the base: the transformer, up to 4 other nouns in between, a rate that stays."""
    config = agreement.get_config()
    config.schedule.name = "warmup_constant"
    config.training.steps = 3000
    config.evaluation.every = 50
    return config


def get_arms():
    """Returns each net at two learning rates; recurrent nets have the transformer's parameters."""
    return recall_solved.get_arms((0.001, 0.003))


def get_study():
    """Returns how it is judged: by who solves it, and after how many updates."""
    return {
        **recall_solved.get_study(),
        "question": "Which net needs the fewest updates to find the subject among nearer nouns?",
        "prediction": "All solve it within 3,000 updates, but the tanh net in some runs only. The "
        "transformer needs fewer updates than each recurrent net at the same rate.",
        "looks": (7,),
    }

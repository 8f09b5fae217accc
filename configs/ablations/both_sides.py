"""Question: does an encoder that sees both sides understand more.

Command:   python -m experiments.ablate --config=configs/ablations/both_sides.py --seeds=5 \
             --workdir=runs/both_sides
Takes:     about 2 minutes on 2 CPU cores that had other work.
"""

from configs import movies


def get_config():
    """Returns 2 layers of width 64 on film reviews, 400 updates."""
    config = movies.get_config()
    config.data.vocab_size = 2000
    config.data.length = 48
    config.model.width = 64
    config.training.steps = 400
    config.evaluation.every = 100
    config.evaluation.batch_size = 512
    return config


def get_arms():
    """Returns what a place may see; the mean over places is taken in both."""
    return {"both sides": {}, "the left alone": {"model.mask": "causal"}}


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does seeing both sides help to tell whether a review is positive?",
        "prediction": "Both sides are better by less than the margin, or not better at all: the"
        " mean over all places sees everything in any case.",
        "metric": "accuracy",
        "margin": 0.01,
        "margin_reason": "one sentence in a hundred; the standard error of an accuracy of 0.75 "
        "over the 2,117 test sentences is 0.009",
        "looks": (5,),
        "base": "both sides",
    }

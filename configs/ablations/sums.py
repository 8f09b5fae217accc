"""Does weight decay turn memorised sums into known ones.

Command:   python -m experiments.ablate --config=configs/ablations/sums.py --seeds=5 \
             --workdir=runs/sums
Takes:     about 1 minute on 2 CPU cores that had other work.

Answer: With a weight decay of 1 in place of 0.01 a model knows 0.279 more of the sums that it has
never seen, and no decay is no different from 0.01 within 0.02.

Limits: A snapshot after 1,500 updates at one rate, where less decay may get there later. A decay
of 0.01 takes 2 % off the weights in the whole run, so that it is nearly none; nothing between it
and 1 was tried. The gate asks for little: a uniform guess beats 4-grams here.
"""

from configs.ablations import synthetic


def get_config():
    """Returns one layer, 60 % of the sums modulo 31 seen."""
    config = synthetic.get_config()
    config.data.source = "modular_addition"
    config.data.symbols = 31
    config.data.splits = (0.6, 0.1, 0.3)
    config.model.depth = 1
    config.training.steps = 1500
    config.training.batch_size = 256
    return config


def get_arms():
    """Returns weight decays."""
    decay = "optimizer.weight_decay"
    return {"decay 0.01": {}, "decay 1": {decay: 1.0}, "no decay": {decay: 0.0}}


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Is a sum that was never seen known, and does weight decay matter?",
        "prediction": "With a decay of 1 more of the unseen sums are right, by more than the "
        "margin; without decay it is no different from 0.01.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "two answers in a hundred; the standard error of an accuracy of 0.9 over "
        "the 296 test answers is 0.017",
        "looks": (5,),
        "base": "decay 0.01",
    }

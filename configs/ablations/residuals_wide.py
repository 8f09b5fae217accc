"""Question: residual connection and norm, each alone, both, and neither, in 8 blocks that learn.

Command:   python -m experiments.ablate --config=configs/ablations/residuals_wide.py \
             --seeds=40:45 --workdir=runs/residuals_wide
Takes:     66 minutes on 2 CPU cores (AMD EPYC).

Limits: one text of characters, 8 blocks of width 96, windows of 64, 2,000 updates; a rate for each
arm, but one initial size and schedule for all: initial values of 0.12, twice those of
shakespeare.py, chosen after runs with seed 0, in which they suited the arm without norms better,
and no arm without residual connections learned at 0.06, 0.12 or 0.18. It does not show that no deep
decoder learns without residual connections: with attention that starts as the identity, and other
initial values, they do (He et al. 2023, arXiv:2302.10322), which was not tried. A 1-gram model has
a loss of 3.362, which arms without residual connections reach. "No norm" has no final norm either.
Trials diverged with neither, at rates of 0.008 and 0.016, and without norms at 0.016. Runs of 500
updates of each arm, with seed 0, were seen before the prediction was written. Rates were found at
half the updates. By 18 crossed runs of shakespeare.py the test loss of one has a standard deviation
of about 0.009 (some 5 degrees of freedom); they range over 0.029, more than the margin's reason
says. Its 0.138 is 0.1374, before 4-grams and 5-grams are rounded.
"""

from configs import shakespeare
from configs.ablations import residuals


def get_config():
    """Returns the base: shakespeare.py with 8 pre-norm blocks of width 96.

    The initial values are twice as large as there: at 0.06 what the blocks make of a text without
    residual connections and norms is smaller than float32 can tell from zero. In runs of 500
    updates with seed 0 no arm without residual connections learned at 0.06, 0.12 or 0.18; without
    norms 0.12 was better than 0.06 by 0.03. Learned positions start as they do there.
    """
    config = shakespeare.get_config()
    config.model.depth = 8
    config.model.width = 96
    config.model.num_heads = 6
    config.model.init_std = 0.12
    return config


def get_arms():
    """Returns the four combinations."""
    return residuals.get_arms()


def get_study():
    """Returns how it is judged."""
    return {
        "question": "What do residual connections and norms each do for a deep decoder, each at "
        "its own learning rate?",
        "prediction": "Without residual connections eight blocks learn the frequencies of letters "
        "and no more, with or without norms, at every rate: worse by more than 1. Without norms "
        "they learn, and are worse by 0.01 to 0.1.",
        "expected": {
            "no norm": (-0.1, -0.01),
            "no residual": (None, -1.0),
            "neither": (None, -1.0),
        },
        "metric": "loss",
        "margin": 0.01,
        "margin_reason": "1 % of the perplexity; three seeds of shakespeare.py lie within 0.007, "
        "and going from 4-grams to 5-grams gives 0.138",
        "looks": (5,),
        "base": "both",
        "budgets": (0.25,),
        "tuning": {
            "options": {"optimizer.learning_rate": (5e-4, 1e-3, 2e-3, 4e-3, 8e-3)},
            "seeds": (1000, 1001),
            "rungs": ((0.25, 1), (0.5, 2)),
            "refine": "optimizer.learning_rate",
        },
        "supersedes": "residuals.py asked it after 70 updates, of a base that was worse than "
        "2-grams, at one learning rate for all",
    }

"""Question: how many attention heads, at the same width.

Command:   python -m experiments.ablate --config=configs/ablations/heads.py --seeds=8:16 \
             --workdir=runs/heads
Takes:     about 7 minutes on 2 CPU cores.
"""

from configs.ablations import small


def get_config():
    """Returns the base: 4 heads of 16 features."""
    return small.get_config()


def get_arms():
    """Returns numbers of heads; parameters and operations are the same in all of them."""
    return {f"{heads} heads": {"model.num_heads": heads} for heads in (4, 1, 2, 8, 16)}


def get_study():
    """Returns how it is judged."""
    return {
        "question": "How many attention heads does a small character decoder need?",
        "prediction": "One head is worse than four by more than the margin, and sixteen heads of "
        "four features are worse too; two and eight are no different from four.",
        "metric": "loss",
        "margin": 0.01,
        "margin_reason": "about what 5 % more training gives here: 15 % gave 0.033 over 4 seeds",
        "looks": (8,),
        "base": "4 heads",
    }

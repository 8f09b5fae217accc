"""One wide head or many narrow ones, in a decoder that has learned its text.

Command:   python -m experiments.ablate --config=configs/ablations/heads.py --seeds=20:25 \
             --workdir=runs/heads
Takes:     41 minutes on 2 CPU cores.

Answer: Not decided: one, two and eight heads could not be told apart from four, and that sixteen
are worse by 0.017 nats hangs on these runs of the baseline.

Limits: One text of characters, width 128 and windows of 64, with a learning rate for each arm but
one initial size and schedule for all, chosen with four heads. Compared with the same model and
seeds at a rate 6 % higher, sixteen heads would be unresolved. A head's size is the width over
their number, so that the two cannot be told apart here.
"""

from configs import shakespeare
from configs.ablations import CHARACTERS, LEARNING_RATES


def get_config():
    """Returns configs/shakespeare.py: 4 heads of 32 features."""
    return shakespeare.get_config()


def get_arms():
    """Returns numbers of heads; parameters and operations are the same in all of them."""
    return {f"{heads} heads": {"model.num_heads": heads} for heads in (4, 1, 2, 8, 16)}


def get_study():
    """Returns how it is judged."""
    return {
        **CHARACTERS,
        "question": "How many attention heads, at width 128?",
        "prediction": "One head is worse than four by more than the margin (0.01 to 0.04), two and "
        "eight are within 0.015 of four, sixteen heads of eight features are worse than four by "
        "0.005 to 0.03.",
        "base": "4 heads",
        "expected": {
            "1 heads": (-0.04, -0.01),
            "2 heads": (-0.015, 0.015),
            "8 heads": (-0.015, 0.015),
            "16 heads": (-0.03, -0.005),
        },
        "tuning": LEARNING_RATES,
    }

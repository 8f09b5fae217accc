"""A class token or the mean over patches, in a transformer that reads its digits.

Command:   python -m experiments.ablate --config=configs/ablations/class_token.py --seeds=48:64 \
             --workdir=runs/class_token
Takes:     22 minutes on 2 CPU cores.

Answer: A class token is no different from the mean within 0.015, which decides nothing: the
baseline is only 0.012 more accurate than the nearest neighbour.

Limits: 1,287 training images of 8 x 8 pixels, one size and one learning rate, and a config that
was chosen on these 450 test images, by other writers. The margin is 58 % of the baseline's
errors. A class token takes 7 % more operations.
"""

from configs import digits
from configs.ablations import patches


def get_config():
    """Returns configs/digits.py: 4 layers of width 64, 3,000 updates, pooled by the mean."""
    return digits.get_config()


def get_arms():
    """Returns how one vector of the image is taken."""
    return {name: {"model.pooling": name} for name in ("mean", "class_token")}


def get_study():
    """Returns how it is judged."""
    return patches.get_study() | {
        "question": "Do a class token and average pooling do equally well in a vision transformer "
        "that beats the nearest neighbour?",
        "prediction": "The class token is within 0.015 of the mean.",
        "expected": {"class_token": (-0.015, 0.015)},
        "looks": (16,),
        "base": "mean",
    }

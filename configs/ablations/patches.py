"""Study: how large a patch of a vision transformer may be.

Command:   python -m experiments.ablate --config=configs/ablations/patches.py --seeds=40:48 \
             --workdir=runs/patches
Takes:     15 minutes on 2 CPU cores.

Answer: On digits of 8 x 8 pixels the whole image as one patch is 0.013 less accurate than patches
of 2 x 2, and patches of 4 x 4 could not be told apart from them.

Limits: 1,287 training images, one learning rate, and a config that was chosen on these 450 test
images, for which alone the words are. The margin is 63 % of the baseline's errors. Larger patches
cost a quarter and a sixteenth of the operations and were not trained longer for it.
"""

from configs import digits


def get_config():
    """Returns configs/digits.py: 16 patches of 2 x 2 pixels, each through one linear map."""
    return digits.get_config()


def get_arms():
    """Returns larger patches, of which the largest is the whole image."""
    size = "model.patch_size"
    return {"2 x 2": {}, "4 x 4": {size: 4}, "8 x 8": {size: 8}}


def get_study():
    """Returns how it is judged."""
    return {
        "question": "How large may the patches of a vision transformer be, where it beats the "
        "nearest neighbour?",
        "prediction": "Patches of 4 x 4 are worse by 0.005 to 0.04, the whole image as one patch, "
        "which leaves nothing to attend to, by more than 0.015.",
        "expected": {"4 x 4": (-0.04, -0.005), "8 x 8": (None, -0.015)},
        "metric": "accuracy",
        "margin": 0.015,
        "margin_reason": "more than half as many errors again: configs/digits.py errs in 0.016 to "
        "0.033 of the test images (three seeds)",
        "looks": (8,),
        "base": "2 x 2",
    }

"""Question: how large a patch may be, and whether convolutions cut it better than a linear map.

Command:   python -m experiments.ablate --config=configs/ablations/patches_wide.py \
             --seeds=40:48 --workdir=runs/patches_wide
Takes:     22 minutes on 2 CPU cores, 11 where poolings_wide.py has left its base.

Limits: 8 x 8 pixels, 1,287 training images, one learning rate, which stands beside patches of 2 x
2, and a config that was chosen on these test images, 450 by other writers, for which alone the
words are. The margin is 63 % of the base's errors; see poolings_wide.py, whose scores of the same
base were seen eighty minutes before these arms were trained. Larger patches cost a quarter and a
sixteenth of the operations and were not trained longer for it; what the first block reads is larger
with them (RMS 0.35, 0.47 and 0.83; 0.63 with the convolutional stem), beside positions of 0.3. 8 x
8 and the convolutional stem have 2 % more parameters; the test loss of the latter, which is not
judged, is above the base's in every seed. One patch is not surely better than the nearest neighbour
(0.963, it 0.962). Patches of one pixel, which take four times as long, are left out. The minutes
below are the arms'; the base's cells were there.
"""

from configs import digits


def get_config():
    """Returns configs/digits.py: 16 patches of 2 x 2 pixels, each through one linear map."""
    return digits.get_config()


def get_arms():
    """Returns larger patches, of which the largest is the whole image, and another stem."""
    size, stem = "model.vision_transformer.patch_size", "model.vision_transformer.stem"
    return {
        "2 x 2": {},
        "4 x 4": {size: 4},
        "8 x 8": {size: 8},
        "2 x 2, convolutional": {stem: "convolutional"},
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "How large may the patches of a vision transformer be, and is a linear map of "
        "them enough, where it beats the nearest neighbour?",
        "prediction": "Patches of 4 x 4 are worse by 0.005 to 0.04, the whole image as one patch, "
        "which leaves nothing to attend to, by more than 0.015; convolutions are within 0.015.",
        "expected": {
            "4 x 4": (-0.04, -0.005),
            "8 x 8": (None, -0.015),
            "2 x 2, convolutional": (-0.015, 0.015),
        },
        "metric": "accuracy",
        "margin": 0.015,
        "margin_reason": "more than half as many errors again: configs/digits.py errs in 0.016 to "
        "0.033 of the test images (three seeds)",
        "looks": (8,),
        "base": "2 x 2",
        "supersedes": "patches.py and stems.py asked it of models with accuracies of 0.78 and "
        "0.61, where the nearest neighbour has 0.96 and 0.81",
    }

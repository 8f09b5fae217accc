"""Question: how large should a patch be.

Command:   python -m experiments.ablate --config=configs/ablations/patches.py --seeds=5 \
             --workdir=runs/patches
Takes:     about 3 minutes on 2 CPU cores that had other work.

Limits: the test split has 450 images, not the 444 of the margin's reason.
"""

from configs.ablations import poolings


def get_config():
    """Returns patches of 2 x 2 pixels, pooled by their mean."""
    config = poolings.get_config()
    config.model.vision_transformer.pooling = "mean"
    return config


def get_arms():
    """Returns sizes; a patch of 8 is the whole image, and one pixel is the smallest."""
    size = "model.vision_transformer.patch_size"
    return {f"{side} x {side}": {size: side} for side in (2, 1, 4, 8)}


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does a linear projection of patches suffice for images, and of how large"
        " ones?",
        "prediction": "1 x 1 is no different from 2 x 2, 4 x 4 is worse, and 8 x 8, which "
        "leaves nothing to attend to, is worst.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "two images in a hundred; the standard error of an accuracy of 0.9 over "
        "the 444 test images is 0.014",
        "looks": (5,),
        "base": "2 x 2",
    }

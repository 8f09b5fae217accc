"""Question: class token, mean, maximum or flattening, in a transformer that reads its digits.

Command:   python -m experiments.ablate --config=configs/ablations/poolings_wide.py \
             --seeds=40:48 --workdir=runs/poolings_wide
Takes:     48 minutes on 2 CPU cores.

Limits: 1,272 training images of 8 x 8 pixels, 0.2 million parameters, and the learning rate of
configs/digits.py for all, which was chosen with the mean: the validation split has the training
writers and is nearly perfect under every setting, so that it could not choose one for each arm.
Flattening has 5 % more parameters, a class token takes 7 % more operations. Intervals are over
seeds; another 450 images by other writers would move all arms.
"""

from configs import digits


def get_config():
    """Returns configs/digits.py: 4 layers of width 64, 3,000 updates, pooled by the mean."""
    return digits.get_config()


def get_arms():
    """Returns how one vector of the image is taken."""
    return {
        name: {"model.vision_transformer.pooling": name}
        for name in ("mean", "class_token", "max", "flatten")
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Do a class token and average pooling do equally well in a vision transformer "
        "that beats the nearest neighbour?",
        "prediction": "Class token, maximum and flattening are all within 0.015 of the mean.",
        "expected": {
            "class_token": (-0.015, 0.015),
            "max": (-0.015, 0.015),
            "flatten": (-0.015, 0.015),
        },
        "metric": "accuracy",
        "margin": 0.015,
        "margin_reason": "more than half as many errors again: configs/digits.py errs in 0.016 to "
        "0.033 of the test images (three seeds)",
        "looks": (8,),
        "base": "mean",
        "supersedes": "poolings.py asked it of a model whose accuracy was 0.71, where the nearest "
        "neighbour has 0.96",
    }

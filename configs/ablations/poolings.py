"""Question: class token, mean, maximum or flattening in a vision transformer.

Command:   python -m experiments.ablate --config=configs/ablations/poolings.py --seeds=5 \
             --workdir=runs/poolings
Takes:     about 2 minutes on 2 CPU cores that had other work.

Limits: the test split has 450 images, not the 444 of the margin's reason.
"""

from configs import digits


def get_config():
    """Returns 2 layers of width 32 on 8 x 8 digits, 1,000 updates."""
    config = digits.get_config()
    config.model.width = 32
    config.model.depth = 2
    config.training.steps = 1000
    config.training.batch_size = 32
    config.evaluation.every = 100
    config.evaluation.batch_size = 512
    return config


def get_arms():
    """Returns how one vector of the image is taken."""
    return {
        name: {"model.vision_transformer.pooling": name}
        for name in ("class_token", "mean", "max", "flatten")
    }


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Do a class token and average pooling do equally well in a vision transformer?",
        "prediction": "Mean and class token are no different; flattening is better, since "
        "digits always stand at the same place.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "two images in a hundred; the standard error of an accuracy of 0.9 over "
        "the 444 test images is 0.014",
        "looks": (5,),
        "base": "class_token",
    }

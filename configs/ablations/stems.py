"""Question: a linear projection of patches, or convolutions.

Command:   python -m experiments.ablate --config=configs/ablations/stems.py --seeds=10:15 \
             --workdir=runs/stems
Takes:     about 2 minutes on 2 CPU cores that had other work.
"""

from configs import fashion_mnist


def get_config():
    """Returns 2 layers of width 32 over patches of 4 x 4 pixels, on 3,000 images of clothes."""
    config = fashion_mnist.get_config()
    config.model.vision_transformer.patch_size = 4
    config.model.width = 32
    config.model.depth = 2
    config.training.steps = 400
    config.training.batch_size = 32
    config.schedule.warmup_cosine.warmup_steps = 40
    config.evaluation.every = 400
    return config


def get_arms():
    """Returns the two stems."""
    return {"linear": {}, "convolutional": {"model.vision_transformer.stem": "convolutional"}}


def get_study():
    """Returns how it is judged."""
    return {
        "question": "Does a linear projection of patches suffice, or do convolutions in front of a "
        "vision transformer see more?",
        "prediction": "Convolutions are no different within the margin after so few updates: in "
        "one run of another seed at twice the width they were lower by 0.015.",
        "metric": "accuracy",
        "margin": 0.02,
        "margin_reason": "two images in a hundred; 300 updates at twice the width gave 0.75 "
        "and 0.74",
        "looks": (5,),
        "base": "linear",
    }

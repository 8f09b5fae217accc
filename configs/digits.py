"""Handwritten digits of 8 x 8 pixels (scikit-learn's, embedded) with a small vision transformer."""

from configs import reference


def get_config():
    """Returns 4 layers of width 64 over 16 patches of 2 x 2 pixels, trained for 3,000 updates."""
    config = reference.get_config()
    config.data.task = "image_classification"
    config.data.source = "digits"
    config.data.image_classification.max_shift = 1
    config.model.architecture = "vision_transformer"
    config.model.vision_transformer.patch_size = 2
    config.model.width = 64
    config.model.use_bias = True
    config.model.dropout_rate = 0.1
    config.training.steps = 3000
    config.training.batch_size = 64
    return config

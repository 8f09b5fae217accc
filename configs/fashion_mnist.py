"""Fashion-MNIST with a small vision transformer."""

from configs import reference


def get_config():
    """Returns 4 layers of width 96 over 49 patches of 4 x 4 pixels."""
    config = reference.get_config()
    config.data.task = "image_classification"
    config.data.source = "fashion_mnist"
    config.data.image_classification.max_shift = 2
    config.data.image_classification.flip = True
    config.model.architecture = "vision_transformer"
    config.model.vision_transformer.patch_size = 4
    config.model.width = 96
    config.model.use_bias = True
    config.model.dropout_rate = 0.1
    config.training.steps = 3000
    config.training.batch_size = 128
    config.evaluation.batch_size = 256
    return config

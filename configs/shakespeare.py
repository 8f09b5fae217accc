"""Characters of tiny Shakespeare, the shape of nanoGPT's published CPU example."""

from configs import reference


def get_config():
    """Returns the reference config."""
    return reference.get_config()

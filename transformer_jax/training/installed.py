"""Whether what a config asks for can be trained with the packages that are installed."""

import importlib.util

from ml_collections import ConfigDict

from transformer_jax.errors import InvalidInput
from transformer_jax.runs.writers import refuse_missing_writers
from transformer_jax.training.showcases import refuse_missing_packages


def refuse_what_is_not_installed(config: ConfigDict) -> None:
    """Raises InvalidInput where training this needs a package that is not there."""
    if importlib.util.find_spec("orbax") is None:
        raise InvalidInput("training saves with orbax: pip install 'transformer_jax[train]'")
    refuse_missing_packages(config.data.task)
    refuse_missing_writers(config.logging.writers)

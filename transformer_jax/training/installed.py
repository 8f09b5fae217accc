"""Whether what a config asks for can be trained with the packages that are installed."""

from ml_collections import ConfigDict

from transformer_jax.errors import require
from transformer_jax.runs.writers import WRITERS
from transformer_jax.training.showcases import demonstration_of


def refuse_what_is_not_installed(config: ConfigDict) -> None:
    """Raises InvalidInput where training this needs a package that is not there."""
    require("orbax", "training")
    refuse_missing_packages(config.data.task)
    for name in config.logging.writers:
        require(WRITERS[name][1], f"logging.writers={name}", "trackers")


def refuse_missing_packages(task: str) -> None:
    """Raises InvalidInput where a package that a task's scores need is not installed."""
    for package in demonstration_of(task).needs:
        require(package, f"data.task={task}")

"""Base of the other configs: every option at its default, except those set here.

docs/options.md and `--help` say what each option means and may be. Configs change a few values; any
value can be changed on the command line, `--config.model.depth=6`, and every value is checked
before anything is compiled.
"""

from ml_collections import ConfigDict

from transformer_jax.config_files import defaults


def get_config() -> ConfigDict:
    """Returns a character-level decoder on tiny Shakespeare, the shape of nanoGPT's CPU example."""
    config = defaults()
    config.model.use_bias = False
    return config

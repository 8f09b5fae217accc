"""Configs for Hugging Face models: their options and the location of their weights."""

import dataclasses
import functools
import os
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import DEFAULTS, VARIANT_SECTIONS
from transformer_jax.config_files import ConfigFile, changed, defaults
from transformer_jax.data.tasks import task_of_head, traits_of
from transformer_jax.hub import folder_of, read_settings
from transformer_jax.resolve import variant_options


def config_from_huggingface(source: str | Path) -> ConfigDict:
    """Returns a config for training that starts from a Hugging Face model.

    Its `model` section, tokenizer, task and initial weights are the model's; other options have
    their defaults. get_config() in a config file can return this config, changed or not.

    Args:
      source: A folder with config.json and model.safetensors, or OWNER/NAME on the hub.
    Raises:
      InvalidInput: There is no such folder, or the architecture or an option is unsupported.
    """
    # Imported here, so that reading other configs does not import jax.
    from transformer_jax.interop.huggingface import model_of

    folder = folder_of(source, weights=False)
    name, model = model_of(read_settings(folder), str(source))
    task = task_of_head(name)
    options = options_of_model(model)
    longest = options.get("model.max_length", DEFAULTS["data.length"])
    changes = options | {
        "data.task": task,
        "data.source": traits_of(task).tried_on,
        "data.length": min(DEFAULTS["data.length"], longest),
        "initial.weights": os.path.expanduser(str(source)),
    }
    if (tokenizer := folder / "tokenizer.json").is_file():
        changes["data.tokenizer"] = str(tokenizer)
    if (scaling := folder / "preprocessor_config.json").is_file():
        warnings.warn(f"{scaling}: not read; pictures are scaled by training data", stacklevel=2)
    return changed(defaults(), changes).unlock()


def config_to_use(source: str | Path) -> ConfigDict:
    """Returns a config for using a Hugging Face model without training.

    The config allows longer texts than in training, but few at a time: logits take much memory.
    """
    config = config_from_huggingface(source)
    longest = min(512, config.model.max_length)
    return changed(config, {"data.length": longest, "evaluation.batch_size": 8})


def options_of_model(model: Any) -> dict[str, Any]:
    """Returns the config options, by key, of a model in MODELS with built-in variants only.

    Sizes that the data determines (vocab_size, num_classes, image_shape) are left out.
    """
    from transformer_jax.models import MODELS

    place = f"{type(model).__module__}:{type(model).__name__}"
    architecture = next(name for name, module in MODELS.items() if module == place)
    made_of = {
        field.name: getattr(owner, field.name)
        for owner in (model, model.options)
        for field in dataclasses.fields(owner)
        if field.name != "dtype"
    }
    options = {"model.architecture": architecture}
    for key in (*DEFAULTS, *(variant_options("model.architecture", architecture) or {})):
        section, _, field = key.rpartition(".")
        if section == "model" and field in made_of:
            options[key] = made_of[field]
    for key, section in VARIANT_SECTIONS.items():
        if key.startswith("model.") and section != "model":
            stated = made_of.get(section.removeprefix("model."), {})
            options |= {f"{section}.{name}": value for name, value in stated.items()}
    for letter, of_type in model.options.layer_types.items():
        for field, value in of_type.items():
            key = f"model.layer_types.{letter}.{field}"
            if field.endswith("_options"):
                options |= {f"{key}.{name}": option for name, option in value.items()}
            else:
                options[key] = value
    return options


class FolderAsConfig(ConfigFile):
    """A Hugging Face model given instead of a config file: `train --config=smollm2/weights`."""

    module: Any

    def __init__(self, path: str) -> None:
        """Keeps the path; its files are read when a config is made."""
        self.path, self.given = path, f"--config={path}"
        self.module = SimpleNamespace(get_config=functools.partial(config_from_huggingface, path))

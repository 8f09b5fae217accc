"""A Hugging Face model as a config: its options and the place of its weights."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ml_collections import ConfigDict

from transformer_jax.config import DEFAULTS, VARIANT_SECTIONS
from transformer_jax.config_files import ConfigFile, changed, defaults
from transformer_jax.data.tasks import task_of_head, traits_of
from transformer_jax.hub import folder_of, read_settings
from transformer_jax.resolve import variant_options

_LONGEST = 512  # tokens of a text of a model that is used as it is, if the model reads so many
_ROWS = 8  # texts that are scored at once: their logits have a large vocabulary


def config_from_huggingface(source: str | Path) -> ConfigDict:
    """Returns a config whose training starts from a Hugging Face model.

    Its `model` section, tokenizer, task and initial weights are the model's; other options have
    their defaults. get_config() of a config file may return it, changed or not.

    Args:
      source: A folder with config.json and model.safetensors, or a repository of the hub,
        OWNER/NAME.
    Raises:
      InvalidInput: There is no such folder, or it has an unsupported architecture or option.
    """
    # Here, so that whoever reads a config does not wait for jax.
    from transformer_jax.interop.huggingface import model_of

    folder = folder_of(source, weights=False)
    name, model = model_of(read_settings(folder), str(source))
    task = task_of_head(name)
    options = options_of_model(model)
    longest = options.get("model.max_length", DEFAULTS["data.length"])
    changes = {
        **options,
        "data.task": task,
        "data.source": traits_of(task).tried_on,
        "data.length": min(DEFAULTS["data.length"], longest),
        "initial.weights": str(source),
    }
    if (folder / "tokenizer.json").is_file():
        changes["data.tokenizer"] = str(folder / "tokenizer.json")
    return changed(defaults(), changes).unlock()


def config_to_use(source: str | Path) -> ConfigDict:
    """Returns config_from_huggingface for a model that is used without training.

    Texts may be longer than in training, and few are read at once.
    """
    config = config_from_huggingface(source)
    longest = min(_LONGEST, config.model.max_length)
    return changed(config, {"data.length": longest, "evaluation.batch_size": _ROWS})


def options_of_model(model: Any) -> dict[str, Any]:
    """Returns the config options of a model: full key -> value.

    Excludes sizes that the data determines (vocab_size, num_classes, image_shape).

    Args:
      model: A model of a class in MODELS whose variants are all entries of tables.
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
    known = (*DEFAULTS, *(variant_options("model.architecture", architecture) or {}))
    for key in known:
        section, _, field = key.rpartition(".")
        if section == "model" and field in made_of:
            options[key] = made_of[field]
    for key, section in VARIANT_SECTIONS.items():
        stated = made_of.get(section.removeprefix("model."), {})
        if key.startswith("model.") and section != "model":
            options |= {f"{section}.{name}": value for name, value in stated.items()}
    for letter, of_type in model.options.layer_types.items():
        for field, value in of_type.items():
            key_of_type = f"model.layer_types.{letter}.{field}"
            if field.endswith("_options"):
                options |= {f"{key_of_type}.{name}": option for name, option in value.items()}
            else:
                options[key_of_type] = value
    return options


class FolderAsConfig(ConfigFile):
    """A Hugging Face model in place of a config file: `train --config=smollm2/weights`."""

    module: Any

    def __init__(self, path: str) -> None:
        """Reads nothing yet."""
        get_config: Callable[[], ConfigDict] = lambda: config_from_huggingface(path)  # noqa: E731
        self.path, self.given = path, f"--config={path}"
        self.module = SimpleNamespace(get_config=get_config)

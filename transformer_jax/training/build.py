"""Builders: from a config to the objects that it names."""

import contextlib
import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import VARIANT_SECTIONS
from transformer_jax.config_files import flatten, options_of, resolved
from transformer_jax.data.sources.files import OwnSource
from transformer_jax.data.tasks import TASKS, Task
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.models import MODELS
from transformer_jax.models.stack import OPTIONS, Transformer
from transformer_jax.own import chosen, faults_of, names_own
from transformer_jax.placement import RULES
from transformer_jax.resolve import letter_of, letters_of, of_type, variant_options
from transformer_jax.training.objectives import OBJECTIVES, in_chunks

if TYPE_CHECKING:
    from transformer_jax.sharding import Sharding


def make_run_sharding(
    config: ConfigDict, allow: Collection[str] = (), devices: Sequence[Any] | None = None
) -> "Sharding | None":
    """Returns the sharding of a config's arrays over its `mesh`, or None for one device.

    Args:
      config: The whole config.
      allow: User-defined modules that may be imported.
      devices: Devices of the mesh; jax's if None.
    Raises:
      InvalidInput: There are too few devices.
    """
    sizes = {axis: size for axis, size in config.mesh.items() if axis != "rules"}
    if all(size == 1 for size in sizes.values()) and jax.process_count() == 1:
        return None
    from transformer_jax.sharding import make_sharding

    rules = chosen(RULES, config.mesh.rules, "mesh.rules", allow)()
    return make_sharding(sizes, rules, devices)


def without_kernels(model: Any) -> Any:
    """Returns an equivalent model that XLA can divide over devices anywhere.

    A kernel of `attention=fused` is divided by hand, in programs that are traced as a step is.
    """
    options = getattr(model, "options", None)
    if options is None:
        return model

    def by_softmax(fields: Mapping[str, Any]) -> dict[str, Any]:
        if fields.get("attention") != "fused":
            return dict(fields)
        options = {k: v for k, v in fields.get("attention_options", {}).items() if k != "interpret"}
        return {**fields, "attention": "softmax", "attention_options": options}

    whole = {"attention": options.attention, "attention_options": options.attention_options}
    types = {letter: by_softmax(fields) for letter, fields in options.layer_types.items()}
    return model.with_options(**by_softmax(whole), layer_types=types)


def make_task(
    config: ConfigDict,
    tokenizer: Tokenizer | None = None,
    allow: Collection[str] = (),
    **changes: Any,
) -> Task:
    """Reads the data that a config names.

    Args:
      config: The whole config.
      tokenizer: Tokenizer of a stored run; the config's if None.
      allow: User-defined modules that may be imported.
      **changes: Other values for arguments of the task, e.g. `stride`.
    Returns:
      The task, with the options that it declares.
    Raises:
      InvalidInput: The data cannot be read, or a user-defined class failed.
    """
    data = config.data
    arguments = {
        **data,
        "batch_size": config.training.batch_size,
        "stride": config.evaluation.stride,
        "tokenizer": tokenizer or _own_of_data("tokenizer", data, allow),
        "source": _own_of_data("source", data, allow),
        **changes,
    }
    make = chosen(TASKS, data.task, "data.task", allow)
    declared = inspect.signature(make).parameters
    # What a task of the user's has a default for and no config may set keeps it.
    chosen_arguments = {name: arguments[name] for name in declared if name in arguments}
    of_user = [
        f"data.{name}={data[name]}"
        for name in ("task", "source", "tokenizer")
        if names_own(f"data.{name}", data[name])
    ]
    with faults_of(*of_user) if of_user else contextlib.nullcontext():
        return make(**chosen_arguments)


def _own_of_data(name: str, data: ConfigDict, allow: Collection[str]) -> Any:
    """Returns the value of an option of `data`, or the user-defined object that it names."""
    key, value = f"data.{name}", data[name]
    if not names_own(key, value):
        return value
    choice = chosen({}, value, key, allow)
    return OwnSource(value, choice) if name == "source" else choice


def make_model(config: ConfigDict, sizes: Mapping[str, Any], allow: Collection[str] = ()) -> Any:
    """Builds the module that a config's `model` section describes.

    Args:
      config: The whole config.
      sizes: Fields of the class that the data determines: vocab_size, num_classes, ...
      allow: User-defined modules that may be imported.
    """
    flat = flatten(config)
    fields = {**_fields(flat, allow), "layer_types": _layer_types(flat, allow), **sizes}
    if config.model.match_parameters is None:
        return _make(config.model.architecture, fields, allow)
    # The other architecture has its own defaults, also where a stored config spells these ones out.
    own = variant_options("model.architecture", config.model.architecture) or {}
    usual = {key.removeprefix("model.") for key, o in own.items() if flat.get(key) == o.default}
    own_fields = {
        name: value for name, value in fields.items() if name in sizes or name not in usual
    }
    target = count_parameters(_make(config.model.match_parameters, own_fields, allow))
    return _matched(config.model.architecture, fields, allow, target)


def _fields(flat: Mapping[str, Any], allow: Collection[str], start: str = "model.") -> dict:
    """Returns field of a model -> value, and the stated options of the chosen variants.

    Args:
      flat: The config.
      allow: User-defined modules that may be imported.
      start: Prefix of the keys in messages.
    """
    fields: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        if section != "model":
            continue
        fields[name] = chosen({}, value, start + name, allow) if names_own(key, value) else value
    for section in VARIANT_SECTIONS.values():
        name = section.removeprefix("model.")
        if name != section:
            fields[name] = {
                key.removeprefix(f"{section}."): value
                for key, value in flat.items()
                if key.startswith(f"{section}.")
            }
    return fields


def _layer_types(flat: Mapping[str, Any], allow: Collection[str]) -> dict[str, dict]:
    """Returns the fields that each layer type changes, by its letter."""
    types = {}
    for letter in letters_of(flat):
        if letter not in flat["model.layers"]:  # remarks_on tells of it
            continue
        start = f"model.layer_types.{letter}."
        typed = _fields(of_type(flat, letter), allow, start)
        names = {
            key.removeprefix(start).partition(".")[0] for key in flat if letter_of(key) == letter
        }
        types[letter] = {name: typed[name] for name in names}
    return types


def taken_from_data(config: ConfigDict, sizes: Mapping[str, Any]) -> list[str]:
    """Describes the options of the model that the data's own sizes replace, one line each."""
    flat = resolved(config)
    return [
        f"{key}={flat[key]}: this data has {size}, which is taken"
        for key, size in ((f"model.{name}", size) for name, size in sizes.items())
        if size is not None and flat.get(key, size) != size
    ]


def _make(
    architecture: Any, fields: Mapping[str, Any], allow: Collection[str], **changes: Any
) -> Any:
    make = architecture
    if isinstance(architecture, str):
        make = chosen(MODELS, architecture, "model.architecture", allow)
    values = {**fields, "dtype": jnp.dtype(fields["dtype"]), **changes}
    own = inspect.signature(make).parameters
    if not (isinstance(make, type) and issubclass(make, Transformer)):
        # Its fields are what it takes of the model's options and of the data's sizes.
        missing = [n for n, p in own.items() if p.default is p.empty and n not in values]
        if missing:
            raise ValueError(f"{make.__name__}: needs {missing[0]}, which this data does not have")
        return make(**{name: values[name] for name in own if name in values})
    return make.of(**{name: values[name] for name in (*OPTIONS, *own) if name in values})


def _matched(
    architecture: Any, fields: Mapping[str, Any], allow: Collection[str], target: int
) -> Any:
    """Returns the width whose number of parameters is nearest to the target.

    Every array has at most two axes as long as the width, so the number is a quadratic function of
    it: three counts determine the function, and its root is the width.
    """

    def with_width(width: int) -> tuple[int, Any]:
        made = _make(architecture, fields, allow, width=width)
        return count_parameters(made), made

    widths = (8, 16, 32)
    counts = [with_width(width)[0] - target for width in widths]
    root = max(np.roots(np.polyfit(widths, counts, 2)).real)
    candidates = [with_width(max(1, int(root) + step)) for step in (0, 1)]
    return min(candidates, key=lambda candidate: abs(candidate[0] - target))[1]


def make_objective(config: ConfigDict, allow: Collection[str] = ()) -> Any:
    """Returns the training objective of a config.

    Args:
      config: The whole config.
      allow: User-defined modules that may be imported.
    """
    name = config.objective.name
    make = chosen(OBJECTIVES, name, "objective.name", allow)
    return in_chunks(make(**options_of(config, "objective.name")), config.training.loss_chunk)


def count_parameters(model: Any) -> int:
    """Returns the number of parameters of a model without drawing any."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), **model.example_inputs())["params"]
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))

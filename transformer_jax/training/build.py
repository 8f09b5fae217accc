"""Builders of the objects that a config names."""

import contextlib
import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from transformer_jax.config import VARIANT_SECTIONS
from transformer_jax.config_files import flatten, options_of
from transformer_jax.data.sources.files import OwnSource
from transformer_jax.data.tasks import TASKS, Task
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.models import MODELS
from transformer_jax.models.stack import OPTIONS, Transformer
from transformer_jax.own import chosen, faults_of, names_own
from transformer_jax.placement import RULES
from transformer_jax.resolve import letters_of, of_type, variant_options
from transformer_jax.training.objectives import OBJECTIVES

if TYPE_CHECKING:
    from transformer_jax.sharding import Sharding


def make_run_sharding(
    config: ConfigDict, allow: Collection[str] = (), devices: Sequence[Any] | None = None
) -> "Sharding | None":
    """Returns the sharding of a config's arrays over its `mesh`, or None for one device.

    Args: As in prepared.prepare.

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
    """Returns an equivalent model without fused kernels, which XLA cannot divide among devices.

    Only programs that are traced like a training step divide a kernel of `attention=fused`.
    """
    options = getattr(model, "options", None)
    if options is None:
        return model

    def by_softmax(fields: Mapping[str, Any]) -> dict[str, Any]:
        if fields.get("attention") != "fused":
            return dict(fields)
        options = {k: v for k, v in fields.get("attention_options", {}).items() if k != "interpret"}
        return {**fields, "attention": "softmax", "attention_options": options}

    shared = {"attention": options.attention, "attention_options": options.attention_options}
    types = {letter: by_softmax(fields) for letter, fields in options.layer_types.items()}
    return model.with_options(**by_softmax(shared), layer_types=types)


def make_task(
    config: ConfigDict,
    tokenizer: Tokenizer | None = None,
    allow: Collection[str] = (),
    **changes: Any,
) -> Task:
    """Reads the data of a config and returns its task.

    Args: As in prepared.prepare; `changes` replace arguments of the task, e.g. stride.

    Raises:
      InvalidInput: The data cannot be read, or a user-defined class failed.
    """
    data = config.data
    of_user = [n for n in ("task", "source", "tokenizer") if names_own(f"data.{n}", data[n])]

    def option(name: str) -> Any:
        is_own = name in of_user
        return chosen({}, data[name], f"data.{name}", allow) if is_own else data[name]

    source = option("source")
    arguments = {
        **data,
        "batch_size": config.training.batch_size,
        "stride": config.evaluation.stride,
        "tokenizer": tokenizer or option("tokenizer"),
        "source": OwnSource(data.source, source) if "source" in of_user else source,
        **changes,
    }
    make = chosen(TASKS, data.task, "data.task", allow)
    # An argument of a user-defined task that no config can set keeps its default.
    declared = inspect.signature(make).parameters
    own = [f"data.{name}={data[name]}" for name in of_user]
    with faults_of(*own) if own else contextlib.nullcontext():
        return make(**{name: arguments[name] for name in declared if name in arguments})


def make_model(config: ConfigDict, sizes: Mapping[str, Any], allow: Collection[str] = ()) -> Any:
    """Builds the module that a config's `model` section describes.

    `sizes` are the fields that the data determines: vocab_size, num_classes, ...
    """
    flat, architecture = flatten(config), config.model.architecture
    fields = {**_fields(flat, allow), "layer_types": _layer_types(flat, allow), **sizes}
    if config.model.match_parameters is None:
        return _make(architecture, fields, allow)
    # The other architecture has its own defaults, even if a stored config states this one's.
    own = variant_options("model.architecture", architecture) or {}
    usual = {key.removeprefix("model.") for key, o in own.items() if flat.get(key) == o.default}
    shared = {name: v for name, v in fields.items() if name in sizes or name not in usual}
    target = count_parameters(_make(config.model.match_parameters, shared, allow))
    return _matched(architecture, fields, allow, target)


def _fields(flat: Mapping[str, Any], allow: Collection[str], start: str = "model.") -> dict:
    """Returns the fields of a model, by name, with the options stated for its chosen variants.

    `start` is the prefix of keys in error messages.
    """

    def options_in(section: str) -> dict[str, Any]:
        start = f"{section}."
        return {key.removeprefix(start): v for key, v in flat.items() if key.startswith(start)}

    fields = {}
    for name, value in options_in("model").items():
        if "." not in name:
            is_own = names_own(f"model.{name}", value)
            fields[name] = chosen({}, value, start + name, allow) if is_own else value
    for section in VARIANT_SECTIONS.values():
        if section.startswith("model."):
            fields[section.removeprefix("model.")] = options_in(section)
    return fields


def _layer_types(flat: Mapping[str, Any], allow: Collection[str]) -> dict[str, dict]:
    """Returns the fields that each layer type changes, with their values, by letter."""
    types = {}
    for letter in letters_of(flat):
        if letter in flat["model.layers"]:  # otherwise remarks_on reports it
            start = f"model.layer_types.{letter}."
            typed = _fields(of_type(flat, letter), allow, start)
            keys = (key.removeprefix(start) for key in flat if key.startswith(start))
            types[letter] = {name: typed[name] for name in {key.split(".")[0] for key in keys}}
    return types


def _make(architecture: Any, fields: Mapping[str, Any], allow: Collection[str]) -> Any:
    make = architecture
    if isinstance(architecture, str):
        make = chosen(MODELS, architecture, "model.architecture", allow)
    values = {**fields, "dtype": jnp.dtype(fields["dtype"])}
    own = inspect.signature(make).parameters
    if isinstance(make, type) and issubclass(make, Transformer):
        return make.of(**{name: values[name] for name in (*OPTIONS, *own) if name in values})
    # A user-defined class receives only the model options and data sizes that it declares.
    missing = [n for n, p in own.items() if p.default is p.empty and n not in values]
    if missing:
        raise ValueError(f"{make.__name__}: needs {missing[0]}, which this data does not have")
    return make(**{name: values[name] for name in own if name in values})


def _matched(kind: Any, fields: Mapping[str, Any], allow: Collection[str], target: int) -> Any:
    """Returns the model whose width brings its number of parameters closest to `target`.

    At most two axes of an array grow with the width, so the excess over `target` is a quadratic
    function of the width. Three counts determine this function, and its root is the width.
    """

    def of_width(width: int) -> Any:
        return _make(kind, {**fields, "width": width}, allow)

    widths = (8, 16, 32)
    excess = [count_parameters(of_width(width)) - target for width in widths]
    root = int(max(np.roots(np.polyfit(widths, excess, 2)).real))
    candidates = [of_width(max(1, root + step)) for step in (0, 1)]
    return min(candidates, key=lambda model: abs(count_parameters(model) - target))


def make_objective(config: ConfigDict, allow: Collection[str] = ()) -> Any:
    """Returns the training objective of a config."""
    name = config.objective.name
    make = chosen(OBJECTIVES, name, "objective.name", allow)
    return make(**options_of(config, "objective.name"))


def count_parameters(model: Any) -> int:
    """Returns the number of parameters of a model without initialising them."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), **model.example_inputs())["params"]
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))

"""From a config to the things that it names."""

import contextlib
import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict
from ml_collections import ConfigDict

from transformer_jax.data.sources.files import OwnSource
from transformer_jax.data.tasks import TASKS, Task
from transformer_jax.data.tokenizers import Tokenizer
from transformer_jax.models import MODELS
from transformer_jax.models.families import make_with_known_fields, row
from transformer_jax.options.config import options_of
from transformer_jax.options.rule import is_own
from transformer_jax.options.tables import OWN, OWN_SECTIONS, names_own
from transformer_jax.sharding import AXES, RULES, Sharding, make_sharding
from transformer_jax.training.objectives import OBJECTIVES, in_chunks
from transformer_jax.training.own import chosen, faults_of


def make_run_sharding(
    config: ConfigDict, allow: Collection[str] = (), devices: Sequence[Any] | None = None
) -> Sharding | None:
    """Returns how a config's arrays lie over the devices of its `mesh`; None: on one.

    Args:
      config: whole.
      allow: modules of the user's own that may be imported.
      devices: that the mesh is made of; jax's if not given.
    Raises:
      InvalidInput: there are not so many.
    """
    rules = chosen(RULES, config.mesh.rules, "mesh.rules", allow)()
    return make_sharding({axis: config.mesh[axis] for axis in AXES}, rules, devices)


def without_kernels(model: nn.Module) -> nn.Module:
    """Returns a model that computes the same, and that XLA can cut over devices anywhere.

    A kernel of `attention=fused` is cut by hand, where a program is traced as a step is.
    """
    names = ("attention", "attention_options")
    shared: dict[str, Any] = {name: getattr(model, name, None) for name in names}

    def by_softmax(own: Mapping[str, Any]) -> FrozenDict:
        merged = {**shared, **own}
        if merged["attention"] != "fused":
            return FrozenDict(own)
        options = {k: v for k, v in merged["attention_options"].items() if k != "interpret"}
        return FrozenDict(own, attention="softmax", attention_options=FrozenDict(options))

    types = {letter: by_softmax(own) for letter, own in getattr(model, "layer_types", {}).items()}
    changes: dict[str, Any] = dict(by_softmax({}))
    if types:
        changes["layer_types"] = FrozenDict(types)
    return model.clone(**changes) if changes else model


def make_task(
    config: ConfigDict,
    tokenizer: Tokenizer | None = None,
    allow: Collection[str] = (),
    **changes: Any,
) -> Task:
    """Reads the data that a config names.

    Args:
      config: whole.
      tokenizer: a stored run's tokenizer; the config's if not given.
      allow: modules of the user's own that may be imported.
      **changes: other values for what the task takes, `stride` say.
    Returns:
      The task, which got those options that it declares.
    Raises:
      InvalidInput: the data cannot be read, or a class of the user's own failed; the text tells.
    """
    data = config.data
    arguments = {
        **data,
        **options_of(data, data.task),
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
    """The value of an option of `data`, or what it names of the user's own."""
    key, value = f"data.{name}", data[name]
    if not names_own(key, value):
        return value
    choice = chosen({}, value, key, allow)
    return OwnSource(value, choice) if name == "source" else choice


def make_model(model: ConfigDict, sizes: Mapping[str, Any], allow: Collection[str] = ()) -> Any:
    """Makes the module that a config's `model` section describes.

    An option is a field of the module's class; the options of a row (`position_options.rotary`) and
    of an architecture (`encoder.pooling`) reach it only while that row is chosen.

    Args:
      model: the section.
      sizes: what the data says about fields of the class: vocab_size, num_classes, ...
      allow: modules of the user's own rows that may be imported.
    """
    sizes = {
        **sizes,
        **_own_rows(model.to_dict(), allow),
        "layer_types": _layer_types(model, allow),
    }
    sizes |= _own_rows(options_of(model, model.architecture), allow, f"{model.architecture}.")
    if model.match_parameters is None:
        return _make(model.architecture, model, sizes)
    target = count_parameters(_make(model.match_parameters, model, sizes))
    return _matched(model, sizes, target)


def _own_rows(
    section: Mapping[str, Any], allow: Collection[str], inside: str = "", key: str = "model."
) -> dict[str, Any]:
    """The user's own classes that a `model` section, or one inside it, names by its fields.

    Args:
      section: the values.
      allow: modules that may be imported.
      inside: what the keys have behind `model.`.
      key: what they begin with in messages.
    """
    return {
        field: chosen({}, value, f"{key}{inside}{field}", allow)
        for field, value in section.items()
        if f"model.{inside}{field}" in OWN and is_own(value)
    }


def _layer_types(model: ConfigDict, allow: Collection[str]) -> FrozenDict:
    """The fields that each type of layer has otherwise, by its letter."""
    types = {}
    for letter, section in model.layer_types.items() if "layer_types" in model else ():
        if letter not in model.layers:  # remarks_on tells of it
            continue
        merged = ConfigDict({**model.to_dict(), "layer_types": {}})
        for family in section:  # options of a class of the user's go with the class
            if f"model.{family}" in OWN_SECTIONS and section[family] != model[family]:
                options = merged[f"{family}_options"]
                merged[f"{family}_options"] = {k: v for k, v in options.items() if k != "own"}
        merged.update(section.to_dict())
        own = _own_rows(merged.to_dict(), allow, key=f"model.layer_types.{letter}.")
        fields = set()
        for name in section:
            family = name.removesuffix("_options")
            fields |= {family, f"{family}_options"} & set(merged)
        defaults = {**merged, **_options_of_rows(merged), **own}
        types[letter] = FrozenDict({name: defaults[name] for name in sorted(fields)})
    return FrozenDict(types)


def _options_of_rows(model: ConfigDict) -> dict[str, FrozenDict]:
    """The options of the rows that a `model` section chooses, by field."""
    return {
        f"{family}_options": FrozenDict(options_of(model[f"{family}_options"], model[family]))
        for family in model
        if f"{family}_options" in model
    }


def taken_from_data(model: ConfigDict, sizes: Mapping[str, Any]) -> list[str]:
    """Says of which options of the model the data's own sizes take the place, one line each."""
    inside = f"{model.architecture}."
    said = {**model, **{inside + n: v for n, v in options_of(model, model.architecture).items()}}
    return [
        f"model.{key}={said[key]}: this data has {size}, which is taken"
        for name, size in sizes.items()
        for key in (name, inside + name)
        if key in said and size is not None and said[key] != size
    ]


def _make(architecture: str, model: ConfigDict, sizes: Mapping[str, Any], **changes: Any) -> Any:
    make = sizes.get("architecture") or row(MODELS, architecture, "model.architecture")
    values = {**model, **options_of(model, architecture), **sizes, **_options_of_rows(model)}
    return make_with_known_fields(make, {**values, "dtype": jnp.dtype(model.dtype), **changes})


def _matched(model: ConfigDict, sizes: Mapping[str, Any], target: int) -> Any:
    """Finds the width whose number of parameters is nearest to the wanted one.

    Every array has at most two axes as long as the width, so the number is a quadratic function of
    it: three counts tell the function, its root the width.
    """

    def with_width(width: int) -> tuple[int, Any]:
        made = _make(model.architecture, model, sizes, width=width)
        return count_parameters(made), made

    widths = (8, 16, 32)
    counts = [with_width(width)[0] - target for width in widths]
    root = max(np.roots(np.polyfit(widths, counts, 2)).real)
    candidates = [with_width(max(1, int(root) + step)) for step in (0, 1)]
    return min(candidates, key=lambda candidate: abs(candidate[0] - target))[1]


def make_objective(config: ConfigDict, allow: Collection[str] = ()) -> Any:
    """Makes what a config's training makes small.

    Args:
      config: whole.
      allow: modules of the user's own that may be imported.
    """
    name = config.objective.name
    make = chosen(OBJECTIVES, name, "objective.name", allow)
    return in_chunks(make(**options_of(config.objective, name)), config.training.loss_chunk)


def count_parameters(model: Any) -> int:
    """Returns how many numbers a model has to learn, without drawing any."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), **model.example_inputs())["params"]
    return sum(leaf.size for leaf in jax.tree.leaves(shapes))

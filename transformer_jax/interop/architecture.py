"""Architectures of transformers: the matching model, options and arrays of ours."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.layouts import Entry
from transformer_jax.models.effect import Described, options_in_effect
from transformer_jax.options import FrozenOptions

Settings = Mapping[str, Any]
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
}
_THEIR_ACTIVATIONS = {
    our_name: their_name for their_name, our_name in reversed(_ACTIVATIONS.items())
}
_SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3"}
# Of llama3: our option, their name, which is needed, and how it is read.
_OF_LLAMA3 = (
    ("original_length", "original_max_position_embeddings", int),
    ("low_freq_factor", "low_freq_factor", float),
    ("high_freq_factor", "high_freq_factor", float),
)
# Our field -> what most of their classes call it in config.json.
NAMES = {
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "activation": "hidden_act",
    "norm_epsilon": "layer_norm_eps",
}
NAMES_OF_TEXT = {"vocab_size": "vocab_size", "max_length": "max_position_embeddings", **NAMES}
_SIZES = (
    "vocab_size",
    "max_length",
    "width",
    "depth",
    "num_heads",
    "mlp_dim",
    "head_dim",
    "num_kv_heads",
)


class Architecture(NamedTuple):
    """One of their classes.

    Attributes:
      make: Their settings -> our model.
      describe: Our model -> their settings.
      entries: Our model -> all arrays.
      model: Our class.
      prefix: What their names of the body begin with, in a model with a head.
      heads: What the names outside the body begin with.
      required: Values of their settings that our model has built in, where they are given.
      not_read: Names that our model has no use for; * stands for any part.
      tied: Copy -> name of the array that it has to equal.
      renames: Parts of names as their objects have them -> as their files have them.
    """

    make: Callable[[Settings], Any]
    describe: Callable[[Any], dict[str, Any]]
    entries: Callable[[Any], list[Entry]]
    model: type
    prefix: str
    heads: tuple[str, ...] = ()
    required: Mapping[str, Any] = {}
    not_read: tuple[str, ...] = ()
    tied: Mapping[str, str] = {}
    renames: Mapping[str, str] = {}


def refuse_unlike_sides(settings: Settings, encoder_key: str, decoder_key: str) -> None:
    """Raises InvalidInput where an encoder and its decoder differ in what our model has once."""
    sizes = [settings[encoder_key], settings.get(decoder_key)]
    if sizes[1] is not None and sizes[0] != sizes[1]:
        raise InvalidInput(
            f"config.json: {encoder_key}={sizes[0]} and {decoder_key}={sizes[1]}: expected both "
            "sides alike"
        )


def with_sizes(model: Any) -> Any:
    """Returns a model of theirs, if its sizes are sizes; Linen's fields take anything.

    Raises:
      ValueError: One of them is none.
    """
    described = Described(model)
    for name in _SIZES:
        size = getattr(described, name, 1)
        may_be_left_out = size is None and name not in NAMES_OF_TEXT
        if not may_be_left_out and not (type(size) is int and size >= 1):
            raise ValueError(f"{name}={size}: expected an integer >= 1")
    epsilon = described.norm_epsilon
    if type(epsilon) not in (int, float):
        raise ValueError(f"norm_epsilon={epsilon}: expected a number")
    return model


def our_activation(settings: Settings, key: str) -> str:
    """Returns our name of the activation that their config has under a key."""
    name = settings[key]
    if name not in _ACTIVATIONS:
        allowed = ", ".join(_ACTIVATIONS)
        raise InvalidInput(f"config.json: {key}={name}: expected one of {allowed}")
    return _ACTIVATIONS[name]


def their_activation(model: Any) -> str:
    """Returns their name of a model's activation."""
    if model.activation not in _THEIR_ACTIVATIONS:
        allowed = ", ".join(_THEIR_ACTIVATIONS)
        raise InvalidInput(f"activation: expected one of {allowed}, got {model.activation}")
    return _THEIR_ACTIVATIONS[model.activation]


def our_fields(settings: Settings, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of our model that their config has under these names."""
    fields = {our_name: settings[their_name] for our_name, their_name in names.items()}
    fields |= {"activation": our_activation(settings, names["activation"])}
    if "norm_epsilon" in fields:
        fields["norm_options"] = {"epsilon": fields.pop("norm_epsilon")}
    return fields


def their_settings(model: Any, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns what their config has under these names, of a model."""
    settings = {their_name: getattr(model, field) for field, their_name in names.items()}
    return settings | {names["activation"]: their_activation(model)}


def labels_of(count: int | None) -> dict[str, Any]:
    """Their settings, which tell the number of classes by their names; none without classes."""
    names = {str(number): f"LABEL_{number}" for number in range(count or 0)}
    labels = {"id2label": names, "label2id": {name: int(n) for n, name in names.items()}}
    return labels if names else {}


def num_labels(settings: Settings) -> int:
    """Returns the number of classes of their config; without names of classes it is 2."""
    return len(settings.get("id2label") or {0: "", 1: ""})


def rotation_of(settings: Settings, partial: bool = False) -> FrozenOptions:
    """Returns the options of our rotary positions for their settings, of old files or new ones.

    Args:
      settings: theirs.
      partial: Whether their model may turn a share of the features; others do not read it.
    """
    theta = settings.get("rope_theta", settings.get("rotary_emb_base", 10_000.0))
    fraction = settings.get("rotary_pct", 0.25 if partial else 1.0)  # GPT-NeoX's default
    rope = {"rope_theta": theta, "partial_rotary_factor": fraction}
    for key in ("rope_scaling", "rope_parameters"):
        rope |= settings.get(key) or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in _SCALINGS:
        allowed = ", ".join(_SCALINGS)
        raise InvalidInput(f"config.json: rope_type={kind}: expected one of {allowed}")
    needed = ["factor"] * (kind != "default")
    needed += [name for _, name, _ in _OF_LLAMA3] * (kind == "llama3")
    wrong = [name for name in needed if not isinstance(rope.get(name), int | float)]
    if wrong:
        got = rope.get(wrong[0])
        raise InvalidInput(f"config.json: rope_type={kind}: {wrong[0]}={got}: expected a number")
    if kind == "llama3" and not rope["low_freq_factor"] < rope["high_freq_factor"]:
        raise InvalidInput("config.json: rope_type=llama3: low_freq_factor is not the lower one")
    more = {our_name: read(rope[name]) for our_name, name, read in _OF_LLAMA3 if kind == "llama3"}
    return FrozenOptions(
        {
            "max_wavelength": float(rope["rope_theta"]),
            "fraction": float(rope["partial_rotary_factor"]) if partial else 1.0,
            "scaling": _SCALINGS[kind],
            "factor": float(rope.get("factor", 1.0)),
            **more,
        }
    )


def attention_dropout(model: Any) -> float:
    """Returns the share of attention weights that a model drops in training."""
    rate = model.attention_dropout_rate
    return model.dropout_rate if rate is None else rate


def dropout_fields(settings: Settings, residual: str, weights: str) -> dict[str, Any]:
    """Returns our rates of dropout, from the names of theirs: of branches, and of weights."""
    rate = settings.get(residual, 0.0)
    own = settings.get(weights, rate)
    return {"dropout_rate": rate, "attention_dropout_rate": None if own == rate else own}


def rotation_settings(model: Any) -> dict[str, Any]:
    """Returns their settings, as transformers 5 has them, of our rotary positions."""
    if model.position != "rotary":
        return {}
    options = options_in_effect(model.options, "position")
    theta, fraction = options["max_wavelength"], options["fraction"]
    rope = {"rope_theta": theta, "rope_type": "default", "partial_rotary_factor": fraction}
    if options["scaling"] != "none":
        rope |= {"rope_type": options["scaling"], "factor": options["factor"]}
    if options["scaling"] == "llama3":
        rope |= {name: options[our_name] for our_name, name, _ in _OF_LLAMA3}
    return {"rope_theta": theta, "rope_parameters": rope}

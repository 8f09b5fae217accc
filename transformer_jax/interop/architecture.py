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
    """One class of transformers, with conversions.

    Attributes:
      make: Function from their settings to our model.
      describe: Function from our model to their settings.
      entries: Function from our model to the layout of all arrays.
      model: Our class.
      prefix: Prefix of their names of the body, in a model with a head.
      heads: Prefix of their names outside the body.
      required: Values of their settings that our model has built in.
      not_read: Names that our model does not use; * stands for any part.
      tied: Copy -> name of the array that it must equal.
      renames: Parts of names in their objects -> in their files.
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
    """Raises InvalidInput if encoder and decoder differ in an option that our model has once."""
    sizes = [settings[encoder_key], settings.get(decoder_key)]
    if sizes[1] is not None and sizes[0] != sizes[1]:
        raise InvalidInput(
            f"config.json: {encoder_key}={sizes[0]} and {decoder_key}={sizes[1]}: expected both "
            "sides alike"
        )


def with_sizes(model: Any) -> Any:
    """Returns a model from settings after checking that its sizes are integers.

    Raises:
      ValueError: A size is not an integer.
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
    """Returns our name of the activation under a key of their config."""
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
    """Returns the entries of their config with these names, for a model."""
    settings = {their_name: getattr(model, field) for field, their_name in names.items()}
    return settings | {names["activation"]: their_activation(model)}


def labels_of(count: int | None) -> dict[str, Any]:
    """Returns their settings for a number of classes, which name them; {} without classes."""
    names = {str(number): f"LABEL_{number}" for number in range(count or 0)}
    labels = {"id2label": names, "label2id": {name: int(n) for n, name in names.items()}}
    return labels if names else {}


def num_labels(settings: Settings) -> int:
    """Returns the number of classes in their config; 2 if it does not name them."""
    return len(settings.get("id2label") or {0: "", 1: ""})


def rotation_of(settings: Settings, partial: bool = False) -> FrozenOptions:
    """Returns the options of our rotary positions for their settings, in old or new files.

    Args:
      settings: Their settings.
      partial: Whether their model may rotate only a fraction of the features.
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
    """Returns the dropout rate of a model's attention weights."""
    rate = model.attention_dropout_rate
    return model.dropout_rate if rate is None else rate


def dropout_fields(settings: Settings, residual: str, weights: str) -> dict[str, Any]:
    """Returns our dropout rates from their names for branches and for weights."""
    rate = settings.get(residual, 0.0)
    own = settings.get(weights, rate)
    return {"dropout_rate": rate, "attention_dropout_rate": None if own == rate else own}


def rotation_settings(model: Any) -> dict[str, Any]:
    """Returns their settings (transformers 5) of our rotary positions."""
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

"""Architectures of Hugging Face transformers (theirs), matched to models of this package (ours)."""

from collections import UserDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.declarations import Option, declared_options, options_of_section
from transformer_jax.errors import InvalidInput
from transformer_jax.interop.defaults import ALIASES, DEFAULTS, INERT
from transformer_jax.interop.layouts import TRANSPOSED, Entry, Table, entries_of
from transformer_jax.model_options import ModelOptions
from transformer_jax.models.effect import Described, options_in_effect
from transformer_jax.options import entry_of

Settings = Mapping[str, Any]
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python": "gelu",
    "relu": "relu",
    "relu2": "relu_squared",
    "silu": "silu",
    "swish": "silu",
}
_THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(_ACTIVATIONS.items())}
_SCALINGS = {"default": "none", "linear": "linear", "llama3": "llama3"}
# Required for llama3: our option, their name, and its type.
_OF_LLAMA3 = (
    ("original_length", "original_max_position_embeddings", int),
    ("low_freq_factor", "low_freq_factor", float),
    ("high_freq_factor", "high_freq_factor", float),
)
# Our field -> its name in config.json for most of their classes.
NAMES = {
    "width": "hidden_size",
    "depth": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
    "activation": "hidden_act",
    "norm_epsilon": "layer_norm_eps",
}
NAMES_OF_TEXT = {"vocab_size": "vocab_size", "max_length": "max_position_embeddings", **NAMES}
_SIZES = ("vocab_size", "max_length", "width", "depth", "num_heads")


class Architecture(NamedTuple):
    """One model class of Hugging Face transformers, with conversions.

    Attributes:
      model: Our class.
      model_type: Their name for the architecture.
      names: Their name in config.json by our field, for values that are the same in both.
      fields: Function from their settings to our other fields.
      settings: Function from our model to their other settings.
      table: Function from our model to the names and layouts of all arrays.
      prefix: Prefix of their array names in the body, in a model with a head.
      heads: Prefixes of their array names outside the body.
      required: Values that their settings must have, since our model allows no others.
      not_read: Names of arrays that our model does not use; * stands for any part.
      tied: Name of the array that a copy must equal, by name of the copy.
      renames: Replacements in the names of arrays, by regular expression.
      sides: Their decoder setting by their encoder setting, where our model has one value for both.
      constants: Function from our model to arrays of theirs, by name, whose values it computes;
        a file may leave them out, and must agree otherwise.
      zeros: Regular expression of our parameters that theirs lacks, and that must be 0.
    """

    model: Any
    model_type: str
    names: Mapping[str, str]
    fields: Callable[[Settings], Mapping[str, Any]]
    settings: Callable[[Any], Mapping[str, Any]]
    table: Callable[[Any], Table]
    prefix: str
    heads: tuple[str, ...] = ()
    required: Mapping[str, Any] = {}
    not_read: tuple[str, ...] = ()
    tied: Mapping[str, str] = {}
    renames: Mapping[str, str] = {}
    sides: Mapping[str, str] = {}
    constants: Callable[[Any], Mapping[str, np.ndarray]] = lambda _: {}
    zeros: str = ""

    def unread(self, settings: Settings) -> list[str]:
        """Returns the names of settings that are not read here, except those without effect."""
        given = _Recorded(self._completed(settings))
        rate = self._model_for(given).options.dropout_rate
        known = given.read | self.required.keys() | ALIASES.get(self.model_type, {}).keys() | INERT
        others = [key for key, value in settings.items() if key not in known and value]
        others = [key for key in others if key[0] != "_" and not key.endswith("_token_id")]
        return others + ["embd_pdrop"] * (settings.get("embd_pdrop", rate) != rate)

    def make(self, settings: Settings) -> Any:
        """Returns our model for their settings."""
        return self._model_for(self._completed(settings))

    def _completed(self, settings: Settings) -> dict[str, Any]:
        settings = {**DEFAULTS.get(self.model_type, {}), **settings}
        for second, first in ALIASES.get(self.model_type, {}).items():
            if settings.get(second) is not None:
                settings[first] = settings[second]
        return settings

    def _model_for(self, settings: Settings) -> Any:
        for key in (self.names[field] for field in _SIZES if field in self.names):
            if not (type(settings[key]) is int and settings[key] >= 1):
                raise InvalidInput(f"config.json: {key}={settings[key]}: expected an integer >= 1")
        for encoder_key, decoder_key in self.sides.items():
            encoder, decoder = settings[encoder_key], settings.get(decoder_key)
            if decoder not in (None, encoder):
                raise InvalidInput(
                    f"config.json: {encoder_key}={encoder} and {decoder_key}={decoder}: expected "
                    "the same value"
                )
        fields = {**_our_fields(settings, self.names), **self.fields(settings)}
        _refuse_values({"max_length": 1, **self.model.usual, **fields}, settings)
        return self.model.of(**fields)

    def describe(self, model: Described) -> dict[str, Any]:
        """Returns their settings for a model of ours."""
        described = {theirs: in_effect(model, field) for field, theirs in self.names.items()}
        if "activation" in self.names:
            if model.activation not in _THEIR_ACTIVATIONS:
                allowed = ", ".join(_THEIR_ACTIVATIONS)
                raise InvalidInput(f"activation: expected one of {allowed}, got {model.activation}")
            described[self.names["activation"]] = _THEIR_ACTIVATIONS[model.activation]
        described |= {decoder: described[encoder] for encoder, decoder in self.sides.items()}
        return {"model_type": self.model_type, **described, **self.settings(model)}

    def entries(self, model: Described) -> list[Entry]:
        """Returns the entries for all arrays of a model of ours."""
        return entries_of(self.table(model), model.depth, model.use_bias)


class _Recorded(UserDict):
    """Settings that remember the names that were read."""

    def __init__(self, settings: Settings) -> None:
        self.read = set[str]()
        super().__init__(settings)

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)


def entry_for(table: Mapping[str, Any], key: str, value: Any) -> Any:
    """Returns a table's entry for the value of a key in their config.

    Raises:
      InvalidInput: The table has no such entry.
    """
    if value not in table:
        raise InvalidInput(f"config.json: {key}={value}: expected one of {', '.join(table)}")
    return table[value]


def _refuse_values(fields: Mapping[str, Any], settings: Settings) -> None:
    """Raises InvalidInput if a field of a model has a value that commands would refuse."""
    if fields["max_length"] < 1:
        raise InvalidInput(f"config.json: max_length={fields['max_length']}: expected at least 1")
    for own in (fields, *fields.get("layer_types", {}).values()):
        for field, option in options_of_section(ModelOptions).items():
            if field in own:
                _refuse_value(field, option, own[field], settings)
            value = own.get(field, fields.get(field, option.default))
            stated = own.get(f"{field}_options", {}) if isinstance(value, str) else {}
            if stated and option.variant is not None:
                declared = declared_options(entry_of(option.variant.entries(), value))
                for name in stated.keys() & declared.keys():
                    _refuse_value(f"{field} {name}", declared[name], stated[name], settings)


def _refuse_value(name: str, option: Option, value: Any, settings: Settings) -> None:
    if not option.accepts(value):
        parts = [settings, *(part for part in settings.values() if isinstance(part, Mapping))]
        theirs = [key for part in parts for key, their in part.items() if their is value]
        where = f" ({name})" if theirs else ""
        stated = f"{' or '.join(theirs) or name}={value!r}"
        raise InvalidInput(f"config.json: {stated}{where}: expected {option.allowed}")


def _our_fields(settings: Settings, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of our model that their config states under these names.

    A missing dropout rate means 0; a missing rate for attention weights means the same rate.
    """
    missing = {"dropout_rate": 0.0, "attention_dropout_rate": None}
    fields = {
        field: settings.get(name, missing[field]) if field in missing else settings[name]
        for field, name in names.items()
    }
    if "activation" in names:
        fields["activation"] = entry_for(_ACTIVATIONS, names["activation"], fields["activation"])
    if "norm_epsilon" in names:
        fields["norm_options"] = {"epsilon": fields.pop("norm_epsilon")}
    if fields.get("attention_dropout_rate") == fields.get("dropout_rate"):
        fields.pop("attention_dropout_rate", None)
    return fields


def in_effect(model: Described, field: str) -> Any:
    """Returns an option of a model, or the value that applies if the option is None."""
    value = getattr(model, field)
    if value is not None:
        return value
    head_dim = model.head_dim or model.width // model.num_heads
    defaults = {
        "attention_dropout_rate": model.dropout_rate,
        "attention_scale": head_dim**-0.5,
        "mlp_dim": round((8 / 3 if model.feed_forward == "gated" else 4) * model.width),
        "head_dim": head_dim,
        "value_dim": head_dim,
        "num_kv_heads": model.num_heads,
    }
    return defaults.get(field)


def output_layer(model: Described) -> Table:
    """Returns the table of a language model's output layer; {} if the embedding serves as one."""
    return {} if model.tie_embeddings else {"output/kernel": ("lm_head.weight", TRANSPOSED)}


def labels_of(count: int | None) -> dict[str, Any]:
    """Returns their settings that name `count` classes, LABEL_0 and so on; {} without classes."""
    names = {str(number): f"LABEL_{number}" for number in range(count or 0)}
    labels = {"id2label": names, "label2id": {name: int(n) for n, name in names.items()}}
    return labels if names else {}


def num_labels(settings: Settings) -> int:
    """Returns the number of classes in their config; 2 if the config names none.

    Raises:
      InvalidInput: Two settings state different numbers.
    """
    labels, count = settings.get("id2label"), settings.get("num_labels")
    if labels and count not in (None, len(labels)):
        raise InvalidInput(f"config.json: num_labels={count}: id2label names {len(labels)}")
    return len(labels) if labels else 2 if count is None else count


def rotation_of(
    settings: Settings, fraction: str | None = None, theta: str = "rope_theta"
) -> dict[str, Any]:
    """Returns the options of our rotary positions for their settings, in old or new format.

    As in transformers, a `rope_scaling` replaces `rope_parameters`.

    Args:
      settings: Their settings.
      fraction: Name of the fraction of the features that are rotated, if it is read.
      theta: Name of the base outside `rope_parameters`.
    """
    rope = dict(settings.get("rope_scaling") or settings.get("rope_parameters") or {})
    rope.setdefault("rope_theta", settings.get(theta, 10_000.0))
    rope.setdefault("partial_rotary_factor", settings.get(fraction, 1.0) if fraction else 1.0)
    kind = rope.get("rope_type", rope.get("type", "default"))
    scaling = entry_for(_SCALINGS, "rope_type", kind)
    of_llama3 = _OF_LLAMA3 if kind == "llama3" else ()
    if kind == "llama3":
        name = "original_max_position_embeddings"
        rope.setdefault(name, settings.get("max_position_embeddings"))
        rope[name] = settings.get(name) or rope[name]
    needed = ["rope_theta", "partial_rotary_factor", *["factor"] * (kind != "default")]
    for name in needed + [name for _, name, _ in of_llama3]:
        if not isinstance(rope.get(name), int | float):
            got = rope.get(name)
            raise InvalidInput(f"config.json: rope_type={kind}: {name}={got}: expected a number")
    if kind == "llama3" and not rope["low_freq_factor"] < rope["high_freq_factor"]:
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        raise InvalidInput(
            "config.json: rope_type=llama3: expected low_freq_factor below high_freq_factor, got "
            f"{low} and {high}"
        )
    return {
        "max_wavelength": float(rope["rope_theta"]),
        "fraction": float(rope["partial_rotary_factor"]) if fraction else 1.0,
        "scaling": scaling,
        "factor": float(rope.get("factor", 1.0)),
        **{our_name: read(rope[name]) for our_name, name, read in of_llama3},
    }


def rotation_settings(model: Any) -> dict[str, Any]:
    """Returns their settings (transformers 5) for our rotary positions; {} for other positions."""
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

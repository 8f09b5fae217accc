"""Which class of theirs is which model of ours, and which array is which."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.layouts import Entry

Settings = Mapping[str, Any]
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}
_THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu"}


class Architecture(NamedTuple):
    """One of their classes.

    Attributes:
      make: their settings -> our model.
      describe: our model -> their settings.
      entries: our model -> all arrays.
      model: our class.
      prefix: what their names of the body begin with, in a model with a head.
      heads: what the names outside the body begin with.
      required: values of their settings that our model has built in, where they are given.
      not_read: names that our model has no use for; * stands for any part.
      tied: copy -> name of the array that it has to equal.
      renames: parts of names as their objects have them -> as their files have them.
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


def our_activation(settings: Settings, key: str) -> str:
    """Returns our name of the activation that their config has under a key."""
    name = settings[key]
    if name not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise InvalidInput(f"config.json: {key}={name}: expected one of {known}")
    return _ACTIVATIONS[name]


def their_activation(model: Any) -> str:
    """Returns their name of a model's activation."""
    if model.activation not in _THEIR_ACTIVATIONS:
        known = ", ".join(_THEIR_ACTIVATIONS)
        raise InvalidInput(f"activation: expected one of {known}, got {model.activation}")
    return _THEIR_ACTIVATIONS[model.activation]


def labels_of(count: int) -> dict[str, Any]:
    """Their settings tells the number of classes by the names of the classes."""
    names = {str(number): f"LABEL_{number}" for number in range(count)}
    return {"id2label": names, "label2id": {name: int(n) for n, name in names.items()}}


def num_labels(settings: Settings) -> int:
    """Returns the number of classes of their config; without names of classes it is 2."""
    return len(settings.get("id2label") or {0: "", 1: ""})

"""The families of components, and how a field of a model chooses a row of one."""

import inspect
from collections.abc import Mapping
from typing import Any

from transformer_jax.layers.attention import ATTENTIONS
from transformer_jax.layers.blocks import WIRINGS
from transformer_jax.layers.feedforward import ACTIVATIONS, FEED_FORWARDS
from transformer_jax.layers.initialisation import INITIALISATIONS
from transformer_jax.layers.mixers import MIXERS
from transformer_jax.layers.norms import NORMS
from transformer_jax.layers.parametrisation import PARAMETRISATIONS
from transformer_jax.layers.positions import POSITIONS
from transformer_jax.layers.remat import REMATS
from transformer_jax.layers.skips import SKIPS
from transformer_jax.masks import MASKS
from transformer_jax.options import declared_options, entry_of

# Every family of components, by the field that chooses its row.
FAMILIES: dict[str, Mapping[str, Any]] = {
    "position": POSITIONS,
    "mixer": MIXERS,
    "attention": ATTENTIONS,
    "query_key_norm": NORMS,
    "mask": MASKS,
    "feed_forward": FEED_FORWARDS,
    "activation": ACTIVATIONS,
    "norm": NORMS,
    "wiring": WIRINGS,
    "skips": SKIPS,
    "remat": REMATS,
    "initialisation": INITIALISATIONS,
    "parametrisation": PARAMETRISATIONS,
}


def row(table: Mapping[str, Any], choice: Any, argument: str) -> Any:
    """Returns the row of a table that a name chooses; what is not a name stands for itself.

    Raises:
      ValueError: the name is in no row; the text lists the rows.
    """
    if not isinstance(choice, str):
        return choice
    if choice not in table:
        raise ValueError(f"{argument}: expected one of {', '.join(table)}, got {choice!r}")
    return entry_of(table, choice)


def make_with_known_fields(module: Any, known: Mapping, **own: Any) -> Any:
    """Makes a row's object from what it declares among the known values, and from its own ones.

    So a row of a table, a class with fields or a function, takes what it needs (`max_length`,
    `width`, `head_dim`, ...) and nobody has to know which row it is.

    Raises:
      ValueError: the row needs what the model does not know: rows and columns of a text, say.
    """
    declared = inspect.signature(module).parameters
    missing = [
        name
        for name, field in declared.items()
        if field.default is field.empty
        and field.kind in (field.POSITIONAL_OR_KEYWORD, field.KEYWORD_ONLY)
        and name not in known.keys() | own.keys()
    ]
    if missing:
        name = getattr(module, "__name__", module)  # a partial has none
        raise ValueError(f"{name}: needs {missing[0]}, which this model does not have")
    return module(**{name: known[name] for name in declared & known.keys()} | own)


# Rows that compute the numbers of another one, and options of rows that say how and not what.
_NUMBERS_OF = {"fused": "softmax", "local": "softmax"}
_HOW = ("interpret", "computed", "block", "chunk")


def attention_in_effect(model: Any) -> str:
    """Returns a model's row of attention, or the one whose numbers it computes in another way."""
    return _NUMBERS_OF.get(model.attention, model.attention)


def options_in_effect(model: Any, family: str) -> dict[str, Any]:
    """Returns the arguments of a model's row with their defaults, without those of a start alone.

    Two models that compute the same from the same parameters have the same.
    """
    chosen = row(FAMILIES[family], getattr(model, family), family)
    parameters = inspect.signature(chosen).parameters
    defaults = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
    initial = {name for name, option in declared_options(chosen).items() if option.is_initial}
    options = {**defaults, **getattr(model, f"{family}_options")}
    how = _HOW if getattr(model, family) in FAMILIES[family] else ()  # one's own may mean another
    return {
        name: value for name, value in options.items() if name not in initial and name not in how
    }

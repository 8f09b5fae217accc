"""Normal form of model options, in which two models can be compared."""

import inspect
from typing import Any

from transformer_jax.declarations import declared_options
from transformer_jax.model_options import ModelOptions
from transformer_jax.models.stack import block_specs, own_options, variant
from transformer_jax.options import Initial

# Variants of attention that compute the numbers of softmax in another way, and options that say how
# something is computed and not what.
_LIKE_SOFTMAX = ("fused", "local", "chunked")
_HOW = ("interpret", "computed", "block", "chunk")


class Described:
    """A model whose options are its attributes, e.g. `norm_epsilon`."""

    def __init__(self, model: Any, options: ModelOptions | None = None) -> None:
        """Takes a model, and optionally the options of one layer type."""
        self.model, self.options = model, model.options if options is None else options

    def __getattr__(self, name: str) -> Any:
        """Returns an option of the model, or another attribute."""
        if name == "norm_epsilon":
            return options_in_effect(self.options, "norm").get("epsilon", 1e-5)
        if name in ModelOptions.__dataclass_fields__:
            return getattr(self.options, name)
        return getattr(self.model, name)

    def layers(self) -> list[tuple[str, "Described"]]:
        """Returns letter and description of each block."""
        return [
            (spec.letter, Described(self.model, spec.options)) for spec in block_specs(self.options)
        ]


def attention_in_effect(options: ModelOptions) -> Any:
    """Returns a model's variant of attention, or an equivalent one."""
    chosen = options.attention
    return "softmax" if chosen in _LIKE_SOFTMAX else chosen


def options_in_effect(options: ModelOptions, family: str) -> dict[str, Any]:
    """Returns the options of a model's variant with their defaults, except those of initial values.

    Two models that compute the same from the same parameters have the same options.
    """
    chosen = variant(options, family)
    if chosen is None:
        return {}
    declared = declared_options(chosen)
    parameters = inspect.signature(chosen).parameters
    found = {name: parameters[name].default for name in declared}
    found |= own_options(options, family)
    # A user-defined variant may mean something else by these names.
    how = _HOW if isinstance(getattr(options, family), str) else ()
    if getattr(options, family) == "chunked":
        how = (*how, "size")
    return {
        name: value
        for name, value in found.items()
        if name not in how and not (name in declared and declared[name].mark(Initial))
    }

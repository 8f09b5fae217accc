"""Normal form of model options, for comparing two models."""

import inspect
from typing import Any

from transformer_jax.declarations import declared_options
from transformer_jax.model_options import ModelOptions
from transformer_jax.models.stack import block_specs, own_options, variant
from transformer_jax.options import Initial

# Attention variants that compute the numbers of softmax in a different way, and options that affect
# how something is computed, but not the result.
_LIKE_SOFTMAX = ("fused", "local", "chunked")
_HOW = ("interpret", "computed", "block", "chunk")


class Described:
    """View of a model whose options are attributes, e.g. `norm_epsilon`."""

    def __init__(self, model: Any, options: ModelOptions | None = None) -> None:
        """Wraps a model, optionally with the options of one of its layer types."""
        self.model, self.options = model, model.options if options is None else options

    def __getattr__(self, name: str) -> Any:
        """Returns an option of the model or, for other names, an attribute of the model."""
        if name == "norm_epsilon":
            return options_in_effect(self.options, "norm").get("epsilon", 1e-5)
        if name in ModelOptions.__dataclass_fields__:
            return getattr(self.options, name)
        return getattr(self.model, name)

    def layers(self) -> list[tuple[str, "Described"]]:
        """Returns the letter of the layer type and a description, for each block."""
        return [(s.letter, Described(self.model, s.options)) for s in block_specs(self.options)]


def attention_in_effect(options: ModelOptions) -> Any:
    """Returns a model's variant of attention; "softmax" for variants with the same results."""
    chosen = options.attention
    return "softmax" if chosen in _LIKE_SOFTMAX else chosen


def options_in_effect(options: ModelOptions, family: str) -> dict[str, Any]:
    """Returns the options of the variant chosen from a family, by name, including defaults.

    Initialisation options, and those that do not change the result, are left out: two models
    that compute the same function of the same parameters have the same options.
    """
    chosen = variant(options, family)
    if chosen is None:
        return {}
    declared = declared_options(chosen)
    parameters = inspect.signature(chosen).parameters
    found = {name: parameters[name].default for name in declared}
    found |= own_options(options, family)
    # In a user-defined variant, these names can have a different meaning.
    how = _HOW if isinstance(getattr(options, family), str) else ()
    if getattr(options, family) == "chunked":
        how = (*how, "size")
    return {
        name: value
        for name, value in found.items()
        if name not in how and not (name in declared and declared[name].mark(Initial))
    }

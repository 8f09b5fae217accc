"""What may be asked of a run: types of options, rules, and configs that keep them. No jax.

The types below mark the options of a component of your own; see types.
"""

from transformer_jax.options.types import (
    AboveOne,
    Count,
    Fraction,
    InitialNumber,
    InitialSize,
    Mixture,
    Natural,
    NonNegative,
    Number,
    OpenShare,
    Positive,
    PositiveShare,
    Share,
    Switch,
)

__all__ = [
    "AboveOne",
    "Count",
    "Fraction",
    "InitialNumber",
    "InitialSize",
    "Mixture",
    "Natural",
    "NonNegative",
    "Number",
    "OpenShare",
    "Positive",
    "PositiveShare",
    "Share",
    "Switch",
]

"""Base class of all transformers: their options, and how they are made from names."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import flax.linen as nn
from jax import Array

from transformer_jax.embeddings import TokenEmbedding
from transformer_jax.linear import Initializer, Linear, logits_layer
from transformer_jax.model_options import ModelOptions
from transformer_jax.models.stack import can_cache, initializers, is_causal, scaling
from transformer_jax.options import FrozenOptions

OPTIONS = tuple(field.name for field in dataclasses.fields(ModelOptions))


class Transformer(nn.Module):
    """Abstract base class of models with a stack of blocks.

    Attributes:
      options: Options of the stack, the section `model` of a config; see config.ModelOptions.
    """

    options: ModelOptions
    usual: ClassVar[Mapping[str, Any]] = FrozenOptions()  # options that are not at their default

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """Makes a model from options and fields by name: `Decoder.of(vocab_size=65, width=128)`.

        A variant is given by name, or as a class or a partial of one: position="rotary",
        position=RotaryPositions, or position=partial(RotaryPositions, fraction=0.5).
        """
        of_stack, own = _divided(fields)
        known = [field.name for field in dataclasses.fields(cls)]  # ty: ignore
        for name in own:
            if name not in known:
                from transformer_jax.errors import suggest

                raise ValueError(f"{name}: no such option{suggest(name, [*OPTIONS, *known])}")
        return cls(options=ModelOptions.of(**{**cls.usual, **of_stack}), **own)

    def with_options(self, **changes: Any) -> Self:
        """Returns the model with changed options or fields."""
        of_stack, own = _divided(changes)
        of_stack = FrozenOptions.of(of_stack)
        return self.clone(options=dataclasses.replace(self.options, **of_stack), **own)

    # ---- parts

    @property
    def embedding_init(self) -> Initializer:
        """Returns the initial values of embeddings and of kernels outside the blocks."""
        return initializers(self.options).embedding

    def make_embedding(self, vocab_size: int, name: str | None = None) -> TokenEmbedding:
        """Returns a token embedding of this width."""
        width, dtype = self.options.width, self.options.dtype
        return TokenEmbedding(vocab_size, width, self.embedding_init, dtype, name=name)

    def make_output(self, features: int, use_bias: bool) -> Linear:
        """Returns the map to logits, whose sums are float32 or wider whatever the dtype."""
        return logits_layer(features, use_bias, self.embedding_init, self.options.dtype)

    def scale_for_logits(self, hidden: Array) -> Array:
        """Scales the input of the output layer, [..., D], by the parametrisation's gain."""
        gain = scaling(self.options).logits_gain(self.options.width)
        return hidden if gain == 1 else hidden * gain

    def is_causal(self) -> bool:
        """Returns whether no position sees later ones, among the first 256."""
        return is_causal(self.options)

    def can_cache(self) -> bool:
        """Returns whether values of a position surely stay valid when tokens follow."""
        return can_cache(self.options)


def _divided(fields: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Splits fields of a model into options of its stack and the others."""
    of_stack = {name: value for name, value in fields.items() if name in OPTIONS}
    return of_stack, {name: value for name, value in fields.items() if name not in OPTIONS}

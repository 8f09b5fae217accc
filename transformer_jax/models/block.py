"""A model's block: its fields, made into attention or mixer, feed-forward layer, norms, wiring."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
from jax import Array

from transformer_jax.layers.attention import MultiHeadAttention
from transformer_jax.layers.blocks import Block, ModuleFactory
from transformer_jax.layers.initialisation import Initializers
from transformer_jax.layers.position_terms import PositionTerms


def make_block(model: Any, number: int, make: Callable[..., Block] = Block) -> Block:
    """Makes a block of a model, in the module that is called.

    Args:
      model: a Transformer.
      number: of the block.
      make: its class.
    Raises:
      ValueError: options that do not go together.
    """
    initializers = model.initializers
    return make(
        attention=_attention(model, initializers, number),
        mixer=_mixer(model, initializers),
        feed_forward=_feed_forward(model, initializers),
        norm=model.make_norm,
        wiring=model.build("wiring"),
        dropout_rate=model.dropout_rate,
        branch_dropout_rate=model.stochastic_depth * (number + 1) / model.depth,
        name=f"block_{number}",
    )


def terms_of_type(
    letter: str,
    model: Any,
    base: Any,
    terms: PositionTerms,
    positions: Array,
    known: Mapping[str, Any],
) -> PositionTerms:
    """Returns what the positions of a type of layer give to its attention.

    Args:
      letter: of the type.
      model: a Transformer, all of whose blocks are of it.
      base: the Transformer in which it is a type; the module that is called.
      terms: what the base's positions give.
      positions: [..., L] int.
      known: what a position encoding may want to know.
    Raises:
      ValueError: its positions, or the base's, are added to the embeddings, which is done once and
        for all blocks.
    """
    takes = inspect.signature(model.row_of("position")).parameters
    ours, others = (
        {name: value for name, value in one.sizes().items() if name in takes}
        for one in (model, base)
    )
    chosen = [(one.position, one.position_options) for one in (model, base)]
    if ours == others and chosen[0] == chosen[1]:
        return terms
    make = model.factory("position", **known)
    own = make(name=f"positions_{letter}")(positions)
    if own.embedding is not None or terms.embedding is not None:
        added = model.position if own.embedding is not None else base.position
        raise ValueError(
            f"layer_types: {letter}.position={model.position!r}: {added!r} is added to the "
            "embeddings, once for all blocks; expected positions inside attention"
        )
    return own


def _mixer(model: Any, initializers: Initializers) -> ModuleFactory | None:
    """What takes the place of self-attention; None: nothing does."""
    if model.row_of("mixer") is MultiHeadAttention:
        if model.mixer_options:
            raise ValueError(
                "mixer_options: attention has fields of the model; expected none, got "
                f"{dict(model.mixer_options)}"
            )
        return None
    return model.factory(
        "mixer",
        kernel_init=initializers.value,
        out_init=initializers.output,
        dtype=model.dtype,
    )


def _attention(model: Any, initializers: Initializers, number: int) -> ModuleFactory:
    takes = inspect.signature(model.row_of("attention")).parameters
    if model.sizes()["scale"] is not None and "scale" not in takes:
        raise ValueError(f"attention_scale: {model.attention} attention has no scale")
    own = model.attention_dropout_rate
    return functools.partial(
        MultiHeadAttention,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        value_dim=model.value_dim,
        use_bias=model.use_bias,
        dropout_rate=model.dropout_rate if own is None else own,
        chunk=model.attention_chunk,
        core=model.factory("attention", kernel_init=initializers.embedding, layer=number),
        query_key_norm=model.factory("query_key_norm"),
        kernel_init=initializers.query_key,
        value_init=initializers.value,
        out_init=initializers.output,
        dtype=model.dtype,
    )


def _feed_forward(model: Any, initializers: Initializers) -> Callable[..., nn.Module | None]:
    return model.factory(
        "feed_forward",
        mlp_dim=model.mlp_dim,
        activation=model.row_of("activation"),
        kernel_init=initializers.value,
        out_init=initializers.output,
        dtype=model.dtype,
    )

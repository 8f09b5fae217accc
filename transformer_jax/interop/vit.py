"""ViT as a VisionTransformer: Dosovitskiy et al. 2021, arXiv:2010.11929."""

from collections.abc import Callable
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.architecture import (
    NAMES,
    Architecture,
    Settings,
    attention_dropout,
    dropout_fields,
    labels_of,
    num_labels,
    our_fields,
    their_settings,
)
from transformer_jax.interop.layouts import Entry, affine, embedding, leading_ones, norm, patches
from transformer_jax.models import VisionTransformer


def _make_vit(num_classes: Callable[[Settings], int]) -> Callable[[Settings], VisionTransformer]:
    def make(settings: Settings) -> VisionTransformer:
        patch_size, other = _sides(settings, "patch_size")
        if patch_size != other:
            raise InvalidInput(f"config.json: patch_size={patch_size}, {other}: expected a square")
        return VisionTransformer.of(
            image_shape=(*_sides(settings, "image_size"), settings["num_channels"]),
            num_classes=num_classes(settings),
            patch_size=patch_size,
            **our_fields(settings, NAMES),
            mlp_dim=settings["intermediate_size"],
            **dropout_fields(settings, "hidden_dropout_prob", "attention_probs_dropout_prob"),
        )

    return make


def _sides(settings: Settings, name: str) -> tuple[int, int]:
    """Returns height and width, which the config has as one number or two."""
    value = settings[name]
    sides = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise InvalidInput(f"config.json: {name}={value}: expected an integer, or two")
    return sides


def _describe_vit(model: VisionTransformer) -> dict[str, Any]:
    height, width, channels = model.image_shape
    if height != width:
        raise InvalidInput(f"image_shape: their ViT takes squares, got {height} x {width}")
    return {
        "model_type": "vit",
        "image_size": height,
        "num_channels": channels,
        "patch_size": model.patch_size,
        **their_settings(model, NAMES),
        "intermediate_size": model.mlp_dim or 4 * model.width,
        "hidden_dropout_prob": model.dropout_rate,
        "attention_probs_dropout_prob": attention_dropout(model),
        **labels_of(model.num_classes),
    }


def _vit_entries(model: VisionTransformer) -> list[Entry]:
    projection = patches(model.patch_size, model.image_shape[2])
    entries = [
        *embedding("class_token", "embeddings.cls_token", leading_ones(1)),
        *embedding("positions", "embeddings.position_embeddings", leading_ones(1)),
        *affine("patches", "embeddings.patch_embeddings.projection", projection),
        *norm("final_norm", "layernorm"),
    ]
    for layer in range(model.depth):
        our_path, their_name = f"block_{layer}", f"encoder.layer.{layer}"
        for name in ("query", "key", "value"):
            entries += affine(
                f"{our_path}/attention/{name}", f"{their_name}.attention.attention.{name}"
            )
        entries += [
            *norm(f"{our_path}/attention_norm", f"{their_name}.layernorm_before"),
            *affine(f"{our_path}/attention/out", f"{their_name}.attention.output.dense"),
            *norm(f"{our_path}/feed_forward_norm", f"{their_name}.layernorm_after"),
            *affine(f"{our_path}/feed_forward/up", f"{their_name}.intermediate.dense"),
            *affine(f"{our_path}/feed_forward/down", f"{their_name}.output.dense"),
        ]
    return entries


def _vit_classifier_entries(model: VisionTransformer) -> list[Entry]:
    return _vit_entries(model) + affine("head", "classifier")


_VIT_RENAMES = {  # transformers 5 renames in memory what its files keep
    r"^layers\.(\d+)\.": r"encoder.layer.\1.",
    r"\.attention\.q_proj\.": ".attention.attention.query.",
    r"\.attention\.k_proj\.": ".attention.attention.key.",
    r"\.attention\.v_proj\.": ".attention.attention.value.",
    r"\.attention\.o_proj\.": ".attention.output.dense.",
    r"\.mlp\.fc1\.": ".intermediate.dense.",
    r"\.mlp\.fc2\.": ".output.dense.",
}


_VIT = Architecture(
    _make_vit(lambda settings: 0),
    _describe_vit,
    _vit_entries,
    VisionTransformer,
    prefix="vit.",
    heads=("classifier.",),
    required={"qkv_bias": True},
    not_read=("pooler.*",),
    renames=_VIT_RENAMES,
)

ROWS = {
    "ViTModel": _VIT,
    "ViTForImageClassification": _VIT._replace(
        make=_make_vit(num_labels), entries=_vit_classifier_entries
    ),
}

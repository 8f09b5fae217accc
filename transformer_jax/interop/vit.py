"""ViT as a VisionTransformer: Dosovitskiy et al. 2021, arXiv:2010.11929."""

from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.architecture import (
    NAMES,
    Architecture,
    Settings,
    labels_of,
    num_labels,
)
from transformer_jax.interop.layouts import Table, leading_ones, patches
from transformer_jax.models import VisionTransformer

_NAMES = NAMES | {
    "dropout_rate": "hidden_dropout_prob",
    "attention_dropout_rate": "attention_probs_dropout_prob",
}


def _fields(settings: Settings) -> dict[str, Any]:
    patch_size, other = _sides(settings, "patch_size")
    if patch_size != other:
        raise InvalidInput(f"config.json: patch_size={patch_size}, {other}: expected equal sides")
    image_shape = (*_sides(settings, "image_size"), settings["num_channels"])
    return {"image_shape": image_shape, "num_classes": 0, "patch_size": patch_size}


def _sides(settings: Settings, name: str) -> tuple[int, int]:
    """Returns height and width, which their config states as one integer or as two."""
    value = settings[name]
    sides = tuple(value) if isinstance(value, list | tuple) else (value, value)
    if len(sides) != 2 or not all(isinstance(side, int) for side in sides):
        raise InvalidInput(f"config.json: {name}={value}: expected one integer or two")
    return sides


def _settings(model: VisionTransformer) -> dict[str, Any]:
    height, width, channels = model.image_shape
    if height != width:
        raise InvalidInput(f"image_shape: expected square images for ViT, got {height} x {width}")
    return {
        "image_size": height,
        "num_channels": channels,
        "patch_size": model.patch_size,
        **labels_of(model.num_classes),
    }


def _body(model: VisionTransformer) -> Table:
    projection = "embeddings.patch_embeddings.projection"
    return {
        "class_token/embedding": ("embeddings.cls_token", leading_ones(1)),
        "positions/embedding": ("embeddings.position_embeddings", leading_ones(1)),
        "patches/kernel": (f"{projection}.weight", patches(model.patch_size, model.image_shape[2])),
        "patches/bias": f"{projection}.bias",
        "block_#/attention_norm": "encoder.layer.#.layernorm_before",
        "block_#/attention/query": "encoder.layer.#.attention.attention.query",
        "block_#/attention/key": "encoder.layer.#.attention.attention.key",
        "block_#/attention/value": "encoder.layer.#.attention.attention.value",
        "block_#/attention/out": "encoder.layer.#.attention.output.dense",
        "block_#/feed_forward_norm": "encoder.layer.#.layernorm_after",
        "block_#/feed_forward/up": "encoder.layer.#.intermediate.dense",
        "block_#/feed_forward/down": "encoder.layer.#.output.dense",
        "final_norm": "layernorm",
    }


_VIT = Architecture(
    VisionTransformer,
    "vit",
    _NAMES,
    _fields,
    _settings,
    _body,
    prefix="vit.",
    heads=("classifier.",),
    required={"qkv_bias": True},
    not_read=("pooler.*",),
    renames={  # transformers 5 uses different names in memory than in files
        r"^layers\.(\d+)\.": r"encoder.layer.\1.",
        r"\.attention\.q_proj\.": ".attention.attention.query.",
        r"\.attention\.k_proj\.": ".attention.attention.key.",
        r"\.attention\.v_proj\.": ".attention.attention.value.",
        r"\.attention\.o_proj\.": ".attention.output.dense.",
        r"\.mlp\.fc1\.": ".intermediate.dense.",
        r"\.mlp\.fc2\.": ".output.dense.",
    },
)

ROWS = {
    "ViTModel": _VIT,
    "ViTForImageClassification": _VIT._replace(
        fields=lambda settings: _fields(settings) | {"num_classes": num_labels(settings)},
        table=lambda model: _body(model) | {"head": "classifier"},
    ),
}

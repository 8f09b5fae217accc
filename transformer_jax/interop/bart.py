"""BART as an EncoderDecoder: Lewis et al. 2020, arXiv:1910.13461."""

from typing import Any

from transformer_jax.interop.architecture import (
    Architecture,
    Settings,
    attention_dropout,
    dropout_fields,
    our_activation,
    refuse_unlike_sides,
    their_activation,
)
from transformer_jax.interop.layouts import Entry, affine, embedding, leading_ones, norm, rows_from
from transformer_jax.models import EncoderDecoder


def _make_bart(settings: Settings) -> EncoderDecoder:
    for encoder_key in ("encoder_layers", "encoder_attention_heads", "encoder_ffn_dim"):
        refuse_unlike_sides(settings, encoder_key, encoder_key.replace("encoder", "decoder"))
    return EncoderDecoder.of(
        vocab_size=settings["vocab_size"],
        max_length=settings["max_position_embeddings"],
        width=settings["d_model"],
        depth=settings["encoder_layers"],
        num_heads=settings["encoder_attention_heads"],
        mlp_dim=settings["encoder_ffn_dim"],
        position="learned",
        embedding_norm=True,
        scale_embeddings=bool(settings.get("scale_embedding", False)),
        output_bias=True,
        activation=our_activation(settings, "activation_function"),
        **dropout_fields(settings, "dropout", "attention_dropout"),
    )


def _describe_bart(model: EncoderDecoder) -> dict[str, Any]:
    both = {
        "layers": model.depth,
        "attention_heads": model.num_heads,
        "ffn_dim": model.mlp_dim or 4 * model.width,
    }
    sides = {f"{side}_{name}": v for side in ("encoder", "decoder") for name, v in both.items()}
    return {
        "model_type": "bart",
        "is_encoder_decoder": True,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.max_length,
        "d_model": model.width,
        **sides,
        "scale_embedding": model.scale_embeddings,
        "activation_function": their_activation(model),
        "dropout": model.dropout_rate,
        "attention_dropout": attention_dropout(model),
    }


def _bart_entries(model: EncoderDecoder) -> list[Entry]:
    entries = embedding("token_embedding", "shared.weight")
    entries += [Entry(("logits_bias/bias",), "final_logits_bias", leading_ones(1))]
    attentions = {
        "encoder": {"attention": "self_attn"},
        "decoder": {"attention": "self_attn", "cross_attention": "encoder_attn"},
    }
    for side, kinds in attentions.items():
        # Their positions begin with two rows for padding, which no position reads.
        entries += embedding(f"{side}/positions", f"{side}.embed_positions.weight", rows_from(2))
        entries += norm(f"{side}/embedding_norm", f"{side}.layernorm_embedding")
        for layer in range(model.depth):
            our_path, their_name = f"{side}/block_{layer}", f"{side}.layers.{layer}"
            for kind, their_kind in kinds.items():
                for name in ("query", "key", "value"):
                    projection = f"{their_name}.{their_kind}.{name[0]}_proj"
                    entries += affine(f"{our_path}/{kind}/{name}", projection)
                entries += affine(f"{our_path}/{kind}/out", f"{their_name}.{their_kind}.out_proj")
                entries += norm(f"{our_path}/{kind}_norm", f"{their_name}.{their_kind}_layer_norm")
            entries += [
                *affine(f"{our_path}/feed_forward/up", f"{their_name}.fc1"),
                *affine(f"{our_path}/feed_forward/down", f"{their_name}.fc2"),
                *norm(f"{our_path}/feed_forward_norm", f"{their_name}.final_layer_norm"),
            ]
    return entries


_BART = Architecture(
    _make_bart,
    _describe_bart,
    _bart_entries,
    EncoderDecoder,
    prefix="model.",
    heads=("lm_head.", "final_logits_bias"),
    required={"tie_word_embeddings": True},
    tied={
        "lm_head.weight": "shared.weight",
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    },
)

ROWS = {"BartForConditionalGeneration": _BART}

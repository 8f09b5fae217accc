"""BART as an EncoderDecoder: Lewis et al. 2020, arXiv:1910.13461."""

from transformer_jax.interop.architecture import Architecture
from transformer_jax.interop.layouts import Table, leading_ones, rows_from, within
from transformer_jax.models import EncoderDecoder

_NAMES_OF_BOTH_SIDES = {
    "depth": "encoder_layers",
    "num_heads": "encoder_attention_heads",
    "mlp_dim": "encoder_ffn_dim",
}
_NAMES = _NAMES_OF_BOTH_SIDES | {
    "vocab_size": "vocab_size",
    "max_length": "max_position_embeddings",
    "width": "d_model",
    "activation": "activation_function",
    "dropout_rate": "dropout",
    "attention_dropout_rate": "attention_dropout",
}


def _side(side: str) -> Table:
    block: Table = {
        "attention_norm": "self_attn_layer_norm",
        "feed_forward/up": "fc1",
        "feed_forward/down": "fc2",
        "feed_forward_norm": "final_layer_norm",
    }
    attentions = {"attention": "self_attn"}
    if side == "decoder":
        attentions["cross_attention"] = "encoder_attn"
        block["cross_attention_norm"] = "encoder_attn_layer_norm"
    maps: Table = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
    for ours, theirs in attentions.items():
        block |= within(ours, theirs, maps)
    return {
        # Their positions begin with two rows for padding, which no position reads.
        f"{side}/positions": (f"{side}.embed_positions", rows_from(2)),
        f"{side}/embedding_norm": f"{side}.layernorm_embedding",
        **within(f"{side}/block_#", f"{side}.layers.#", block),
    }


_TABLE: Table = {
    "token_embedding": "shared",
    "logits_bias/bias": ("final_logits_bias", leading_ones(1)),
    **_side("encoder"),
    **_side("decoder"),
}

ROWS = {
    "BartForConditionalGeneration": Architecture(
        EncoderDecoder,
        "bart",
        _NAMES,
        lambda settings: {
            "position": "learned",
            "embedding_norm": True,
            "scale_embeddings": bool(settings.get("scale_embedding", False)),
            "output_bias": True,
        },
        lambda model: {"is_encoder_decoder": True, "scale_embedding": model.scale_embeddings},
        lambda _: _TABLE,
        prefix="model.",
        heads=("lm_head.", "final_logits_bias"),
        required={"tie_word_embeddings": True},
        tied={
            "lm_head.weight": "shared.weight",
            "encoder.embed_tokens.weight": "shared.weight",
            "decoder.embed_tokens.weight": "shared.weight",
        },
        sides={name: name.replace("encoder", "decoder") for name in _NAMES_OF_BOTH_SIDES.values()},
    )
}

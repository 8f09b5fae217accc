"""GPT-NeoX and Pythia (parallel branches, partial rotation) and BLOOM (ALiBi) as Decoders.

Black et al. 2022, arXiv:2204.06745; BigScience 2022, arXiv:2211.05100.
"""

from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.architecture import (
    NAMES_OF_TEXT,
    Architecture,
    Settings,
    output_layer,
    rotation_of,
    rotation_settings,
)
from transformer_jax.interop.layouts import Table, interleaved_heads, within
from transformer_jax.models import Decoder

_DROPOUT = {"dropout_rate": "hidden_dropout", "attention_dropout_rate": "attention_dropout"}
_NEOX = NAMES_OF_TEXT | _DROPOUT
_BLOOM = _DROPOUT | {
    "vocab_size": "vocab_size",
    "max_length": "seq_length",
    "width": "hidden_size",
    "depth": "n_layer",
    "num_heads": "n_head",
    "norm_epsilon": "layer_norm_epsilon",
}


def _block(attention: str, num_heads: int) -> Table:
    fused = f"{attention}.query_key_value"  # query, key and value of a head are concatenated
    return {
        "attention/query+key+value": (fused, interleaved_heads(num_heads)),
        "attention/out": f"{attention}.dense",
        "feed_forward/up": "mlp.dense_h_to_4h",
        "feed_forward/down": "mlp.dense_4h_to_h",
        "attention_norm": "input_layernorm",
        "feed_forward_norm": "post_attention_layernorm",
    }


def _fields_of_bloom(settings: Settings) -> dict[str, Any]:
    if settings.get("slow_but_exact") and (settings.get("pretraining_tp") or 1) > 1:
        raise InvalidInput(
            f"config.json: slow_but_exact=True and pretraining_tp={settings['pretraining_tp']}: "
            "with both, transformers leaves out biases; expected slow_but_exact=False"
        )
    return {"position": "alibi", "activation": "gelu_tanh", "embedding_norm": True}


ROWS = {
    "GPTNeoXForCausalLM": Architecture(
        Decoder,
        "gpt_neox",
        _NEOX,
        fields=lambda settings: {
            "position": "rotary",
            "position_options": rotation_of(settings, "rotary_pct", "rotary_emb_base"),
            "wiring": "parallel" if settings.get("use_parallel_residual", True) else "pre",
            "tie_embeddings": settings.get("tie_word_embeddings", False),
        },
        settings=lambda model: {
            "use_parallel_residual": model.wiring == "parallel",
            "attention_bias": True,
            "tie_word_embeddings": model.tie_embeddings,
            **rotation_settings(model),
        },
        table=lambda model: {
            "token_embedding": "embed_in",
            **within("block_#", "layers.#", _block("attention", model.num_heads)),
            "final_norm": "final_layer_norm",
            **output_layer(model),
        },
        prefix="gpt_neox.",
        heads=("lm_head.",),
        required={"attention_bias": True},
        not_read=(
            *("layers.*.attention.rotary_emb.inv_freq", "layers.*.attention.*bias_cache"),
            *("layers.*.attention.bias", "layers.*.attention.masked_bias"),
        ),
        tied={"lm_head.weight": "embed_in.weight"},
        renames={r"^embed_out\.": "lm_head."},
    ),
    "BloomForCausalLM": Architecture(
        Decoder,
        "bloom",
        _BLOOM,
        _fields_of_bloom,
        settings=lambda _: {},
        table=lambda model: {
            "token_embedding": "word_embeddings",
            "embedding_norm": "word_embeddings_layernorm",
            **within("block_#", "h.#", _block("self_attention", model.num_heads)),
            "final_norm": "ln_f",
            **output_layer(model),
        },
        prefix="transformer.",
        heads=("lm_head.",),
        required={"apply_residual_connection_post_layernorm": False, "tie_word_embeddings": True},
        tied={"lm_head.weight": "word_embeddings.weight"},
    ),
}

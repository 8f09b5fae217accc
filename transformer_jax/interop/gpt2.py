"""GPT-2, GPT-J (parallel branches, partial rotation) and OPT as Decoders.

Radford et al. 2019; Wang and Komatsuzaki 2021 (mesh-transformer-jax); Zhang et al., 2205.01068.
"""

import math
from typing import Any

from transformer_jax.errors import InvalidInput
from transformer_jax.interop.architecture import (
    NAMES_OF_TEXT,
    Architecture,
    Settings,
    in_effect,
    output_layer,
)
from transformer_jax.interop.layouts import SAME, TRANSPOSED, Table, paired_features, rows_from
from transformer_jax.models import Decoder
from transformer_jax.models.effect import Described, options_in_effect

_NAMES = NAMES_OF_TEXT | {
    "max_length": "n_positions",
    "width": "n_embd",
    "depth": "n_layer",
    "num_heads": "n_head",
    "mlp_dim": "n_inner",
    "activation": "activation_function",
    "norm_epsilon": "layer_norm_epsilon",
    "dropout_rate": "resid_pdrop",
    "attention_dropout_rate": "attn_pdrop",
}
_TABLE: Table = {
    "token_embedding": "wte",
    "positions": "wpe",
    "block_#/attention_norm": "h.#.ln_1",
    # GPT-2's Conv1D keeps [in, out], as our kernels do.
    "block_#/attention/query+key+value": ("h.#.attn.c_attn", SAME),
    "block_#/attention/out": ("h.#.attn.c_proj", SAME),
    "block_#/feed_forward_norm": "h.#.ln_2",
    "block_#/feed_forward/up": ("h.#.mlp.c_fc", SAME),
    "block_#/feed_forward/down": ("h.#.mlp.c_proj", SAME),
    "final_norm": "ln_f",
}


def _fields(settings: Settings) -> dict[str, Any]:
    return {"mlp_dim": settings["n_inner"] or 4 * settings["n_embd"]}


_GPT2 = Architecture(
    Decoder,
    "gpt2",
    _NAMES,
    _fields,
    lambda model: {"embd_pdrop": model.dropout_rate},
    lambda _: _TABLE,
    prefix="transformer.",
    heads=("lm_head.",),
    required={
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": False,
        "add_cross_attention": False,
        "tie_word_embeddings": True,
    },
    not_read=("h.*.attn.bias", "h.*.attn.masked_bias"),
    tied={"lm_head.weight": "wte.weight"},
)


def _gptj_fields(settings: Settings) -> dict[str, Any]:
    turned, head_dim = settings["rotary_dim"], settings["n_embd"] // settings["n_head"]
    if turned not in range(2, head_dim + 1, 2):
        raise InvalidInput(f"config.json: rotary_dim={turned}: expected an even size <= {head_dim}")
    fraction = turned / head_dim
    if int(fraction * head_dim) < turned:
        fraction = math.nextafter(fraction, 1)  # rotated_features rounds down
    return {
        **_fields(settings),
        **{"position": "rotary", "position_options": {"fraction": fraction}},
        **{"wiring": "parallel", "tie_embeddings": False, "output_bias": True},
    }


def _rotary_dim(model: Described) -> int:
    fraction = options_in_effect(model.options, "position").get("fraction", 1.0)
    return round(fraction * in_effect(model, "head_dim"))


def _gptj_table(model: Described) -> Table:
    turned = paired_features(model.num_heads, _rotary_dim(model))
    return {
        "token_embedding": "wte",
        "block_#/attention_norm": "h.#.ln_1",  # one norm before both branches
        "block_#/feed_forward_norm": "h.#.ln_1",
        "block_#/attention/query/kernel": ("h.#.attn.q_proj.weight", turned),
        "block_#/attention/key/kernel": ("h.#.attn.k_proj.weight", turned),
        "block_#/attention/value/kernel": ("h.#.attn.v_proj.weight", TRANSPOSED),
        "block_#/attention/out/kernel": ("h.#.attn.out_proj.weight", TRANSPOSED),
        "block_#/feed_forward/up": "h.#.mlp.fc_in",
        "block_#/feed_forward/down": "h.#.mlp.fc_out",
        "final_norm": "ln_f",
        "output/kernel": ("lm_head.weight", TRANSPOSED),
        "logits_bias": "lm_head.bias",
    }


_OPT_NAMES = NAMES_OF_TEXT | {
    **{"mlp_dim": "ffn_dim", "activation": "activation_function", "dropout_rate": "dropout"},
    "attention_dropout_rate": "attention_dropout",
}
del _OPT_NAMES["norm_epsilon"]  # always 1e-5, as ours


def _opt_fields(settings: Settings) -> dict[str, Any]:
    inner = settings.get("word_embed_proj_dim")
    if inner not in (None, settings["hidden_size"]):
        raise InvalidInput(
            f"config.json: word_embed_proj_dim={inner}: expected {settings['hidden_size']}"
        )
    return {
        "wiring": "pre" if settings["do_layer_norm_before"] else "post",
        "tie_embeddings": settings.get("tie_word_embeddings", True),
    }


def _opt_table(model: Described) -> Table:
    return {
        "token_embedding": "embed_tokens",
        # Their positions begin with two rows for padding, which no token reads.
        "positions": ("embed_positions", rows_from(2)),
        "block_#/attention_norm": "layers.#.self_attn_layer_norm",
        "block_#/attention/query": "layers.#.self_attn.q_proj",
        "block_#/attention/key": "layers.#.self_attn.k_proj",
        "block_#/attention/value": "layers.#.self_attn.v_proj",
        "block_#/attention/out": "layers.#.self_attn.out_proj",
        "block_#/feed_forward_norm": "layers.#.final_layer_norm",
        "block_#/feed_forward/up": "layers.#.fc1",
        "block_#/feed_forward/down": "layers.#.fc2",
        **({"final_norm": "final_layer_norm"} if model.wiring == "pre" else {}),
        **output_layer(model),
    }


ROWS = {
    "GPT2LMHeadModel": _GPT2,
    "GPT2Model": _GPT2,
    "OPTForCausalLM": Architecture(
        Decoder,
        "opt",
        _OPT_NAMES,
        _opt_fields,
        lambda model: {
            "do_layer_norm_before": model.wiring == "pre",
            "word_embed_proj_dim": model.width,
            "tie_word_embeddings": model.tie_embeddings,
        },
        _opt_table,
        prefix="model.decoder.",
        heads=("lm_head.",),
        required={
            "enable_bias": True,
            "layer_norm_elementwise_affine": True,
            "_remove_final_layer_norm": False,
        },
        tied={"lm_head.weight": "embed_tokens.weight"},
    ),
    "GPTJForCausalLM": _GPT2._replace(
        model_type="gptj",
        fields=_gptj_fields,
        settings=lambda model: {
            "rotary_dim": _rotary_dim(model),
            "embd_pdrop": model.dropout_rate,
            "tie_word_embeddings": False,
        },
        table=_gptj_table,
        required={"tie_word_embeddings": False},
        tied={},
        zeros=r"block_\d+/attention/\w+/bias",
    ),
}
